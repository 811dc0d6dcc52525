"""Pictures of any size in bounded memory, with exact global and patch context.

The network runs tile by tile, several times over the picture: first to add up the sums that the omni-range block needs
over the whole map, last to compute the scores. Each tile is extended by a halo, so that convolutions see what they
would see in the whole picture; at the picture's own edge the halo ends, and layers pad as always.

The context is a sum over the whole picture whatever the halo. With a halo that covers the backbone's receptive field,
the result is that of one pass; the default halo does so for tiny, mobilenet_v2, resnet18 and resnet50(s). The deeper
ResNets see 425 to 727 px to each side, of which the outer ones hardly count: there the default halo ends at HALO.
The cost of too small a halo, for mobilenet_v2 (which sees 245 px) and tiles of 256 px, as the mean difference of scores
in their standard deviations: halo 0 px 7 %, 64 px 2 %, 128 px 0.4 %, 192 px 0.03 %, 256 px none.

Blocks that attend with a softmax have no such sums, and some of timm's backbones look at the whole picture at once.
They run on overlapping windows and see nothing beyond them; a warning says so.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ordnet.errors import OrdnetError
from ordnet.inference.upsample import Axis, axis, axis_of_part, best_classes, held, numbers, strips
from ordnet.model.network import Network
from ordnet.model.parts import Area, grown, inside, parts_of, receptive_field, scaled, tiles
from ordnet.model.pixels import to_input

TILE = 1024
"""Side of a tile in pixels, without its halo."""
HALO = 256
"""The widest default halo in pixels."""

PART = 2048
"""The longest side in pixels of the areas that are yielded."""

Progress = Callable[[int, int], object]
"""Called with the number of tiles done, and of all tiles."""


class Pixels(Protocol):
    """RGB (H, W, 3) uint8: an array, or an object that reads parts of a picture on demand."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, area: Any, /) -> Any: ...


def labels(
    net: Network,
    pixels: Pixels,
    tile: int = TILE,
    halo: int | None = None,
    progress: Progress | None = None,
    confidence: np.ndarray | None = None,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """RGB (H, W, 3) uint8 → class ids (H, W) uint8; `confidence` (H, W) is filled with their probabilities.

    Where the pixels are a resized copy of a picture, the scores are brought to its `size`.
    """
    result = np.empty(size or pixels.shape[:2], dtype=np.uint8)
    for area, ids in label_parts(net, pixels, tile, halo, progress, confidence, size):
        result[area] = ids
    return result


def label_parts(
    net: Network,
    pixels: Pixels,
    tile: int = TILE,
    halo: int | None = None,
    progress: Progress | None = None,
    confidence: np.ndarray | None = None,
    size: tuple[int, int] | None = None,
    *,
    whole_up_to: int = 0,
    step: int = 1,
) -> Iterator[tuple[Area, np.ndarray]]:
    """The same for pictures whose label map is larger than memory: areas that cover the picture, and their class ids.

    No area is larger than PART x PART; all begin at multiples of `step`. Pixels up to `whole_up_to` take one pass.
    """
    with torch.inference_mode():
        for area, strips_of in _scores_by_part(net, pixels, tile, halo, progress, size, whole_up_to, step):
            (top, bottom), (left, right) = ((span.start, span.stop) for span in area)
            found = np.empty((bottom - top, right - left), np.uint8)
            for strip, scores in strips_of:
                sure = None if confidence is None else confidence[area][strip]
                found[strip] = best_classes(held(scores[None]), sure)
            yield area, found


def scores(
    net: Network,
    pixels: Pixels,
    tile: int = TILE,
    halo: int | None = None,
    progress: Progress | None = None,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """RGB (H, W, 3) uint8 → scores (K, H, W), which take 4 K bytes of memory per pixel."""
    result = torch.empty(net.classes, *(size or pixels.shape[:2]), dtype=next(net.parameters()).dtype)
    with torch.inference_mode():
        for (rows, columns), strips_of in _scores_by_part(net, pixels, tile, halo, progress, size):
            part = result[:, rows, columns]
            for strip, found in strips_of:
                part[:, strip] = found.cpu()
    return result


def _why_windows(net: Network) -> str | None:
    """The reason why tiles cannot give what one pass would give; None where they can."""
    if net.block.whole_only:
        return f"{net.config.variant} cannot be streamed exactly: {net.block.whole_only}"
    if net.backbone.reach is None:
        return f"{net.config.backbone} cannot compute a part of its features without the whole picture"
    return None


class Features:
    """The feature maps of a picture; any area of them is computed on demand."""

    def __init__(self, net: Network, pixels: Pixels, halo: int | None) -> None:
        """`halo` is in pixels; by default the backbone's receptive field, but no more than HALO."""
        self.net = net
        self.pixels = pixels
        self.stride = net.block_stride
        self.height, self.width = (-(-side // self.stride) for side in pixels.shape[:2])
        self.step = net.backbone.output_stride // self.stride
        """Tiles begin at multiples of so many positions, where the backbone's coarsest map has one of its own."""
        # enlarging the coarsest map looks at its next positions too
        reach = (net.backbone.reach or 0) + (net.backbone.output_stride if self.step > 1 else 0)
        wanted = min(reach, HALO) if halo is None else halo
        self.halo = -(-wanted // self.stride)  # whole positions, so that tiles start at multiples of the stride

    def block_input(self, area: Area) -> Tensor:
        """Rows and columns of the block's map → its features there (1, C, h, w)."""
        return self._maps(area, ())[-1]

    def all_maps(self, area: Area) -> tuple[list[Tensor], Tensor]:
        """Rows and columns of the block's map → the decoder's finer maps of the same place, and the block's input."""
        *finer, features = self._maps(area, self.net.decoder.levels)
        return finer, features

    def _maps(self, area: Area, levels: tuple[int, ...]) -> list[Tensor]:
        rows, columns = (
            slice(span.start // self.step * self.step, span.stop)
            for span in grown(area, self.halo, self.height, self.width)
        )
        s = self.stride
        part = self.pixels[rows.start * s : rows.stop * s, columns.start * s : columns.stop * s]
        here = inside(area, (rows, columns))
        found = self.net.backbone(to_input(part, self.net), (*levels, *self.net.neck_levels))
        strides = [*(self.net.backbone.strides[level] for level in levels), s]
        maps = []
        for stride, features in zip(
            strides, [*found[: len(levels)], self.net.joined(found[len(levels) :])], strict=True
        ):
            rows, columns = scaled(here, s // stride, features.shape[2], features.shape[3])
            maps.append(features[:, :, rows, columns])
        return maps


Strips = Iterator[tuple[slice, Tensor]]
"""Rows of an area, a few at a time, and their scores (K, n, W)."""


def _scores_by_part(
    net: Network,
    pixels: Pixels,
    tile: int,
    halo: int | None,
    progress: Progress | None,
    size: tuple[int, int] | None = None,
    whole_up_to: int = 0,
    step: int = 1,
) -> Iterator[tuple[Area, Strips]]:
    """Areas that together cover the picture, and their scores."""
    if tile < net.block_stride:
        raise OrdnetError(f"a tile of {tile} px is smaller than the network's stride of {net.block_stride}")
    height, width = size = size or (pixels.shape[0], pixels.shape[1])
    # tiles are cut from the result, which may be larger than what the network sees
    enlarged = max(height / pixels.shape[0], width / pixels.shape[1])
    result_tiles = tiles(height, width, int(tile * enlarged), step)
    if pixels.shape[0] * pixels.shape[1] <= whole_up_to:
        everywhere = (slice(0, height), slice(0, width))
        small = numbers(net.small_scores(to_input(pixels[everywhere], net))[0])
        pieces = iter([(everywhere, small, _axes_of(net, pixels, size))])
    elif reason := _why_windows(net):
        pieces = _windows(net, pixels, size, result_tiles, tile, halo, progress, reason)
    else:
        pieces = _streamed(net, pixels, size, result_tiles, tile, halo, progress)
    for area, small, axes in pieces:
        for part in parts_of(area, PART, step):
            rows, columns = axes(part)
            yield part, strips(small[:, rows.positions, columns.positions], rows, columns)


Axes = Callable[[Area], tuple[Axis, Axis]]
"""Pixels of the result → between which positions of some small scores they lie."""


def _axes_of(net: Network, pixels: Pixels, size: tuple[int, int], place: Area | None = None) -> Axes:
    """`Axes` for small scores of the whole picture, or of one `place` among them."""

    def axes(area: Area) -> tuple[Axis, Axis]:
        rows, columns = (
            axis(span, side, -(-seen // net.stride), net.align_corners)
            for span, side, seen in zip(area, size, pixels.shape[:2], strict=True)
        )
        if place is None:
            return rows, columns
        here = inside((rows.positions, columns.positions), place)
        return replace(rows, positions=here[0]), replace(columns, positions=here[1])

    return axes


def _streamed(
    net: Network,
    pixels: Pixels,
    size: tuple[int, int],
    areas: list[Area],
    tile: int,
    halo: int | None,
    progress: Progress | None,
) -> Iterator[tuple[Area, Tensor, Axes]]:
    """Every area with its small scores (K, h, w), as one pass over the whole picture would give them."""
    features = Features(net, pixels, halo)
    map_tiles = tiles(features.height, features.width, tile // features.stride)
    block = net.block.piecewise(features.height, features.width)
    count = _Counter((len(map_tiles) * block.turns if block else 0) + len(areas), progress)
    if block:
        block.learn(lambda: ((area, features.block_input(area)) for area in count.each(map_tiles)))

    finer_by = net.block_stride // net.stride  # positions of the scores per position of the block's map
    # how far the head, the decoder and the block's fusion see, in positions of the block's map
    seen = -(-receptive_field(net.head) // finer_by) + net.decoder.reach + net.block.reach
    whole_axes = _axes_of(net, pixels, size)
    for area in count.each(areas):
        rows, columns = whole_axes(area)
        core = (rows.positions, columns.positions)
        covered = tuple(slice(span.start // finer_by, -(-span.stop // finer_by)) for span in core)
        wider = grown((covered[0], covered[1]), seen, features.height, features.width)
        finer, x = features.all_maps(wider)
        small = numbers(net.decoded(net.block(x) if block is None else block(x, wider), finer)[0])
        local_rows, local_columns = inside(
            core, scaled(wider, finer_by, features.height * finer_by, features.width * finer_by)
        )
        yield area, small[:, local_rows, local_columns], _axes_of(net, pixels, size, core)


def _windows(
    net: Network,
    pixels: Pixels,
    size: tuple[int, int],
    areas: list[Area],
    tile: int,
    halo: int | None,
    progress: Progress | None,
    reason: str,
) -> Iterator[tuple[Area, Tensor, Axes]]:
    """Run every area with its surroundings through the network, as if the rest of the picture did not exist."""
    beyond = HALO if halo is None else halo
    warnings.warn(
        f"{reason}: the picture is parsed in windows of {tile + 2 * beyond} px that know nothing of each other",
        stacklevel=2,
    )
    height, width = pixels.shape[:2]
    for area in _Counter(len(areas), progress).each(areas):
        rows, columns = (
            slice(span.start * seen // side, -(-span.stop * seen // side))
            for span, seen, side in zip(area, (height, width), size, strict=True)
        )
        wider = grown((rows, columns), beyond, height, width)
        part = pixels[wider]

        def axes(inner: Area, wider: Area = wider, part: np.ndarray = part) -> tuple[Axis, Axis]:
            found = [
                axis_of_part(span, seen / side, around, -(-length // net.stride), net.align_corners)
                for span, seen, side, around, length in zip(
                    inner, (height, width), size, wider, part.shape[:2], strict=True
                )
            ]
            return found[0], found[1]

        yield area, numbers(net.small_scores(to_input(part, net))[0]), axes


class _Counter:
    """Reports every tile that is done."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def each(self, areas: list[Area]) -> Iterator[Area]:
        for area in areas:
            yield area
            self.done += 1
            if self.progress:
                self.progress(self.done, self.total)
