"""How often two pixels share a class, inside patches of a label map and between them (the paper's Eq. 3–4)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError


@dataclass(frozen=True)
class Correlation:
    """The mean over many label maps, each cut into patches x patches parts that are ordered by rows."""

    patches: int
    matrix: np.ndarray
    """(patches², patches²), 0..1: the chance that a pixel of patch m and one of patch n have the same class.
    NaN where no label map had both patches."""
    images: int

    @property
    def intra(self) -> float:
        """Mean over the patches with themselves; NaN without any."""
        return _mean(np.diagonal(self.matrix))

    @property
    def inter(self) -> float:
        """Mean over pairs of different patches; NaN without any."""
        return _mean(self.matrix[~np.eye(len(self.matrix), dtype=bool)])


def correlate(labels: Iterable[np.ndarray], patches: Sequence[int]) -> list[Correlation]:
    """One `Correlation` for each number in `patches`, over class ids (H, W) that are looked at once.

    A patch of which every pixel is ignored (or that has no pixel) is left out of that label map's share of the mean.
    """
    if not patches or min(patches) < 1:
        raise OrdnetError(f"patches are counted along one side, 1 or more: got {list(patches)}")
    sums = [np.zeros((p * p, p * p)) for p in patches]
    counts = [np.zeros((p * p, p * p), dtype=np.int64) for p in patches]
    images = 0
    for label in labels:
        images += 1
        for matrix, total, count in zip(_matrices(label, patches), sums, counts, strict=True):
            known = ~np.isnan(matrix)
            total[known] += matrix[known]
            count += known
    means = [
        np.where(count > 0, total / np.maximum(count, 1), np.nan) for total, count in zip(sums, counts, strict=True)
    ]
    return [Correlation(p, mean, images) for p, mean in zip(patches, means, strict=True)]


def patch_correlation(histograms: np.ndarray) -> np.ndarray:
    """Eq. 3 of one label map, from its patches' class histograms: (patches², patches²), NaN where a patch is empty.

    Eq. 3 sums over pairs of pixels. Pairs that agree in class c number h_m(c) · h_n(c), with h a patch's class
    histogram, so that the sum over pairs is a product of histograms.
    """
    sizes = histograms.sum(axis=1, keepdims=True)
    shares = np.divide(histograms, sizes, out=np.full(histograms.shape, np.nan), where=sizes > 0)
    return shares @ shares.T


def patch_histograms(label: np.ndarray, patches: int) -> np.ndarray:
    """Pixels per class and patch (patches², 255), patches by rows, cut at i·H//patches; ignored pixels left out."""
    rows, columns = ([i * side // patches for i in range(patches + 1)] for side in label.shape)
    return np.stack(
        [
            np.bincount(label[rows[y] : rows[y + 1], columns[x] : columns[x + 1]].ravel(), minlength=256)[:IGNORE]
            for y in range(patches)
            for x in range(patches)
        ]
    )


def _matrices(label: np.ndarray, patches: Sequence[int]) -> list[np.ndarray]:
    """One correlation matrix for each number in `patches`. Where they divide, only the finest counts pixels."""
    counted: dict[int, np.ndarray] = {}
    for p in sorted(set(patches), reverse=True):
        finer = next((q for q in counted if q % p == 0), None)
        counted[p] = patch_histograms(label, p) if finer is None else _merged(counted[finer], finer, p)
    return [patch_correlation(counted[p]) for p in patches]


def _merged(histograms: np.ndarray, finer: int, patches: int) -> np.ndarray:
    """Histograms of finer² patches → of patches², which must divide them: then i·H//patches is a finer bound too."""
    step = finer // patches
    return histograms.reshape(patches, step, patches, step, -1).sum(axis=(1, 3)).reshape(patches**2, -1)


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")
