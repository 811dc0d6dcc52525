"""Letters for pictures."""

from bisect import bisect_right
from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_ALSO = "…"
"""What Pillow's own font has beside ASCII, of what we write."""


def font(size: int, text: str = "") -> Font:
    """Letters of so many pixels that can write `text`."""
    plain = text.replace(_ALSO, "").isascii()
    return _plain(size) if plain else _wide(size)


def shortened(text: str, width: float, size: int) -> str:
    """The text, or its beginning and an ellipsis where it is wider than `width` pixels."""
    letters = font(size, text)
    if letters.getlength(text) <= width:
        return text
    kept = bisect_right(range(len(text)), width, key=lambda count: letters.getlength(text[:count] + "…")) - 1
    return text[: max(0, kept)].rstrip() + "…"


@lru_cache(maxsize=16)
def _plain(size: int) -> Font:
    return ImageFont.load_default(size)


@lru_cache(maxsize=16)
def _wide(size: int) -> Font:
    """The font that matplotlib brings: Latin with all its accents, Greek, Cyrillic and more; no Chinese."""
    import matplotlib

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", size)
