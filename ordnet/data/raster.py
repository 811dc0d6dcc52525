"""Pictures read in windows: maps and scans that are larger than memory, through GDAL (extra `geo`, rasterio).

A `Raster` gives any part of itself as 8-bit RGB, `raster[rows, columns]`, as an array would; the whole is never held.
TIFF in tiles or strips and JPEG 2000 are read only where they are asked for. PNG and JPEG are read from the top, so
going down in rows is cheap and going back is not; interlaced PNGs and progressive JPEGs have to be decoded as a whole,
and large ones are refused.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ordnet.data.pictures import largest_pixels, opened
from ordnet.data.reading import check_companions, regular_file
from ordnet.errors import OrdnetError

_DRIVERS = {
    b"II*\0": "GTiff", b"MM\0*": "GTiff", b"II+\0": "GTiff", b"MM\0+": "GTiff", b"\x89PNG": "PNG",
    b"\xff\xd8\xff": "JPEG", b"\0\0\0\x0cjP  ": "JP2OpenJPEG", b"\xff\x4f\xff\x51": "JP2OpenJPEG",
}  # fmt: skip
"""First bytes of the files that are read → GDAL's driver. Other formats may refer to other files, or to the network."""
MAP_ENDINGS = (".tif", ".tiff", ".jp2", ".j2k")
_WORLD_FILES = (".tfw", ".pgw", ".jgw", ".wld", ".pngw", ".jpgw", ".jpegw")
_CACHE = (64_000_000, 768_000_000)
"""Bytes of decoded blocks that GDAL keeps: at least, and at most."""
_ROWS = 2048
"""Rows that are read repeatedly while going along a row of tiles: a tile with its halo, and some more."""
_LARGEST_BLOCK = 512_000_000
"""Bytes of one tile or strip of the file, which has to be decoded as a whole."""
_MOST = 100
"""A file that is read in windows may have this many times the pixels of one that is decoded as a whole."""
_SAMPLE = 1024
"""Side of the sample that brightness is estimated from, in pixels."""
_LOWEST, _HIGHEST = 0.5, 99.5
"""Percentiles that become black and white where values are stretched."""

Bounds = tuple[np.ndarray, np.ndarray]


def needs_windows(path: Path, bands: Sequence[int] | None = None) -> bool:
    """Whether a file is a map (it has a georeference), or too large to be decoded as a whole, or bands are chosen.

    Without rasterio nothing is a map; opening a picture that is too large then says so.
    """
    if bands is not None:
        return True
    maybe_map = path.suffix.lower() in MAP_ENDINGS or any(path.with_suffix(end).exists() for end in _WORLD_FILES)
    if not maybe_map and not _too_large(path):  # loading GDAL takes longer than parsing a photo
        return False
    if library(needed=False) is None:
        return False
    try:
        with closing(_opened(path)) as file:
            return _georeferenced(file) or file.width * file.height > largest_pixels() or file.count > 4
    except Exception:  # the usual reader says what is wrong
        return False


def is_georeferenced(path: Path) -> bool:
    """Whether a file has a georeference; only for files that need windows."""
    with closing(_opened(path)) as file:
        return _georeferenced(file)


def _too_large(path: Path) -> bool:
    try:
        with opened(path, largest=sys.maxsize) as image:
            return image.width * image.height > largest_pixels()
    except OrdnetError:
        return False


def _opened(path: Path) -> Any:
    with path.open("rb") as content:
        head = content.read(8)
    driver = next((name for start, name in _DRIVERS.items() if head.startswith(start)), None)
    if driver is None:
        raise OrdnetError(f"{path} cannot be read in windows: it is no TIFF, PNG, JPEG or JPEG 2000 file")
    return open_file(path.resolve(), driver=driver)


def open_file(path: Path, mode: str = "r", **profile: Any) -> Any:
    """rasterio.open without its warning that a picture has no georeference."""
    rasterio = library()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        return rasterio.open(path, mode, **profile)


def _georeferenced(file: Any) -> bool:
    gcps, _ = file.gcps
    return bool(file.crs or gcps or file.rpcs or not file.transform.is_identity)


def library(needed: bool = True) -> Any:
    try:
        import rasterio
    except ImportError:
        if not needed:
            return None
        raise OrdnetError("maps and pictures in windows need the extra `geo`: pip install 'ordnet[geo]'") from None
    return rasterio


class Raster:
    """An opened file. Use it in a `with` statement, from one thread."""

    def __init__(self, path: str | Path, bands: Sequence[int] | None = None, stretch: bool = False) -> None:
        """`bands` are one (grey) or three, counted from 1; without them red, green and blue, else the first three.

        `stretch` maps the values between the darkest and the lightest half per cent of each band to 0..255, where they
        have more than 8 bits.
        """
        library()
        self.path = regular_file(path)
        self.stretch = stretch
        with self.messages():
            check_companions(self.path.resolve(), _opened)
            self.file = _opened(self.path)
        try:
            self.shape: tuple[int, int, int] = (self.file.height, self.file.width, 3)
            self.count: int = self.file.count
            self.bands = self._chosen(bands)
            self.kind = np.dtype(self.file.dtypes[self.bands[0] - 1])
            self._check()
        except BaseException:
            self.file.close()
            raise
        self._open = ExitStack()

    def __enter__(self) -> "Raster":
        self._open.enter_context(library().Env(GDAL_CACHEMAX=self._cache()))
        self._open.callback(self.file.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def __getitem__(self, area: tuple[slice, slice]) -> np.ndarray:
        """Rows and columns, cut at the picture's sides → RGB (h, w, 3) uint8."""
        return self.read(area)

    def read(self, area: tuple[slice, slice], size: tuple[int, int] | None = None) -> np.ndarray:
        """The same, or a part of a copy of this `size` (height, width): `area` is then in the copy's pixels."""
        values = self._values(area, size, "average" if self._palette is None else "nearest")
        if self._palette is not None:
            return self._palette[values[0]]
        pixels = np.empty((*values.shape[1:], 3), np.uint8)
        for place, band in enumerate(values):
            pixels[..., place] = self._eight_bits(band, place)
        if len(values) == 1:
            pixels[..., 1:] = pixels[..., :1]
        return pixels

    def valid(self, area: tuple[slice, slice]) -> np.ndarray | None:
        """Where the file has data (h, w): not transparent, and not its nodata value.

        None if it has data everywhere.
        """
        if self._all_valid:
            return None
        with self.messages():
            return self.file.dataset_mask(window=_window(area, self.shape[:2])) > 0

    @property
    def georeferenced(self) -> bool:
        return _georeferenced(self.file)

    def words(self) -> str:
        """A description for users: size, georeference, bands, how values become 8 bits."""
        height, width, _ = self.shape
        crs = (self.file.crs.to_string() if self.file.crs else "georeferenced") if self.georeferenced else ""
        crs = crs if len(crs) < 40 else "own coordinate system"
        across = abs(self.file.transform.a)
        if self.file.crs and self.file.crs.is_projected:
            crs += f", {across:.3g} {self.file.crs.linear_units} a pixel"
        bands = f"band{'s' if len(self.bands) > 1 else ''} {', '.join(map(str, self.bands))} of {self.count}"
        return ", ".join(word for word in (f"{width:,} x {height:,} px", crs, bands, self._depth_words()) if word)

    # ---- bands and values ---------------------------------------------------------------------------------------

    def _chosen(self, bands: Sequence[int] | None) -> tuple[int, ...]:
        if bands is not None:
            if len(bands) not in (1, 3) or not all(1 <= band <= self.count for band in bands):
                raise OrdnetError(
                    f"{self.path}: bands {', '.join(map(str, bands))}: expected one or three of 1 to {self.count}"
                )
            return tuple(bands)
        meaning = [colour.name for colour in self.file.colorinterp]
        if all(colour in meaning for colour in ("red", "green", "blue")):
            return tuple(meaning.index(colour) + 1 for colour in ("red", "green", "blue"))
        coloured = [place for place, colour in enumerate(meaning, 1) if colour != "alpha"]
        return tuple(coloured[:3]) if len(coloured) >= 3 else tuple(coloured[:1] or [1])

    def _check(self) -> None:
        if self.kind.kind not in "uif" or self.kind.itemsize > 8:
            raise OrdnetError(f"{self.path}: pixels of type {self.kind} are no brightness")
        if self.kind not in (np.uint8, np.uint16) and not self.stretch:
            raise OrdnetError(
                f"{self.path}: its values are {self.kind}, which have no fixed white; --stretch makes the darkest "
                f"half per cent black and the lightest white"
            )
        if (pixels := self.shape[0] * self.shape[1]) > _MOST * largest_pixels():
            raise OrdnetError(
                f"{self.path}: {self.shape[1]} x {self.shape[0]} pixels are more than the "
                f"{_MOST * largest_pixels():,} that are read in windows; cut it, or set "
                f"ORDNET_MAX_PIXELS={-(-pixels // _MOST)} and have the time for it"
            )
        rows, columns = max(self.file.block_shapes[band - 1] for band in self.bands)
        if (size := rows * columns * self.count * self.kind.itemsize) > _LARGEST_BLOCK:
            raise OrdnetError(
                f"{self.path} is stored in pieces of {columns} x {rows} px, {size / 1e9:.1f} GB each, and cannot be "
                f"read in windows; gdal_translate -co TILED=YES writes it in small ones"
            )
        if self.file.driver == "PNG" and self._interlaced() and self.shape[0] * self.shape[1] > largest_pixels():
            raise OrdnetError(f"{self.path} is an interlaced PNG, which cannot be read in windows; save it plain")

    def _interlaced(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(29)[28:] == b"\x01"

    @cached_property
    def _palette(self) -> np.ndarray | None:
        """Colours (256, 3) of a file whose values stand for them."""
        if len(self.bands) > 1 or self.file.colorinterp[self.bands[0] - 1].name != "palette" or self.kind != np.uint8:
            return None
        table = np.zeros((256, 3), np.uint8)
        for value, colour in self.file.colormap(self.bands[0]).items():
            table[value & 255] = colour[:3]
        return table

    @cached_property
    def _all_valid(self) -> bool:
        return all(any(flag.name == "all_valid" for flag in flags) for flags in self.file.mask_flag_enums)

    def _eight_bits(self, band: np.ndarray, place: int) -> np.ndarray:
        if self.kind == np.uint8:
            return band
        if not self.stretch:
            return ((band.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        low, high = (float(bound[place]) for bound in self._bounds)
        scaled = (np.nan_to_num(band.astype(np.float64), nan=low) - low) * (255 / max(high - low, 1e-12)) + 0.5
        return np.clip(scaled, 0, 255).astype(np.uint8)

    @cached_property
    def _bounds(self) -> Bounds:
        """Values of each band that become black and white, estimated from a sample of the pixels."""
        values, valid = self._sample
        kept = [band[valid & np.isfinite(band)] for band in values]
        found = [np.percentile(band, (_LOWEST, _HIGHEST)) if band.size else np.array([0.0, 1.0]) for band in kept]
        return np.array([low for low, _ in found]), np.array([high for _, high in found])

    @cached_property
    def _sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Values (bands, h, w) all over the picture, and which of them count."""
        height, width, _ = self.shape
        size = min(height, _SAMPLE), min(width, _SAMPLE)
        area = slice(0, size[0]), slice(0, size[1])
        values = self._values(area, size, "nearest")
        with self.messages():
            valid = np.ones(size, bool) if self._all_valid else self.file.dataset_mask(out_shape=size) > 0
        return values, valid

    def _depth_words(self) -> str:
        if self.kind == np.uint8:
            return ""
        if self.stretch:
            low, high = self._bounds
            pairs = sorted({f"{bottom:.6g} to {top:.6g}" for bottom, top in zip(low, high, strict=True)})
            return f"{self.kind} stretched from {'; '.join(pairs)}"
        lightest = int(self._sample[0].max(initial=0))
        hint = f"; the lightest of a sample is {lightest}: --stretch uses the whole range" if lightest < 16384 else ""
        return f"16 bits divided by 257{hint}"

    # ---- GDAL ---------------------------------------------------------------------------------------------------

    def _values(self, area: tuple[slice, slice], size: tuple[int, int] | None, how: str) -> np.ndarray:
        """(bands, h, w) as they are stored."""
        sides = (self.shape[0], self.shape[1]) if size is None else size
        rows, columns = (
            slice(min(span.start or 0, side), side if span.stop is None else min(span.stop, side))
            for span, side in zip(area, sides, strict=True)
        )
        window = _window((rows, columns), self.shape[:2], sides)
        shape = (len(self.bands), rows.stop - rows.start, columns.stop - columns.start)
        if size is None or size == self.shape[:2]:
            with self.messages():
                return self.file.read(self.bands, window=window)
        with self.messages():
            resampling = library().enums.Resampling[how]
            return self.file.read(self.bands, window=window, out_shape=shape, resampling=resampling)

    def _cache(self) -> int:
        """Bytes that hold what is read repeatedly: for files in strips, all of these rows."""
        rows, columns = self.file.block_shapes[0]
        width = self.shape[1] if columns >= self.shape[1] else 4 * (_ROWS + columns)
        wanted = (_ROWS + rows) * width * self.count * self.kind.itemsize
        return min(max(wanted, _CACHE[0]), _CACHE[1])

    @contextmanager
    def messages(self, doing: str = "read") -> Iterator[None]:
        """Turn GDAL's errors into ones that name the file, in words a user can read."""
        try:
            yield
        except (OrdnetError, MemoryError):
            raise
        except Exception as error:  # rasterio's and GDAL's own errors have no common class
            reason = next(iter(str(error.__cause__ or error).strip().splitlines()), type(error).__name__)
            if doing == "read":
                raise OrdnetError(f"{self.path} cannot be read: {reason}; it may be cut short or damaged") from None
            raise OrdnetError(f"what was found in {self.path} cannot be {doing}: {reason}") from None


def _window(area: tuple[slice, slice], whole: tuple[int, ...], sides: tuple[int, int] | None = None) -> Any:
    """The part of the file that an area of a copy with these `sides` shows."""
    from rasterio.windows import Window

    down, across = (1.0, 1.0) if sides is None else (whole[0] / sides[0], whole[1] / sides[1])
    rows, columns = area
    return Window(
        columns.start * across, rows.start * down, (columns.stop - columns.start) * across,
        (rows.stop - rows.start) * down,
    )  # fmt: skip


@dataclass(frozen=True)
class Smaller:
    """A smaller copy of a raster, computed on demand: each pixel is the mean of those it covers."""

    raster: Raster
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, 3

    def __getitem__(self, area: tuple[slice, slice]) -> np.ndarray:
        return self.raster.read(area, (self.height, self.width))
