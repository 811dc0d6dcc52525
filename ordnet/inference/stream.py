"""Pictures of any size in bounded memory, with exact global and patch context.

The network runs tile by tile, several times over the picture: first to add up what the omni-range block needs to know
of the whole map, last to give the scores. Tiles look beyond their edges by a halo, so that convolutions see what they
would see in the whole picture; at the picture's own edge the halo ends, and padding is what it always is.

The context is a sum over the whole picture whatever the halo. With a halo that covers the backbone's receptive field
the result is that of one pass: so it is without being asked for tiny, mobilenet_v2, resnet18 and resnet50(s). The
deeper ResNets see 425 to 727 px to each side, of which the outer ones hardly count: there the halo ends at HALO.
What a halo too small costs, for mobilenet_v2 (which sees 245 px) and tiles of 256 px, as the mean difference of scores
in their standard deviations: halo 0 px 7 %, 64 px 2 %, 128 px 0.4 %, 192 px 0.03 %, 256 px none.

Blocks that attend with a softmax have no such sums, and some of timm's backbones look at the whole picture at once.
They are run on overlapping windows: what is further away than a window they do not see, and a warning says so.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from ordnet.errors import OrdnetError
from ordnet.inference.upsample import axis, best_classes, held, strips
from ordnet.model.network import Network
from ordnet.model.parts import Area, grown, inside, receptive_field, scaled, tiles
from ordnet.model.pixels import to_input

TILE = 1024
"""Side of a tile in pixels, without its halo."""
HALO = 256
"""The widest halo in pixels that is taken without being asked for."""

Progress = Callable[[int, int], object]
"""Receives how many tiles are done, and of how many."""


def labels(
    net: Network,
    pixels: np.ndarray,
    tile: int = TILE,
    halo: int | None = None,
    progress: Progress | None = None,
    confidence: np.ndarray | None = None,
    size: tuple[int, int] | None = None,
) -> np.ndarray:
    """RGB (H, W, 3) uint8 → class ids (H, W) uint8; `confidence` (H, W) is filled with their probabilities.

    Where the pixels are a smaller copy of a picture, the ids are repeated to its `size`: there is no room for scores.
    """
    if size is not None and size != pixels.shape[:2]:
        small = None if confidence is None else np.empty(pixels.shape[:2], np.float16)
        found = labels(net, pixels, tile, halo, progress, small)
        rows, columns = (np.arange(whole) * part // whole for whole, part in zip(size, pixels.shape[:2], strict=True))
        if confidence is not None and small is not None:
            confidence[:] = small[np.ix_(rows, columns)]
        return found[np.ix_(rows, columns)]
    result = np.empty(pixels.shape[:2], dtype=np.uint8)
    with torch.inference_mode():
        for (rows, columns), scores in _scores_by_strip(net, pixels, tile, halo, progress):
            part = None if confidence is None else confidence[rows, columns]
            result[rows, columns] = best_classes(held(scores[None]), part)
    return result


def scores(
    net: Network, pixels: np.ndarray, tile: int = TILE, halo: int | None = None, progress: Progress | None = None
) -> Tensor:
    """RGB (H, W, 3) uint8 → scores (K, H, W), which need the memory for themselves: 4 K bytes per pixel."""
    result = torch.empty(net.classes, *pixels.shape[:2], dtype=next(net.parameters()).dtype)
    with torch.inference_mode():
        for (rows, columns), part in _scores_by_strip(net, pixels, tile, halo, progress):
            result[:, rows, columns] = part.cpu()
    return result


def _why_windows(net: Network) -> str | None:
    """What keeps tiles together from giving what one pass would give, if anything does."""
    if net.block.whole_only:
        return f"{net.config.variant} cannot be streamed exactly: {net.block.whole_only}"
    if net.backbone.reach is None:
        return f"{net.config.backbone} cannot compute a part of its features without the whole picture"
    return None


class Features:
    """The feature maps of a picture; any area of them is computed when asked for."""

    def __init__(self, net: Network, pixels: np.ndarray, halo: int | None) -> None:
        """`halo` in pixels; without it the backbone's receptive field, but no more than HALO."""
        self.net = net
        self.pixels = pixels
        self.stride = net.backbone.output_stride
        self.height, self.width = (-(-side // self.stride) for side in pixels.shape[:2])
        wanted = min(net.backbone.reach or 0, HALO) if halo is None else halo
        self.halo = -(-wanted // self.stride)  # whole positions, so that tiles start at multiples of the stride

    def block_input(self, area: Area) -> Tensor:
        """Rows and columns of the block's map → its features there (1, C, h, w)."""
        return self._maps(area, ())[-1]

    def all_maps(self, area: Area) -> tuple[list[Tensor], Tensor]:
        """Rows and columns of the block's map → the decoder's finer maps of the same place, and the block's input."""
        *finer, features = self._maps(area, self.net.decoder.levels)
        return finer, features

    def _maps(self, area: Area, levels: tuple[int, ...]) -> list[Tensor]:
        rows, columns = wider = grown(area, self.halo, self.height, self.width)
        s = self.stride
        part = self.pixels[rows.start * s : rows.stop * s, columns.start * s : columns.stop * s]
        here = inside(area, wider)
        maps = []
        found = self.net.backbone(to_input(part, self.net), levels=(*levels, -1))
        for level, features in zip((*levels, -1), found, strict=True):
            factor = s // self.net.backbone.strides[level]
            rows, columns = scaled(here, factor, features.shape[2], features.shape[3])
            maps.append(features[:, :, rows, columns])
        return [*maps[:-1], self.net.neck(maps[-1])]


def _scores_by_strip(
    net: Network, pixels: np.ndarray, tile: int, halo: int | None, progress: Progress | None
) -> Iterator[tuple[Area, Tensor]]:
    """Areas that together cover the picture, and their scores (K, h, w)."""
    if tile < net.backbone.output_stride:
        raise OrdnetError(f"a tile of {tile} px is smaller than the network's stride of {net.backbone.output_stride}")
    if reason := _why_windows(net):
        yield from _windows(net, pixels, tile, halo, progress, reason)
        return
    features = Features(net, pixels, halo)
    map_tiles = tiles(features.height, features.width, tile // features.stride)
    height, width = pixels.shape[:2]
    picture_tiles = tiles(height, width, tile)
    block = net.block.piecewise(features.height, features.width)
    total = (len(map_tiles) * block.turns if block else 0) + len(picture_tiles)
    count = _Counter(total, progress)
    if block:
        block.learn(lambda: ((area, features.block_input(area)) for area in count.each(map_tiles)))

    finer_by = net.backbone.output_stride // net.stride  # positions of the scores by those of the block's map
    # what the head, the decoder and the block's fusion see of their neighbours, in positions of the block's map
    seen = -(-receptive_field(net.head) // finer_by) + net.decoder.reach + net.block.reach
    for area in count.each(picture_tiles):
        rows, columns = (
            axis(pixel_span, side, -(-side // net.stride), net.align_corners)
            for pixel_span, side in zip(area, (height, width), strict=True)
        )
        core = (rows.positions, columns.positions)
        covered = tuple(slice(span.start // finer_by, -(-span.stop // finer_by)) for span in core)
        wider = grown((covered[0], covered[1]), seen, features.height, features.width)
        finer, x = features.all_maps(wider)
        small = net.decoded(net.block(x) if block is None else block(x, wider), finer)[0]
        local_rows, local_columns = inside(
            core, scaled(wider, finer_by, features.height * finer_by, features.width * finer_by)
        )
        for strip, part in strips(small[:, local_rows, local_columns], rows, columns):
            top = area[0].start
            yield (slice(top + strip.start, top + strip.stop), area[1]), part


def _windows(
    net: Network, pixels: np.ndarray, tile: int, halo: int | None, progress: Progress | None, reason: str
) -> Iterator[tuple[Area, Tensor]]:
    """Every tile with its surroundings through the whole network, as if the rest of the picture were not there."""
    beyond = HALO if halo is None else halo
    warnings.warn(
        f"{reason}: the picture is parsed in windows of {tile + 2 * beyond} px that know nothing of each other",
        stacklevel=2,
    )
    height, width = pixels.shape[:2]
    areas = tiles(height, width, tile)
    for area in _Counter(len(areas), progress).each(areas):
        wider = grown(area, beyond, height, width)
        part = pixels[wider]
        small = net.small_scores(to_input(part, net))[0]
        rows, columns = (
            axis(span, side, -(-side // net.stride), net.align_corners)
            for span, side in zip(inside(area, wider), part.shape[:2], strict=True)
        )
        for strip, scores in strips(small[:, rows.positions, columns.positions], rows, columns):
            top = area[0].start
            yield (slice(top + strip.start, top + strip.stop), area[1]), scores


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
