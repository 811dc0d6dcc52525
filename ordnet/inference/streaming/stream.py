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
from torch import Tensor, nn

from ordnet.data.loader import normalise
from ordnet.errors import OrdnetError
from ordnet.inference.streaming.pieces import Area, PiecewiseBlock, grown, inside, receptive_field, tiles
from ordnet.inference.upsample import axis, best_classes, held, strips
from ordnet.model.backbone import Backbone
from ordnet.model.backbones.timm import TimmBackbone
from ordnet.model.network import Network
from ordnet.model.omni_range import OmniRange

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
) -> np.ndarray:
    """RGB (H, W, 3) uint8 → class ids (H, W) uint8; `confidence` (H, W) is filled with their probabilities."""
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
    if not (isinstance(net.block, nn.Identity) or (isinstance(net.block, OmniRange) and net.block.similarity == "dot")):
        return f"{net.config.variant} attends with a softmax, which cannot be added up tile by tile"
    if isinstance(net.backbone, TimmBackbone) and net.backbone.reach is None:
        return f"{net.config.backbone} cannot compute a part of its features without the whole picture"
    return None


class Features:
    """The feature map of a picture; any area of it is computed when asked for."""

    def __init__(self, net: Network, pixels: np.ndarray, halo: int | None) -> None:
        """`halo` in pixels; without it the backbone's receptive field, but no more than HALO."""
        self.net = net
        self.pixels = pixels
        self.stride = net.backbone.output_stride
        self.height, self.width = (-(-side // self.stride) for side in pixels.shape[:2])
        wanted = min(_sees(net.backbone), HALO) if halo is None else halo
        self.halo = -(-wanted // self.stride)  # whole positions, so that tiles start at multiples of the stride

    def at(self, area: Area) -> Tensor:
        """Rows and columns of the map → features (1, C, h, w)."""
        rows, columns = wider = grown(area, self.halo, self.height, self.width)
        s = self.stride
        part = self.pixels[rows.start * s : rows.stop * s, columns.start * s : columns.stop * s]
        _, features = self.net.backbone(to_input(part, self.net))
        rows, columns = inside(area, wider)
        return self.net.neck(features[:, :, rows, columns])


def _sees(backbone: Backbone) -> int:
    """How far the backbone sees, in pixels; timm's are measured, ours can be read from their layers."""
    return backbone.reach or 0 if isinstance(backbone, TimmBackbone) else receptive_field(backbone)


def to_input(pixels: np.ndarray, net: Network) -> Tensor:
    """RGB (h, w, 3) uint8 → what the network takes (1, 3, h, w), where it is and as precise as it is."""
    parameter = next(net.parameters())
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
    return normalise(image.to(parameter.device)).to(parameter.dtype)


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
    block = PiecewiseBlock(net.block, features.height, features.width) if isinstance(net.block, OmniRange) else None
    total = (len(map_tiles) * block.turns if block else 0) + len(picture_tiles)
    count = _Counter(total, progress)
    if block:
        block.learn(lambda: ((area, features.at(area)) for area in count.each(map_tiles)))

    # what the head, and the fusion before it, see of their neighbours
    seen = receptive_field(net.head) + (receptive_field(net.block.fuse) if isinstance(net.block, OmniRange) else 0)
    for area in count.each(picture_tiles):
        rows, columns = (
            axis(pixel_span, side, positions, net.align_corners)
            for pixel_span, side, positions in zip(
                area, (height, width), (features.height, features.width), strict=True
            )
        )
        core = (rows.positions, columns.positions)
        wider = grown(core, seen, features.height, features.width)
        x = features.at(wider)
        local_rows, local_columns = inside(core, wider)
        small = net.head(x if block is None else block(x, wider))[0, :, local_rows, local_columns]
        for strip, part in strips(small, rows, columns):
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
    stride = net.backbone.output_stride
    height, width = pixels.shape[:2]
    areas = tiles(height, width, tile)
    for area in _Counter(len(areas), progress).each(areas):
        wider = grown(area, beyond, height, width)
        part = pixels[wider]
        small = net.small_scores(to_input(part, net))[0]
        rows, columns = (
            axis(span, side, -(-side // stride), net.align_corners)
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
