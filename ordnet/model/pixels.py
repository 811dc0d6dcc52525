"""From RGB pixels to the network's input: normalised, and at the scale that the network was trained for.

A network knows things at the size they had in its training pictures: a tree ten times as large is no tree to it. So a
checkpoint records the long side of those pictures; much larger pictures are reduced on their way in, much smaller ones
enlarged. Labels come out at the picture's own size: the scores are resized to it, not the labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ordnet.errors import OrdnetError

# ImageNet's, with which public backbones were trained
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """RGB 0..255 (B, 3, H, W) → the network's input, as a module for graphs that begin with a picture."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", torch.tensor(STD).view(3, 1, 1) * 255, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.scale


def normalise(images: Tensor) -> Tensor:
    """uint8 RGB (B, 3, H, W) → the network's input, float32 of the same shape."""
    mean = torch.tensor(MEAN, device=images.device).view(3, 1, 1) * 255
    scale = torch.tensor(STD, device=images.device).view(3, 1, 1) * 255
    return images.float().sub_(mean).div_(scale)


def to_input(pixels: np.ndarray, net: nn.Module) -> Tensor:
    """RGB (h, w, 3) uint8 → the network's input (1, 3, h, w), on its device and in its precision."""
    parameter = next(net.parameters())
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
    return normalise(image.to(parameter.device)).to(parameter.dtype)


def black(like: Tensor, height: int, width: int) -> Tensor:
    """A black picture (1, 3, height, width), normalised."""
    values = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
    return like.new_tensor(values).view(1, 3, 1, 1).repeat(1, 1, height, width)


def padded(pixels: np.ndarray, side: int) -> np.ndarray:
    """A picture (H, W, 3) padded to at least `side` pixels each way by repeating its last row and column; the same
    array where it is large enough already."""
    height, width = pixels.shape[:2]
    missing = [(0, max(0, side - height)), (0, max(0, side - width)), (0, 0)]
    return np.pad(pixels, missing, mode="edge") if any(after for _, after in missing) else pixels


# ---- the scale that a network knows -----------------------------------------------------------------------------

OWN = "own"
LongSide = int | Literal["own"] | None
"""What may be asked for: a number of pixels, the picture's own size, or (None) what the checkpoint was trained for."""
LARGER = 1.25
"""Pictures up to this many times as large as those trained on are left alone: training varies the scale by more."""
SMALLER = 2
"""Pictures at least this many times smaller are enlarged; training seldom shows things so small."""
ENLARGED = 2048
"""No picture is enlarged beyond this long side, whatever a checkpoint says."""


class KnownSize(NamedTuple):
    """The long sides of the pictures that a network knows, in pixels; None where there is no bound."""

    most: int | None = None
    least: int | None = None


def known_size(asked: LongSide, about: Mapping[str, Any]) -> KnownSize:
    """The sizes that a checkpoint says it was trained for, or those asked for instead."""
    if asked == OWN:
        return KnownSize()
    most, least = (
        int(known) if isinstance(known, int | float) and known >= 1 else None
        for known in (about.get("long_side"), about.get("least_long_side"))
    )
    if asked is None:
        return KnownSize(most, least)
    if not isinstance(asked, int) or asked < 1:
        raise OrdnetError(f"the long side is a number of pixels or {OWN!r}, got {asked!r}")
    return KnownSize(asked, least and min(least, asked))


def parse_long_side(text: str | None) -> LongSide:
    """The value of --long-side."""
    if text is None or text == OWN:
        return text  # type: ignore[return-value]
    if not text.isdecimal() or int(text) < 1:
        raise OrdnetError(f"--long-side {text}: expected a number of pixels, or {OWN} for every picture's own size")
    return int(text)


def fitted_size(height: int, width: int, known: KnownSize) -> tuple[int, int]:
    """Height and width of the copy that the network sees; the picture's own where they are near the known sizes."""
    longest = max(height, width)
    if known.most is not None and longest > LARGER * known.most:
        side = known.most
    elif known.least is not None and SMALLER * longest <= min(known.least, ENLARGED):
        side = min(known.least, ENLARGED)
    else:
        return height, width
    return max(1, round(height * side / longest)), max(1, round(width * side / longest))


def fitted(pixels: np.ndarray, known: KnownSize) -> np.ndarray:
    """RGB (H, W, 3) → the copy that the network sees; the picture itself where it is near the known sizes."""
    height, width = fitted_size(pixels.shape[0], pixels.shape[1], known)
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC, reducing_gap=3.0))


@dataclass(frozen=True)
class Seen:
    """A picture as the network gets it."""

    pixels: np.ndarray
    """The copy, padded to the least size that the network takes."""
    size: tuple[int, int]
    """Height and width that its scores are enlarged to: the picture is the upper left part of that."""


def seen_by(pixels: np.ndarray, known: KnownSize, least_side: int) -> Seen:
    copy = fitted(pixels, known)
    ready = padded(copy, least_side)
    if copy is pixels:
        return Seen(ready, (ready.shape[0], ready.shape[1]))
    rows, columns = (-(-ready.shape[i] * pixels.shape[i] // copy.shape[i]) for i in (0, 1))
    return Seen(ready, (rows, columns))
