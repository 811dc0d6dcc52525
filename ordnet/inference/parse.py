"""The parse of one picture, and the files it is saved as."""

import glob
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ordnet.data.raster import library
from ordnet.data.reading import regular_file
from ordnet.errors import OrdnetError
from ordnet.files import write_atomically, write_text
from ordnet.inference.coco import coco_record, write_polygons
from ordnet.inference.explain import Attention, Explainer
from ordnet.picture import page
from ordnet.picture.grid import contact_sheet
from ordnet.picture.overlay import QUICK_PNG, Colour, overlay, write_names

PICTURES = ("overlay", "labels", "palette", "beside")
"""What `Parse.save` can draw: the picture with the classes over it; class ids as grey values; class ids with the
classes' colours as palette; the picture and the overlay side by side, with a legend."""
FORMS = (*PICTURES, "probabilities", "coco", "polygons")
"""What `Parse.save` can write: the pictures; the probability of every class at every pixel as an .npz file; a mask for
each class as COCO JSON; regions as GeoJSON polygons."""
_ENDINGS = {"probabilities": "npz", "coco": "json", "polygons": "geojson"}
_RESULT = re.compile(rf"(?P<base>.+)\.({'|'.join(PICTURES)})(\.\w+)?", re.DOTALL)
_BAND = 256
"""Rows of a picture that are processed at once."""
_BESIDE = 900
"""The longest side of the two pictures of `beside`, in pixels."""


def _unknown_attention() -> Explainer:
    raise OrdnetError("this parse cannot show attention; parse the picture with a checkpoint of a model that attends")


@dataclass(frozen=True)
class Parse:
    """The parse of one picture."""

    pixels: np.ndarray
    """The picture that was parsed, upright RGB (H, W, 3) uint8."""
    labels: np.ndarray
    """Class ids (H, W) uint8."""
    classes: tuple[str, ...]
    colours: tuple[Colour, ...]
    name: str
    """The file's name without its ending, or "picture"."""
    compute_scores: Callable[[], np.ndarray] = field(repr=False, compare=False)
    confidence: np.ndarray | None = field(default=None, repr=False, compare=False)
    """The probability of each pixel's class (H, W) float16 in 0..1, where the parser was asked for it."""
    compute_explainer: Callable[[], Explainer] = field(default=_unknown_attention, repr=False, compare=False)

    def __repr__(self) -> str:
        height, width = self.labels.shape
        largest = ", ".join(f"{name} {share:.0%}" for name, share in list(self.areas().items())[:3])
        return f"<Parse of {self.name}, {width} x {height} px: {largest}>"

    def _repr_png_(self) -> bytes:
        """What notebooks show where a cell ends with a parse."""
        content = io.BytesIO()
        self.beside().save(content, "PNG", **QUICK_PNG)
        return content.getvalue()

    def _repr_html_(self) -> str:
        picture = page.figure(self.beside(), repr(self).strip("<>"))
        return f'<div style="max-width: {2 * _BESIDE}px">{picture.replace("<img ", "<img style=max-width:100% ")}</div>'

    @property
    def image(self) -> Image.Image:
        return Image.fromarray(self.pixels)

    def overlay(self, strength: float = 0.5, names: bool = True) -> Image.Image:
        """The picture with the classes' colours over it, and their names where they fit.

        `strength` goes from 0, the picture alone, to 1, the colours alone.
        """
        if not 0 <= strength <= 1:
            raise OrdnetError(f"the overlay's strength goes from 0 to 1, got {strength}")
        image = Image.fromarray(overlay(self.pixels, self.labels, self.colours, strength))
        if names:
            write_names(image, self.labels, self.classes)
        return image

    def areas(self) -> dict[str, float]:
        """The share of the picture (0..1) of each class that occurs, largest first."""
        counts = np.array(Image.fromarray(self.labels).histogram()[: len(self.classes)])
        order = np.argsort(-counts, kind="stable")
        return {self.classes[i]: float(counts[i] / self.labels.size) for i in order if counts[i]}

    def scores(self) -> np.ndarray:
        """The network's scores (K, H, W) float32. They are not kept: this runs the network once more."""
        return self.compute_scores()

    @property
    def nbytes(self) -> int:
        """Bytes that the parse keeps in memory."""
        arrays = (self.pixels, self.labels, self.confidence)
        explainer: Any = self.__dict__.get("_explainer", self.compute_explainer)
        return sum(array.nbytes for array in arrays if array is not None) + getattr(explainer, "nbytes", 0)

    def probabilities(self) -> np.ndarray:
        """The probability of every class at every pixel (K, H, W) float16, 0..1, from one pass at the picture's size.

        They are not kept: this runs the network once more.
        """
        return probabilities_of(self.scores())

    def attention(self, x: int, y: int) -> Attention:
        """What the position of pixel (x, y) attends to, and its gate.

        The first call runs the network once more, later ones take milliseconds. A picture too large for one pass is
        seen at a smaller scale (`Attention.scale`).
        """
        found = self._explainer.at(x, y)
        return replace(found, labels=self.labels, classes=self.classes, colours=self.colours)

    @cached_property
    def _explainer(self) -> Explainer:
        return self.compute_explainer()

    def beside(self, strength: float = 0.5) -> Image.Image:
        """Picture and overlay side by side, reduced where they are large, with a legend of the classes that occur."""
        drawn = self.overlay(strength)
        factor = min(1.0, _BESIDE / max(drawn.size))
        size = max(1, round(drawn.width * factor)), max(1, round(drawn.height * factor))
        pair = [np.asarray(picture.resize(size, Image.Resampling.BOX)) for picture in (self.image, drawn)]
        key = [(f"{name} {share:.1%}", self.colours[self.classes.index(name)]) for name, share in self.areas().items()]
        # two very wide pictures are put above each other
        return contact_sheet(pair, 2 if drawn.width <= 3 * drawn.height else 1, key=key)

    def save(
        self,
        folder: str | Path,
        stem: str | None = None,
        pictures: Sequence[str] = ("overlay", "labels", "palette"),
        strength: float = 0.5,
        about: dict[str, Any] | None = None,
    ) -> list[Path]:
        """Write STEM.overlay.png and so on for each of `pictures` (of FORMS), and STEM.json with the areas.

        The JSON is written last: where it exists, the others are complete. `about` is added to it.
        """
        unknown = [what for what in pictures if what not in FORMS]
        if unknown:
            raise OrdnetError(f"a parse cannot be saved as {unknown[0]!r}; choose of {', '.join(FORMS)}")
        base = Path(folder) / (stem or self.name)
        written = [file_of(base, what) for what in pictures]
        for what, path in zip(pictures, written, strict=True):
            if what == "probabilities":
                write_atomically(path, self._write_probabilities)
                continue
            if what == "coco":
                file = Path(str((about or {}).get("picture", self.name))).name
                write_text(path, json.dumps(coco_record(self.labels, self.classes, file)) + "\n")
                continue
            if what == "polygons":
                write_atomically(path, self._write_polygons)
                continue
            drawn = self._drawn(what, strength)
            write_atomically(path, lambda temporary, drawn=drawn: drawn.save(temporary, **QUICK_PNG))  # type: ignore[misc]
        record = {**(about or {}), "width": self.labels.shape[1], "height": self.labels.shape[0]}
        record |= {"areas": self.areas(), "files": written_of(base, written)}
        written.append(Path(f"{base}.json"))
        write_text(written[-1], json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        return written

    def _write_probabilities(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez_compressed(file, probabilities=self.probabilities(), classes=np.array(self.classes))

    def _write_polygons(self, path: Path) -> None:
        """Coordinates are pixels, counted from the upper left corner to the right and down."""
        library()
        from affine import Affine

        write_polygons(path, [(self.labels, Affine.identity())], self.classes, self.colours)

    def _drawn(self, what: str, strength: float) -> Image.Image:
        if what == "overlay":
            return self.overlay(strength)
        if what == "beside":
            return self.beside(strength)
        ids = Image.fromarray(self.labels)
        if what == "palette":
            ids.putpalette([value for colour in self.colours for value in colour])  # turns grey values into indices
        return ids


def file_of(base: Path, what: str) -> Path:
    """Where `Parse.save` writes one of FORMS."""
    return Path(f"{base}.{what}.{_ENDINGS.get(what, 'png')}")


def record_of(base: Path, files: Sequence[Path]) -> dict[str, Any] | None:
    """What an earlier call wrote into BASE.json about a picture or a video, once these `files` of it were complete;
    None where there was no such call, or it did not finish. Files in the way that no call wrote are an error."""
    path = Path(f"{base}.json")
    if path.exists():
        record = _content(path)
        if isinstance(record, dict) and "areas" in record:
            if not _unfinished(base).exists():
                refuse_foreign([file for file in files if file.exists() and file.name not in _listed(record, base)])
            return record
        if record is None and not path.stat().st_size:
            return None  # as a power cut leaves files behind: nobody loses anything
        files = [path]
    elif _unfinished(base).exists():
        return None
    refuse_foreign([file for file in files if file.exists()])
    return None


def written_of(base: Path, files: Sequence[Path] = ()) -> list[str]:
    """Names of these `files` and of all that earlier calls wrote of the same picture, for BASE.json to list."""
    record = _content(Path(f"{base}.json"))
    earlier = _listed(record, base) if isinstance(record, dict) and "areas" in record else []
    return sorted({*earlier, *(file.name for file in files)})


def is_result(path: Path) -> bool:
    """Whether an earlier call wrote this picture, or the folder of frames that it is in: BASE.json lists it, or that
    call was cut off while it wrote the results of BASE."""
    for each in (path, path.parent):
        if found := _RESULT.fullmatch(each.name):
            base = each.with_name(found["base"])
            if each.name in written_of(base) or _unfinished(base).exists():
                return True
    return False


def _listed(record: dict[str, Any], base: Path) -> list[str]:
    """What a record says was written; of records before there were lists, whatever a call may have written."""
    names = record.get("files")
    if isinstance(names, list):
        return [name for name in names if isinstance(name, str)]
    return [file.name for file in base.parent.glob(f"{glob.escape(base.name)}.*")]


def _content(path: Path) -> Any:
    """What a JSON file holds; None where it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):  # an OrdnetError too
        return json.loads(regular_file(path).read_text(encoding="utf-8"))
    return None


def refuse_foreign(files: Sequence[Path]) -> None:
    if files:
        raise OrdnetError(
            f"{files[0]} is in the way: no earlier call wrote it; choose another --out, or --force to replace it"
        )


def refuse_one_name(out: Path, stems: Sequence[str]) -> None:
    """With COCO JSON, a file of one picture may have the name of another's, or of the file for all pictures."""
    records = {Path(f"{out / stem}.json"): stem for stem in stems}
    for file in (out / "coco.json", *(file_of(out / stem, "coco") for stem in stems)):
        if file in records:
            raise OrdnetError(
                f"--save coco: {file.name} would hold masks and also what is said of the picture {records[file]}: "
                f"rename that picture, or give it a command and an --out of its own without coco"
            )


@contextmanager
def replacing(base: Path, files: Sequence[Path]) -> Iterator[None]:
    """Mark BASE as unfinished while its `files` and BASE.json are written, so that a later call knows, if this one is
    cut off, that they are ours."""
    mark = _unfinished(base)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    try:
        yield
    except BaseException:
        if not any(file.exists() for file in files):
            mark.unlink(missing_ok=True)
        raise
    mark.unlink(missing_ok=True)


def _unfinished(base: Path) -> Path:
    return base.with_name(f".{base.name}.unfinished")


def probabilities_of(scores: np.ndarray) -> np.ndarray:
    """The softmax of scores (K, H, W) over the classes, as float16."""
    # in bands of rows: the steps of a softmax in float32 take several times the scores' memory
    result = np.empty(scores.shape, np.float16)
    for top in range(0, scores.shape[1], _BAND):
        band = scores[:, top : top + _BAND]
        powers = np.exp(band - band.max(axis=0))
        result[:, top : top + _BAND] = powers / powers.sum(axis=0)
    return result
