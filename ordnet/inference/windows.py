"""Where EncNet's windows lie: sizes of the scaled picture, places of the windows. Whole numbers only, no tensors."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """The part of a scaled picture that one pass of the network sees; what it lacks to crop x crop is padding."""

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
