"""Several models on the same pictures, drawn like the paper's figure of results.

`Comparison` chooses the pictures and parses them with each model; `draw` makes the figure: a row per picture
with its truth, each model's parse, and on request the gate Attn_g.
"""

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import read_pair
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion
from ordnet.evaluation.evaluate import refuse_other_classes
from ordnet.inference.explain import Explainer
from ordnet.inference.onnx.parser import OnnxParser
from ordnet.inference.parser import Parser, load
from ordnet.picture.attention_map import tinted
from ordnet.picture.grid import Cell, ScaleBar, Size, cell_size, fitted, grid
from ordnet.picture.overlay import Colour, overlay
from ordnet.progress import OnProgress

"""How pictures are chosen: evenly spread over the split; where the models are wrong most; where they differ most."""
MOST_RANKED = 500
"""Pictures that are parsed to find the worst or the most different ones; of a larger split, evenly spread ones."""


@dataclass(frozen=True)
class Compared:
    """One picture, its truth and what each model made of it."""

    id: str
    pixels: np.ndarray
    """(H, W, 3) uint8."""
    truth: np.ndarray
    """Class ids (H, W) uint8."""
    results: list[np.ndarray]
    """Each model's class ids (H, W) uint8."""
    accuracies: list[float]
    """Each model's pixel accuracy here, 0 to 1; NaN if no pixel counts."""


class Comparison:
    """Models side by side on one split of a data set; all must have its classes."""

    def __init__(self, models: Sequence[str], data: str, split: str = "val") -> None:
        self.dataset = open_dataset(data, split)
        if not self.dataset.ids:
            raise OrdnetError(f"the {split} split of {data} is empty: there is nothing to compare")
        self.titles = titles(models)
        self.parsers = [load(model) for model in models]
        for model, parser in zip(models, self.parsers, strict=True):
            try:
                refuse_other_classes(parser.classes, self.dataset.classes.names)
            except OrdnetError as error:
                raise OrdnetError(f"{model} on {data}: {error}") from None

    def look(self, index: int) -> Compared:
        """Parse one picture with every model."""
        image, truth = read_pair(self.dataset, index)
        pixels = np.asarray(image)
        results = [parser(pixels).labels for parser in self.parsers]
        accuracies = []
        for labels in results:
            confusion = Confusion(len(self.dataset.classes))
            confusion.add(truth, labels)
            accuracies.append(confusion.pixel_accuracy())
        return Compared(self.dataset.ids[index], pixels, truth, results, accuracies)

    def find(self, ids: Sequence[str]) -> list[int]:
        """The indices of pictures by their ids, in the order asked for."""
        places = {key: place for place, key in enumerate(self.dataset.ids)}
        for key in ids:
            if key not in places:
                near = difflib.get_close_matches(key, places, 3, 0.4) or list(places)[:3]
                raise OrdnetError(
                    f"the {self.dataset.split} split of {self.dataset.name} has no picture {key!r}; "
                    f"there are {len(places):,}, such as {', '.join(near)}"
                )
        return [places[key] for key in dict.fromkeys(ids)]

    def pick(self, how: str, count: int, progress: OnProgress = lambda done, total: None) -> list[int]:
        """The indices of `count` pictures: `even` in their order, the others with the most striking first.

        `worst` goes by the models' mean pixel accuracy, `difference` by the distance between the best and the worst
        model's. Both parse up to MOST_RANKED pictures.
        """
        if how == "even":
            return spread(len(self.dataset.ids), count)
        if how == "difference" and len(self.parsers) < 2:
            raise OrdnetError("one model does not differ from itself: give two or more, or pick even or worst")
        seen = spread(len(self.dataset.ids), MOST_RANKED)
        striking: dict[int, float] = {}
        for done, index in enumerate(seen, 1):
            right = self.look(index).accuracies
            striking[index] = -sum(right) / len(right) if how == "worst" else max(right) - min(right)
            progress(done, len(seen))
        # NaN: nothing counts in that picture
        ranked = sorted((index for index in seen if striking[index] == striking[index]), key=lambda i: -striking[i])
        return ranked[:count]

    def gated(self) -> int:
        """The index of the first model that has a gate."""
        for place, parser in enumerate(self.parsers):
            if _has_gate(parser):
                return place
        raise OrdnetError(
            f"none of the models has a gate ({', '.join(self.titles)}): a gate is part of the reweighed long range; "
            "give a model of the variant ordnet or basic-sa-rlr as well"
        )

    def gate(self, pixels: np.ndarray, height: int, width: int) -> np.ndarray:
        """Attn_g of the first model that has one, for a picture (H, W, 3), sampled at (height, width)."""
        parser = self.parsers[self.gated()]
        assert isinstance(parser, Parser)
        explainer = Explainer(parser.net, pixels, parser.whole_up_to, parser.known_size)
        assert explainer.gate is not None
        return explainer.places.sample(explainer.gate, height, width)


def _has_gate(parser: Parser | OnnxParser) -> bool:
    return isinstance(parser, Parser) and parser.net.block.has_gate


def spread(total: int, count: int) -> list[int]:
    """`count` of 0 … total - 1, or all there are, at even distances."""
    count = min(total, count)
    return [(2 * place + 1) * total // (2 * count) for place in range(count)]


def titles(models: Sequence[str]) -> list[str]:
    """A short name for each model, no two alike: the file's, or the run folder's of best and last.safetensors."""
    paths = [Path(model).expanduser() for model in models]
    short = [path.parent.name if path.stem in ("best", "last") and path.parent.name else path.stem for path in paths]
    longer = [f"{path.parent.name}/{path.stem}" if path.parent.name else path.stem for path in paths]
    numbered = [f"{place}: {title}" for place, title in enumerate(longer, 1)]
    chosen = short
    for form in (longer, numbered):
        counts = Counter(chosen)
        chosen = [form[place] if counts[title] > 1 else title for place, title in enumerate(chosen)]
    return chosen


_GATE_COLUMN = 1


@dataclass(frozen=True)
class _DrawnRow:
    """A compared picture at the size it is drawn, which is small whatever its own."""

    cells: list[Cell]
    gate: np.ndarray | None
    photo: np.ndarray
    classes: set[int]


def draw(
    comparison: Comparison,
    chosen: Sequence[int],
    strength: float = 0.6,
    gate: bool = False,
    note: str = "",
    progress: OnProgress = lambda done, total: None,
) -> Image.Image:
    """The pictures with the indices `chosen`, in that order.

    `strength` of the colours goes from 0, the picture alone, to 1, the colours alone. With `gate`, Attn_g of the first
    model that has one is shown beside the picture; all rows share its scale.
    """
    columns = ["picture", *([f"gate of {comparison.titles[comparison.gated()]}"] if gate else []), "truth"]
    columns += comparison.titles
    cell = cell_size([comparison.dataset.image(index).size for index in chosen], len(columns))
    rows = []
    for done, index in enumerate(chosen, 1):
        rows.append(_row(comparison, comparison.look(index), cell, strength, gate))
        progress(done, len(chosen))
    bar = _add_gates(rows) if gate else None
    key = _key(comparison, set().union(*(row.classes for row in rows)))
    return grid([row.cells for row in rows], columns, cell[0], key, note, bar)


def _row(comparison: Comparison, seen: Compared, cell: Size, strength: float, gate: bool) -> _DrawnRow:
    photo, truth, *results = (fitted(array, cell) for array in (seen.pixels, seen.truth, *seen.results))
    colours = comparison.dataset.classes.colours
    cells = [Cell(photo, seen.id, strong=False), Cell(overlay(photo, truth, colours, strength))]
    figures = ["–" if np.isnan(accuracy) else f"{accuracy:.1%}" for accuracy in seen.accuracies]
    best = figures[int(np.argmax(seen.accuracies))]
    for labels, figure in zip(results, figures, strict=True):
        cells.append(Cell(overlay(photo, labels, colours, strength), figure, strong=figure == best))
    present = {int(class_id) for array in (seen.truth, *seen.results) for class_id in np.unique(array)}
    values = comparison.gate(seen.pixels, *photo.shape[:2]) if gate else None
    return _DrawnRow(cells, values, photo, present)


def _add_gates(rows: Sequence[_DrawnRow]) -> ScaleBar:
    """Insert the column of Attn_g, drawn on the scale from the least to the largest value of all rows."""
    maps = [row.gate for row in rows if row.gate is not None]
    low, high = min(float(values.min()) for values in maps), max(float(values.max()) for values in maps)
    for row, values in zip(rows, maps, strict=True):
        row.cells.insert(_GATE_COLUMN, Cell(tinted(row.photo, values, low, high)))
    return ScaleBar(_GATE_COLUMN, low, high)


def _key(comparison: Comparison, present: set[int]) -> list[tuple[str, Colour | None]]:
    classes = comparison.dataset.classes
    key: list[tuple[str, Colour | None]] = [
        (name, colour)
        for class_id, (name, colour) in enumerate(zip(classes.names, classes.colours, strict=True))
        if class_id in present
    ]
    ignored: list[tuple[str, Colour | None]] = [("ignored", None)] if max(present) >= len(classes) else []
    return key + ignored
