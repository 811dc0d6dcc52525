"""What the rest of the product asks of a backbone and of a block. Each part answers for itself.

Streaming, padding, export, vitals and explanations never look at a part's class: they ask these questions. So a new
backbone or block is a file of its own and one line in `build.py`. Only `forward` has to be written; the answers below
are those of a part that can do nothing special, and say so in words that a user can read.

Shapes: B batch · C channels · D query/key channels · h x w feature map.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor, nn

from ordnet.errors import OrdnetError

Area = tuple[slice, slice]
"""Rows and columns; both have a start and a stop."""


def tiles(height: int, width: int, size: int, step: int = 1) -> list[Area]:
    """Tiles of at most `size` x `size`, by rows: as few as possible, as even as possible, none overlapping.

    With a `step`, they begin at its multiples, and `size` is rounded down to one of them (but not to 0).
    """
    return [(rows, columns) for rows in _spans(height, size, step) for columns in _spans(width, size, step)]


def _spans(length: int, size: int, step: int) -> list[slice]:
    steps, size = -(-length // step), max(1, size // step)
    count = -(-steps // size)
    return [slice(i * steps // count * step, min((i + 1) * steps // count * step, length)) for i in range(count)]


def parts_of(area: Area, size: int, step: int = 1) -> list[Area]:
    """`tiles` of one area, which begins at a multiple of `step`."""
    (top, bottom), (left, right) = ((span.start, span.stop) for span in area)
    return [
        (slice(top + rows.start, top + rows.stop), slice(left + columns.start, left + columns.stop))
        for rows, columns in tiles(bottom - top, right - left, size, step)
    ]


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


def scaled(area: Area, factor: int, height: int, width: int) -> Area:
    """The same area on a map with `factor` times as many positions per side, clipped to its `height` x `width`."""
    rows, columns = area
    return (
        slice(rows.start * factor, min(rows.stop * factor, height)),
        slice(columns.start * factor, min(columns.stop * factor, width)),
    )


class Backbone(nn.Module):
    """Picture → a pyramid of feature maps, from fine to coarse.

    A subclass sets `strides` and `channels` and implements `stages`: each computes its map from the one before.
    """

    strides: tuple[int, ...]
    """How much smaller than the picture each map is: a map has ceil(side / stride) positions."""
    channels: tuple[int, ...]
    keeps_norms: ClassVar[bool] = False
    """Whether inference has to leave the batch norms alone, because their names do not tell which layer they follow."""

    @property
    def output_stride(self) -> int:
        """The stride of the coarsest map, which the block works on."""
        return self.strides[-1]

    @property
    def reach(self) -> int | None:
        """How many pixels to each side an output depends on; None where a part of a picture never gives the same
        output as the whole."""
        return receptive_field(self)

    def with_synchronised_norms(self) -> "Backbone":
        """The backbone with batch norms that see the batches of all GPUs."""
        return nn.SyncBatchNorm.convert_sync_batchnorm(self)

    def stages(self) -> Sequence[Callable[[Tensor], Tensor]]:
        raise NotImplementedError

    def first_stages(self, count: int) -> list[nn.Module]:
        """The first stages, which training may leave as they are; empty where a stage is no module of its own."""
        first = self.stages()[:count]
        found = [stage for stage in first if isinstance(stage, nn.Module)]
        return found if len(found) == len(first) else []

    def forward(self, image: Tensor, levels: Sequence[int] | None = None) -> list[Tensor]:
        """Pictures (B, 3, H, W) → the maps of these levels, fine to coarse; all of them without `levels`.

        A map that was not asked for is freed as soon as the next one is computed. Negative levels count from the end.
        """
        count = len(self.strides)
        wanted = set(range(count)) if levels is None else {level % count for level in levels}
        maps, x = [], image
        for level, stage in enumerate(self.stages()):
            x = stage(x)
            if level in wanted:
                maps.append(x)
        return maps


@dataclass(frozen=True)
class Rows:
    """One attention's queries and keys at all positions, from which the weights of any position can be computed."""

    queries: Tensor  # (B, D, h, w)
    keys: Tensor  # (B, D, h, w)
    scale: float
    """The factor on the products of queries and keys."""
    softmax: bool
    patches: int = 1
    """Each position attends inside one of patches x patches parts of the map."""


@dataclass(frozen=True)
class Explanation:
    """What a block can show of its attention for one feature map."""

    long: Rows | None = None
    middle: Rows | None = None
    gate: Tensor | None = None
    """Attn_g (B, 1, h, w), the factor on the long range."""
    gate_norm: str | None = None
    """sigmoid or softmax; None without a gate."""


Pieces = Callable[[], Iterable[tuple[Area, Tensor]]]
"""Each call goes over the map once: areas that cover every position once, and their features (1, C, h, w)."""


class Piecewise(Protocol):
    """A block that works on a map which is never held as a whole. Call `learn` first, then call it with any area."""

    @property
    def turns(self) -> int:
        """How often `learn` goes over the map."""

    def learn(self, pieces: Pieces) -> None: ...

    def __call__(self, x: Tensor, area: Area) -> Tensor:
        """Features (1, C, h, w) of an area → the block's output there."""


class Block(nn.Module):
    """Features (B, C, h, w) → features of the same size, `out_channels` wide."""

    out_channels: int
    patches: int = 1
    """The map needs at least this many positions on each side."""
    builds_maps: bool = False
    """Whether the exported block builds N x N attention maps, which limits the size of pictures."""
    whole_only: str | None = "it cannot be computed tile by tile"
    """Why pictures cannot be streamed through the block with the result of one pass; None where they can."""
    unexplained: str | None = "has no attention to show"
    """Why no attention can be shown, as the end of a sentence about the model; None where it can."""
    adds_context: bool = False
    """Whether the output is the input plus a context, whose share can be measured."""
    has_gate: bool = False
    ends_in_convolution: bool = False
    """Whether the block mixes its output so well that a single 1x1 convolution will do as the head."""

    @property
    def reach(self) -> int:
        """How many positions to each side an output depends on, apart from attention."""
        return 0

    def prepare(self) -> None:
        """For inference, compute once what depends on the weights alone. They must not change afterwards."""

    def exportable(self) -> nn.Module:
        """The same block as a graph of fixed form for maps of any size."""
        return self

    def piecewise(self, height: int, width: int) -> Piecewise | None:
        """The block for a map of this size that is never held as a whole; None where an output depends only on its
        neighbourhood, so that the block can simply be called. Asked only where `whole_only` is None."""
        return None

    def explain(self, x: Tensor) -> Explanation:
        """Asked only where `unexplained` is None."""
        return Explanation()

    def query_and_key_parameters(self) -> list[nn.Parameter]:
        """The parameters behind the paper's unbounded products, which may have a learning rate of their own."""
        return []

    def without(self, part: str) -> "Block":
        """A copy with one part switched off (middle, long, gate or block), to measure what that part contributes."""
        what = f"{part} range" if part in ("middle", "long") else part
        raise OrdnetError(f"this model has no {what} that could be switched off: it has no omni-range block")

    def gate_map(self, x: Tensor) -> Tensor | None:
        """The gate (B, 1, h, w) of a block that has one."""
        return None


class NoBlock(Block):
    """Returns the features unchanged: the network without a context block."""

    whole_only = None

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return x


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
    """Torch's layers give one number or one per axis; ours are the same on both axes."""
    return value if isinstance(value, int) else value[0]


def check_output_stride(asked: int) -> None:
    """Refuse an output stride that dilation cannot give."""
    if asked not in (8, 16, 32):
        raise OrdnetError(f"a dilated backbone has output stride 8 or 16, or 32 without dilation, not {asked}")


def conv_norm(
    inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution without bias that keeps the map's size (but for the stride), and its batch norm."""
    padding = dilation * (size // 2)
    return [
        nn.Conv2d(inputs, outputs, size, stride, padding, dilation, groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


def initialise(module: nn.Module) -> None:
    """He's initialisation for convolutions in front of ReLUs; batch norms start as the identity."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
