"""The Lovász-softmax loss in numpy and float64, from its definition: slow, and sharing nothing with the product."""

import numpy as np


def jaccard_loss(wrong: np.ndarray, own: np.ndarray) -> float:
    """The set function that is extended: 1 − IoU of a class when exactly the pixels `wrong` (P,) are mistaken."""
    union = (own | wrong).sum()
    return float(wrong.sum() / union) if union else 0.0


def extension(errors: np.ndarray, own: np.ndarray) -> tuple[float, np.ndarray]:
    """The Lovász extension of the Jaccard loss at errors (P,), and its gradient (P,).

    Turn pixels wrong one by one, the largest error first; each error counts as much as the loss grows by its pixel.
    """
    value, slope = 0.0, np.zeros(len(errors))
    wrong, before = np.zeros(len(errors), dtype=bool), 0.0
    for pixel in np.argsort(-errors, kind="stable"):
        wrong[pixel] = True
        now = jaccard_loss(wrong, own)
        slope[pixel] = now - before
        value += errors[pixel] * slope[pixel]
        before = now
    return value, slope


def lovasz_softmax(scores: np.ndarray, labels: np.ndarray, ignore: int = 255) -> tuple[float, np.ndarray]:
    """Loss and gradient by the scores, for scores (B, K, H, W) and labels (B, H, W)."""
    classes = scores.shape[1]
    exponentials = np.exp(scores - scores.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    rows = np.moveaxis(probabilities, 1, -1).reshape(-1, classes)
    flat = labels.reshape(-1)
    counted = np.flatnonzero(flat != ignore)
    present = sorted(set(flat[counted].tolist()))
    value, slopes = 0.0, np.zeros_like(rows)
    for class_id in present:
        own = flat[counted] == class_id
        errors = np.where(own, 1 - rows[counted, class_id], rows[counted, class_id])
        part, slope = extension(errors, own)
        value += part / len(present)
        slopes[counted, class_id] = np.where(own, -slope, slope) / len(present)
    gradient = rows * (slopes - (rows * slopes).sum(1, keepdims=True))
    shape = (scores.shape[0], *scores.shape[2:], classes)
    return value, np.moveaxis(gradient.reshape(shape), -1, 1)
