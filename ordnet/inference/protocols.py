"""Ways to test a picture: `whole`, `multiscale`, `encnet`. Every score says which of them it was measured with.

    whole        one pass at the picture's own size, no flips
    multiscale   the whole picture at several scales of its own size, each also flipped; mean of the softmax
    encnet       EncNet's windows: crop x crop, at scales of a base size, flipped, sums of exponentials

Each protocol runs the network first and keeps the small scores, before upsampling. It turns them into a `RowMap`, so
that `labels` needs little memory whatever the number of classes; the functions named after the protocols return the
scores themselves. Upsampling is linear and symmetric: maps of the same size can be added and flipped before it.

Pictures are normalised, (1, 3, H, W). Any module that maps them to scores (1, K, H, W) can be tested.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.inference.upsample import RowMap, best_classes, held, numbers, resized, whole_map
from ordnet.model.network import Network
from ordnet.model.pixels import black


@dataclass(frozen=True)
class Window:
    """The part of a scaled picture that one pass of the network sees, padded where it is smaller than crop x crop."""

    top: int
    left: int
    bottom: int
    right: int


def scaled_size(height: int, width: int, base: int, scale: float) -> tuple[int, int]:
    """The long side becomes ceil(base · scale) whatever the picture's own size; the short side follows."""
    long = math.ceil(base * scale)
    # EncNet's rule gives a very thin picture no pixels at all: one is the least
    short = max(1, int(min(height, width) * long / max(height, width) + 0.5))
    return (long, short) if height > width else (short, long)


def stride(crop: int) -> int:
    """Two thirds of the window, rounded down."""
    return max(1, crop * 2 // 3)


def starts(size: int, crop: int) -> list[int]:
    """Multiples of the stride until a window reaches the end of `size`; the last may run over it."""
    step = stride(crop)
    return [step * i for i in range(math.ceil(max(0, size - crop) / step) + 1)]


def windows(height: int, width: int, crop: int) -> list[Window]:
    """All windows of a scaled picture, by rows. One that runs over is cut at the border, not moved back."""
    return [
        Window(top, left, min(top + crop, height), min(left + crop, width))
        for top in starts(height, crop)
        for left in starts(width, crop)
    ]


SCALES = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75)
Look = Callable[[Tensor], object]
"""Called with the features that go into the block."""
PROTOCOLS = ("whole", "multiscale", "encnet")
BASE, CROP = 520, 480
"""EncNet's sizes for PASCAL-Context, for checkpoints that do not state their own."""
SINGLE = 80.0
"""Sums of exponentials of scores up to ±80 can be held in single precision."""


@dataclass(frozen=True)
class Protocol:
    """One way of testing, with all its numbers."""

    name: str = "whole"
    base: int = BASE
    crop: int = CROP
    scales: tuple[float, ...] = SCALES

    def __post_init__(self) -> None:
        if self.name not in PROTOCOLS:
            raise OrdnetError(f"there is no protocol {self.name!r}; there are {', '.join(PROTOCOLS)}")
        if self.base < 1 or self.crop < 1 or not self.scales or min(self.scales) <= 0:
            raise OrdnetError(
                f"base size, crop and scales must be positive: "
                f"got base {self.base}, crop {self.crop}, scales {tuple(self.scales)}"
            )

    @property
    def flips(self) -> bool:
        return self.name != "whole"

    @property
    def smallest_scale(self) -> float:
        """The smallest scale of the picture's own size at which the network sees it."""
        return min(self.scales) if self.name == "multiscale" else 1.0

    def details(self) -> dict[str, Any]:
        """The settings that are reported with a score besides the protocol's name."""
        details: dict[str, Any] = {"scales": list(self.scales), "flips": True} if self.flips else {}
        return details | ({"base": self.base, "crop": self.crop} if self.name == "encnet" else {})


def protocol(name: str, base: int | None = None, crop: int | None = None) -> Protocol:
    """A protocol by name, with the sizes that a run or a checkpoint knows; EncNet's where it knows none."""
    return Protocol(name, base or BASE, crop or CROP)


def protocol_of(name: str, about: Mapping[str, Any]) -> Protocol:
    """A protocol by name, with the base size and the crop that a checkpoint says it was trained with."""
    return protocol(name, about.get("base_size"), about.get("crop"))


def labels(
    net: nn.Module,
    image: Tensor,
    how: Protocol | str = "whole",
    *,
    size: tuple[int, int] | None = None,
    confidence: NDArray[np.float16] | None = None,
    look: Look | None = None,
) -> NDArray[np.uint8]:
    """The class of every pixel (H, W), in memory that does not grow with classes x pixels.

    Labels have the image's size, or another `size` (H, W) where the image is a smaller copy of the picture.

    `confidence` (H, W) is filled with the probability of each pixel's class. `look` is called with the block's input,
    by the `whole` protocol only.
    """
    how = Protocol(how) if isinstance(how, str) else how
    with _testing(net, image):
        height, width = size or (image.shape[2], image.shape[3])
        if how.name == "whole":
            return best_classes(_upsampled(net, _small_scores(net, image, look), height, width), confidence)
        scores = _multiscale(net, image, how.scales) if how.name == "multiscale" else _encnet(net, image, how)
        return best_classes(resized(scores, height, width, align_corners=False), confidence, logits=False)


def whole_labels(net: Network, images: Tensor, size: tuple[int, int]) -> list[NDArray[np.uint8]]:
    """What the `whole` protocol gives for each of several pictures (B, 3, H, W), in one pass; labels of this size."""
    with torch.no_grad():
        small = numbers(net.small_scores(images))
        return [best_classes(_upsampled(net, scores[None], *size)) for scores in small]


def whole(net: nn.Module, image: Tensor) -> Tensor:
    """Scores (1, K, H, W) of one pass at the picture's own size."""
    with _testing(net, image):
        return whole_map(_whole(net, image))


def multiscale(net: nn.Module, image: Tensor, scales: Sequence[float] = SCALES) -> Tensor:
    """Probabilities (1, K, H, W): the mean of the softmax over all scales of the picture's own size and both flips."""
    how = Protocol("multiscale", scales=tuple(scales))
    with _testing(net, image):
        return whole_map(_multiscale(net, image, how.scales))


def encnet(net: nn.Module, image: Tensor, base: int = 520, crop: int = 480, scales: Sequence[float] = SCALES) -> Tensor:
    """EncNet's sums (1, K, H, W): positive, not normalised.

    For each scale the long side becomes ceil(base · scale). A window's scores are exp(logits + logits of the flipped
    window, flipped back); they are averaged where windows overlap, resized to the picture and summed over the scales.
    Double precision is used for networks so certain that single precision cannot hold the exponentials.
    """
    how = Protocol("encnet", base, crop, tuple(scales))
    with _testing(net, image):
        return whole_map(_encnet(net, image, how))


@contextmanager
def _testing(net: nn.Module, image: Tensor) -> Iterator[None]:
    """Check the picture; then evaluation mode, restored afterwards, and no gradients."""
    if image.dim() != 4 or image.shape[:2] != (1, 3) or image.numel() == 0:
        raise OrdnetError(f"a protocol tests one picture (1, 3, H, W) at a time, got {tuple(image.shape)}")
    # setting the mode of every module takes longer than reading it
    training = [module for module in net.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _small_scores(net: nn.Module, image: Tensor, look: Look | None = None) -> Tensor:
    return numbers(net.small_scores(image, look) if isinstance(net, Network) else net(image))


def _upsampled(net: nn.Module, small: Tensor, height: int, width: int) -> RowMap:
    """The scores upsampled as the network itself does; those of a foreign module have their full size already."""
    return resized(held(small), height, width, net.align_corners if isinstance(net, Network) else True)


def _whole(net: nn.Module, image: Tensor) -> RowMap:
    return _upsampled(net, _small_scores(net, image), image.shape[2], image.shape[3])


def _multiscale(net: nn.Module, image: Tensor, scales: Sequence[float]) -> RowMap:
    height, width = image.shape[2:]
    maps = []
    for scale in sorted(scales, reverse=True):  # the largest runs while nothing else is held yet
        size = (max(1, int(height * scale + 0.5)), max(1, int(width * scale + 0.5)))
        scaled = F.interpolate(image, size, mode="bilinear", align_corners=True)
        maps.append(_upsampled(net, _small_scores(net, scaled), height, width))
        maps.append(_upsampled(net, _small_scores(net, scaled.flip(3)).flip(3), height, width))

    def rows(first: int, end: int) -> Tensor:
        total = maps[0].rows(first, end).softmax(dim=1)
        for more in maps[1:]:
            total += more.rows(first, end).softmax(dim=1)
        return total.div_(len(maps))

    return _together(maps, rows)


def _encnet(net: nn.Module, image: Tensor, how: Protocol) -> RowMap:
    height, width = image.shape[2:]
    crop = how.crop
    sizes = [scaled_size(height, width, how.base, scale) for scale in how.scales]
    grids = [windows(*size, crop) for size in sizes]
    scores = [_window_scores(net, image, *size, grid, crop) for size, grid in zip(sizes, grids, strict=True)]
    if max(float(small.abs().max()) for at_scale in scores for small in at_scale) > SINGLE:
        scores = [[small.double() for small in at_scale] for at_scale in scores]
    maps = []
    for size, grid, at_scale in zip(sizes, grids, scores, strict=True):
        parts = [_upsampled(net, small, crop, crop) for small in at_scale]
        maps.append(resized(_mean_of_windows(*size, grid, parts), height, width, align_corners=True))

    def rows(first: int, end: int) -> Tensor:
        total = maps[0].rows(first, end)
        for more in maps[1:]:
            total += more.rows(first, end)
        return total

    return _together(maps, rows)


def _window_scores(
    net: nn.Module, image: Tensor, height: int, width: int, grid: Sequence[Window], crop: int
) -> list[Tensor]:
    """Small scores of each window at one scale, plus those of the flipped window, flipped back."""
    picture = F.interpolate(image, (height, width), mode="bilinear", align_corners=True)
    scores = []
    for window in grid:
        part = picture[:, :, window.top : window.bottom, window.left : window.right]
        padded = black(image, crop, crop)
        padded[:, :, : part.shape[2], : part.shape[3]] = part
        scores.append(_small_scores(net, padded) + _small_scores(net, padded.flip(3)).flip(3))
    return scores


def _mean_of_windows(height: int, width: int, grid: Sequence[Window], parts: Sequence[RowMap]) -> RowMap:
    """The exponentials of the windows' scores, averaged where windows overlap; the padding is left out."""

    def rows(first: int, end: int) -> Tensor:
        total: Any = None
        for window, part in zip(grid, parts, strict=True):
            top, bottom = max(first, window.top), min(end, window.bottom)
            if top >= bottom:
                continue
            seen = part.rows(top - window.top, bottom - window.top)[..., : window.right - window.left].exp()
            if total is None:
                total = seen.new_zeros(1, seen.shape[1], end - first, width)
                count = seen.new_zeros(end - first, width)
            place = (..., slice(top - first, bottom - first), slice(window.left, window.right))
            total[place] += seen
            count[place] += 1
        return total.div_(count)

    cost = max(part.cost for part in parts) * math.ceil(width / parts[0].width)
    return RowMap(height, width, parts[0].dtype, cost, rows)


def _together(maps: Sequence[RowMap], rows: Callable[[int, int], Tensor]) -> RowMap:
    """A map whose `rows` are made from those of several maps of the same size."""
    return RowMap(maps[0].height, maps[0].width, maps[0].dtype, max(each.cost for each in maps), rows)
