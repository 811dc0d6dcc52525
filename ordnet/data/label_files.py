"""Reading label pictures: one raw value per pixel, from index PNGs or from colours."""

from collections.abc import Mapping

import numpy as np
from PIL import Image

from ordnet.data.labels import Colour
from ordnet.data.pictures import opened
from ordnet.errors import OrdnetError

LABEL_ENDINGS = (".png", ".bmp", ".tif", ".tiff")
"""Formats that keep every value exactly."""

# Pillow spreads grey values of 2 and 4 bits over 0…255; labels need the stored ones
_SPREAD = {"L;2": 85, "L;4": 17}


def read_index(path: str) -> np.ndarray:
    """Raw values (H, W) of a grey (1 to 16 bits) or paletted picture; of the latter the indices."""
    with opened(path) as image:
        spread = _SPREAD.get(_stored_mode(image), 1)
        raw = np.asarray(image)
    if raw.ndim != 2 or raw.dtype.kind not in "uib":
        raise OrdnetError(
            f"{path} is a colour picture ({image.mode}), but a label holds one class index per pixel: save it as an "
            "8-bit grey or paletted PNG, or read it with folder:PATH and all colours in classes.txt (`road #804080`)"
        )
    return raw.astype(np.uint8) if raw.dtype == bool else raw // spread if spread > 1 else raw


def read_colours(path: str, palette: Mapping[Colour, int]) -> np.ndarray:
    """Raw values (H, W) of a picture whose colours stand for them."""
    with opened(path) as image:
        colours = np.asarray(image.convert("RGB"))
    return _values(colours, palette, path)


def read_index_or_colours(path: str, palette: Mapping[Colour, int]) -> np.ndarray:
    """Raw values (H, W): indices of a grey or paletted picture, otherwise through the palette."""
    with opened(path) as image:
        coloured = image.mode in ("RGB", "RGBA", "RGBX")
    return read_colours(path, palette) if coloured and palette else read_index(path)


def _values(colours: np.ndarray, palette: Mapping[Colour, int], path: str) -> np.ndarray:
    codes = _code(colours.astype(np.int32))
    known = _code(np.array(list(palette), dtype=np.int32))
    order = np.argsort(known)
    place = order[np.searchsorted(known, codes, sorter=order).clip(max=len(known) - 1)]
    strange = known[place] != codes
    if strange.any():
        found, counts = np.unique(codes[strange], return_counts=True)
        largest = np.argsort(-counts)[:8]
        listed = ", ".join(f"#{found[i]:06x} ({counts[i]:,} pixels)" for i in largest)
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        raise OrdnetError(
            f"{path}: colours that no class has: {listed}{more}; add them to classes.txt as a class (`road #804080`) "
            "or as `ignore #000000`. Many such colours come from smoothing or lossy files: save labels without either"
        )
    return np.array(list(palette.values()), dtype=np.int32)[place]


def _code(colours: np.ndarray) -> np.ndarray:
    """Colours (…, 3) → one number each, 0xrrggbb."""
    return colours[..., 0] << 16 | colours[..., 1] << 8 | colours[..., 2]


def _stored_mode(image: Image.Image) -> str:
    """How the file packs its pixels, in Pillow's words, where that is one word."""
    tiles = getattr(image, "tile", None)
    return str(tiles[0][3]) if tiles else image.mode
