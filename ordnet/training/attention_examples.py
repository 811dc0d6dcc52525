"""Attention at two positions of one picture, for the report."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from ordnet.data.dataset import Dataset
from ordnet.data.labels import IGNORE
from ordnet.evaluation.extremes import Seen
from ordnet.inference.attention import Explainer, why_not
from ordnet.inference.prepare import for_inference
from ordnet.model.network import Network

_MOST = 4_000_000
"""Pixels beyond which a picture is looked at in a smaller copy."""


def attention_examples(net: Network, data: Dataset, best: Sequence[Seen]) -> list[tuple[Image.Image, str]]:
    """Drawings with captions; none for a network without attention, or where no picture was parsed."""
    if why_not(net) or not best:
        return []
    seen = best[0]
    pixels = np.asarray(data.image(seen.index))
    explainer = Explainer(for_inference(net), pixels, _MOST)
    shrunk = pixels.shape[0] / seen.truth.shape[0], pixels.shape[1] / seen.truth.shape[1]
    shown = []
    for class_id in _telling(seen.truth, data.classes.ranges):
        row, column = _inside(seen.truth == class_id)
        y, x = int((row + 0.5) * shrunk[0]), int((column + 0.5) * shrunk[1])
        place = f"{data.classes.names[class_id]} at x {x}, y {y} of {data.ids[seen.index]}"
        shown.append((explainer.at(x, y).draw(), f"What a position attends to: {place}."))
    return shown


def _telling(truth: np.ndarray, ranges: Sequence[str] | None) -> list[int]:
    """Two classes of the picture: one that needs middle and one that needs long range, else the largest."""
    counts = np.bincount(truth[truth != IGNORE], minlength=1)
    largest = [int(c) for c in np.argsort(-counts, kind="stable") if counts[c]]
    if ranges is None:
        return largest[:2]
    needed = [next((c for c in largest if ranges[c] == name), None) for name in ("middle", "long")]
    return list(dict.fromkeys([*(c for c in needed if c is not None), *largest]))[:2]


def _inside(where: np.ndarray) -> tuple[int, int]:
    """Row and column of the marked pixel nearest to the middle of all marked ones."""
    places = np.argwhere(where)
    distances = ((places - places.mean(axis=0)) ** 2).sum(axis=1)
    row, column = places[distances.argmin()]
    return int(row), int(column)
