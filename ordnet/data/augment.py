"""Random scaling, cropping, flipping and colour changes for training.

Image and label always move together. Scaling and cropping are one step, so that only the pixels of the crop are
computed. All randomness is a pure function of (seed, epoch, index), see `generator`: a run can resume anywhere, with
any number of workers.
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance

from ordnet.config import DataConfig
from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError


@dataclass(frozen=True)
class Window:
    """A picture of `width` x `height` is scaled to `to_width` x `to_height`; from there a window is cut.

    The window starts at (left, top) and ends at the crop's or the scaled picture's edge, whichever comes first.
    """

    width: int
    height: int
    to_width: int
    to_height: int
    left: int
    top: int
    crop: int

    @property
    def columns(self) -> int:
        return min(self.crop, self.to_width - self.left)

    @property
    def rows(self) -> int:
        return min(self.crop, self.to_height - self.top)


def fit_long_side(
    image: Image.Image, label: np.ndarray | None, long_side: int | None
) -> tuple[Image.Image, np.ndarray | None]:
    """Image and label shrunk alike so that the longer side is `long_side`; untouched where it is not longer, or None.

    The image's pixels are averaged (antialiased bicubic); each pixel of the label is the class at its centre.
    """
    width, height = image.size
    if long_side is None or max(width, height) <= long_side:
        return image, label
    # halves are rounded up, in whole numbers, so that image and label and every machine agree
    to_width, to_height = (
        max(1, (2 * side * long_side + max(image.size)) // (2 * max(image.size))) for side in image.size
    )
    shrunk = image.resize((to_width, to_height), Image.Resampling.BICUBIC, reducing_gap=3.0)
    if label is None:
        return shrunk, None
    return shrunk, cut_label(label, Window(width, height, to_width, to_height, 0, 0, max(to_width, to_height)))


def generator(seed: int, epoch: int, index: int, turn: int = 0) -> np.random.Generator:
    """The randomness of one sample in one epoch; `turn` counts how often the sample came before in that epoch."""
    # the 1 keeps later turns apart from the other streams that are made of a seed, an epoch and an index
    return np.random.default_rng((seed, epoch, index, 1, turn) if turn else (seed, epoch, index))


def augment(
    image: Image.Image, label: np.ndarray, rng: np.random.Generator, crop: int, settings: DataConfig
) -> tuple[np.ndarray, np.ndarray]:
    """RGB image and class ids (H, W) → image (crop, crop, 3) and class ids (crop, crop), both uint8.

    Where the scaled picture is smaller than the crop, the rest (right and below) is black and IGNORE.
    """
    if label.shape != (image.height, image.width):
        raise OrdnetError(f"the image is {image.width}x{image.height}, its label {label.shape[1]}x{label.shape[0]}")
    window = random_window(image.width, image.height, rng, crop, settings)
    flip = bool(rng.random() < 0.5) and settings.flip
    cut = cut_image(image, window)
    if settings.jitter:
        cut = _jittered(cut, rng.uniform(1 - settings.jitter, 1 + settings.jitter, 3))
    classes = cut_label(label, window)
    if flip:
        cut, classes = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT), classes[:, ::-1]
    return _padded(np.asarray(cut), crop, 0), _padded(classes, crop, IGNORE)


def random_window(width: int, height: int, rng: np.random.Generator, crop: int, settings: DataConfig) -> Window:
    """A random scale and place, from exactly three draws."""
    low, high = settings.scale
    if settings.base_size is None:
        factor = rng.uniform(low, high)
        to_width, to_height = max(1, round(width * factor)), max(1, round(height * factor))
    else:
        # EncNet: the long side is a random integer, the short side follows
        to_long = max(1, int(rng.integers(int(settings.base_size * low), int(settings.base_size * high) + 1)))
        to_short = max(1, int(min(width, height) * to_long / max(width, height) + 0.5))
        to_width, to_height = (to_long, to_short) if width > height else (to_short, to_long)
    left = int(rng.integers(max(0, to_width - crop) + 1))
    top = int(rng.integers(max(0, to_height - crop) + 1))
    return Window(width, height, to_width, to_height, left, top, crop)


def cut_image(image: Image.Image, window: Window) -> Image.Image:
    """Bilinear, smoothed when shrinking. The same pixels as scaling everything and then cropping."""
    x, y = window.width / window.to_width, window.height / window.to_height
    right, bottom = window.left + window.columns, window.top + window.rows
    # rounding must not push the box over the picture's edge
    box = (window.left * x, window.top * y, min(right * x, window.width), min(bottom * y, window.height))
    return image.resize((window.columns, window.rows), Image.Resampling.BILINEAR, box=box)


def cut_label(label: np.ndarray, window: Window) -> np.ndarray:
    """The class at the centre of each pixel, in integer arithmetic, so that it cannot drift against the image."""
    rows = (2 * np.arange(window.top, window.top + window.rows) + 1) * window.height // (2 * window.to_height)
    columns = (2 * np.arange(window.left, window.left + window.columns) + 1) * window.width // (2 * window.to_width)
    # two simple look-ups take a third of the time of one over both axes
    return label[rows].take(columns, axis=1)


def _padded(pixels: np.ndarray, crop: int, value: int) -> np.ndarray:
    rows, columns = pixels.shape[:2]
    if rows == columns == crop:
        return np.array(pixels, order="C")
    canvas = np.full((crop, crop, *pixels.shape[2:]), value, np.uint8)
    canvas[:rows, :columns] = pixels
    return canvas


def _jittered(image: Image.Image, factors: np.ndarray) -> Image.Image:
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for enhancer, factor in zip(enhancers, factors, strict=True):
        image = enhancer(image).enhance(float(factor))
    return image
