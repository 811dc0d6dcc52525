"""The omni-range block on a feature map that is never there as a whole.

All the block wants to know of the whole map are sums over positions. They are added up piece by piece; then the block
can answer for any piece. The result is the block's own, not an approximation.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from ordnet.model.areas import Area, inside, overlap
from ordnet.model.attention import Sums
from ordnet.model.factored import Factored, added_up
from ordnet.model.fusion import ChannelSelection
from ordnet.model.middle_range import patch_grid
from ordnet.model.parts import Pieces


class PiecewiseBlock:
    """`learn` first, then call with any area of the map and its features."""

    def __init__(self, block: Factored, height: int, width: int) -> None:
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
        self.whole = added_up(by_patch)
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
        """What `Factored.read_out` gives for the area, each part read out with the context of its own patch."""
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
