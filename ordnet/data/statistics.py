"""Class frequencies of a scanned split, and the class weights that balance them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ordnet.data.labels import IGNORE
from ordnet.data.scan import Scan


def class_weights(found: Scan, count: int) -> list[float]:
    """Median-frequency balancing, in class id order.

    A class's frequency is its share of the pixels that count, over the pictures it occurs in. Its weight is the median
    of all frequencies divided by its own. Classes that never occur get 1, which is never used.
    """
    pixels, around = found.pixels[:count], found.around[:count]
    frequencies = np.divide(pixels, around, out=np.zeros(count), where=around > 0)
    present = frequencies > 0
    if not present.any():
        return [1.0] * count
    weights = np.ones(count)
    weights[present] = np.median(frequencies[present]) / frequencies[present]
    return [float(f"{weight:.4g}") for weight in weights]


def summary(found: Scan, names: Sequence[str]) -> dict[str, Any]:
    """Everything `ordnet data stats` prints, as plain values."""
    counting = int(found.pixels[:IGNORE].sum())
    weights = class_weights(found, len(names))
    sides = np.array([size for size, times in sorted(found.sizes.items()) for _ in range(times)]).reshape(-1, 2)
    return {
        "images": found.sizes.total(),
        "pixels": int(found.pixels.sum()),
        "ignored_pixels": int(found.pixels[IGNORE]),
        "classes": [
            {
                "name": name,
                "pixels": int(found.pixels[class_id]),
                "share": int(found.pixels[class_id]) / max(counting, 1),
                "images": int(found.images[class_id]),
                "weight": weights[class_id],
            }
            for class_id, name in enumerate(names)
        ],
        "width": _spread(sides[:, 0]),
        "height": _spread(sides[:, 1]),
        "commonest_sizes": [{"width": w, "height": h, "images": n} for (w, h), n in found.sizes.most_common(5)],
        "class_weights": weights,
        "class_weights_rule": "median-frequency balancing",
    }


def _spread(sides: np.ndarray) -> dict[str, float] | None:
    if sides.size == 0:
        return None
    return {"min": int(sides.min()), "median": float(np.median(sides)), "max": int(sides.max())}
