"""How a picture or a feature map is cut into tiles, and how far tiles look beyond their edges.

The omni-range block on a feature map that is never there as a whole.

All the block wants to know of the whole map are sums over positions. They are added up piece by piece; then the block
can answer for any piece. The result is the block's own, not an approximation.
"""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor, nn

from ordnet.model.attention import Sums
from ordnet.model.fusion import ChannelSelection
from ordnet.model.middle_range import patch_grid
from ordnet.model.omni_range import OmniRange

Area = tuple[slice, slice]
"""Rows and columns; both have a start and a stop."""


def tiles(height: int, width: int, size: int) -> list[Area]:
    """Tiles of at most `size` x `size`, by rows: as few as possible, as even as possible, none overlapping."""
    return [(rows, columns) for rows in _spans(height, size) for columns in _spans(width, size)]


def _spans(length: int, size: int) -> list[slice]:
    count = -(-length // size)
    return [slice(i * length // count, (i + 1) * length // count) for i in range(count)]


def grown(area: Area, by: int, height: int, width: int) -> Area:
    """The area and `by` more on every side, as far as a map of `height` x `width` reaches."""
    rows, columns = area
    return (
        slice(max(rows.start - by, 0), min(rows.stop + by, height)),
        slice(max(columns.start - by, 0), min(columns.stop + by, width)),
    )


def inside(area: Area, outer: Area) -> Area:
    """The same area, counted from the top left corner of `outer`."""
    top, left = outer[0].start, outer[1].start
    return slice(area[0].start - top, area[0].stop - top), slice(area[1].start - left, area[1].stop - left)


def overlap(one: Area, other: Area) -> Area | None:
    """What both areas cover; None where they do not meet."""
    rows, columns = (slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return (rows, columns) if rows.start < rows.stop and columns.start < columns.stop else None


def receptive_field(*parts: nn.Module) -> int:
    """How many pixels around its own centre an output of these parts can depend on, to each side.

    The parts follow each other, and their layers are named in the order in which they run, as in our networks. The
    shortcuts of residual blocks run beside the layers and see no further.
    """
    reach, step = 0, 1
    for part in parts:
        for name, layer in part.named_modules():
            if "downsample" in name or not isinstance(layer, nn.Conv2d | nn.MaxPool2d):
                continue
            size, dilation, stride = (_side(value) for value in (layer.kernel_size, layer.dilation, layer.stride))
            reach += size // 2 * dilation * step
            step *= stride
    return reach


def _side(value: int | tuple[int, ...]) -> int:
    """Torch's settings come as one number or as one per axis; ours are the same on both."""
    return value if isinstance(value, int) else value[0]


Pieces = Callable[[], Iterable[tuple[Area, Tensor]]]
"""Goes once over the map: areas that cover every position once, and their features (1, C, h, w)."""


class PiecewiseBlock:
    """`learn` first, then call with any area of the map and its features."""

    def __init__(self, block: OmniRange, height: int, width: int) -> None:
        self.block = block
        self.grid = patch_grid(height, width, block.patches)
        self.softmax_gate = block.long is not None and bool(block.long.gate) and block.long.gate_norm == "softmax"
        self.log_total: Tensor | None = None
        self.fusion_weights: Tensor | None = None

    @property
    def turns(self) -> int:
        """How often `learn` goes over the map."""
        return 1 + self.softmax_gate + isinstance(self.block.fuse, ChannelSelection)

    def learn(self, pieces: Pieces) -> None:
        sums: dict[int, Sums] = {}
        for area, x in pieces():
            for patch, (rows, columns) in self._parts(area):
                more = self.block.collect(x[:, :, rows, columns].flatten(2))
                sums[patch] = sums[patch] + more if patch in sums else more
        by_patch = [sums[patch] for patch in range(len(self.grid))]
        self.whole = by_patch[0]
        for patch_sums in by_patch[1:]:
            self.whole = self.whole + patch_sums
        self.contexts = self.block.contexts(by_patch, self.whole)
        if self.softmax_gate:
            for _, x in pieces():
                part = self.block.gate_log_total(x, self.whole)
                self.log_total = part if self.log_total is None else torch.logaddexp(self.log_total, part)
        if isinstance(self.block.fuse, ChannelSelection):
            total = torch.zeros_like(self.whole.inputs)  # (1, C)
            for area, x in pieces():
                total += torch.stack(self._branches(x, area)).sum(dim=(0, 3, 4))
            self.fusion_weights = self.block.fuse.weights(total / self.whole.count)

    def __call__(self, x: Tensor, area: Area) -> Tensor:
        """Features (1, C, h, w) of an area → the block's output there.

        With the `scale` fusion, which looks at neighbours, the outermost positions are right only at the map's edge.
        """
        outputs = self._branches(x, area)
        if self.block.folds_fusion:
            return outputs[0]
        if self.fusion_weights is not None:
            assert isinstance(self.block.fuse, ChannelSelection)
            return x + self.block.fuse.weighed(self.fusion_weights, *outputs)
        return x + self.block.fuse(*outputs)

    def _branches(self, x: Tensor, area: Area) -> list[Tensor]:
        """What `OmniRange.read_out` gives for the area, each part read out with the context of its own patch."""
        gate = self.block.gate_at(x, self.whole, self.log_total)
        outputs = [torch.empty_like(x) for _ in self.contexts[0]]
        for patch, (rows, columns) in self._parts(area):
            part = x[:, :, rows, columns]
            part_gate = None if gate is None else gate[:, :, rows, columns].flatten(2)
            made = self.block.read_out(part.flatten(2), self.contexts[patch], part_gate)
            for output, z in zip(outputs, made, strict=True):
                output[:, :, rows, columns] = z.unflatten(2, part.shape[2:])
        return outputs

    def _parts(self, area: Area) -> Iterator[tuple[int, Area]]:
        """The patches that the area touches, and where in the area they lie."""
        for index, patch in enumerate(self.grid):
            common = overlap(area, patch)
            if common:
                yield index, inside(common, area)
