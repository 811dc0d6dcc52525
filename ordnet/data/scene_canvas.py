"""Painting with numpy: a canvas in scene units (a picture is 128 wide, whatever its pixels) and its ground textures."""

from collections.abc import Callable
from functools import cache

import numpy as np

SIDE = 128
"""Scene units along each side of a picture."""

Shape = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Coordinates (y, x) in units → signed distance in units, negative inside."""
Texture = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Coordinates (y, x) in units and grain, each (h, w) → colours (3, h, w) in 0..255."""
Box = tuple[float, float, float, float]
"""Top, left, bottom, right in units."""

Vector = tuple[float, float, float]


class Canvas:
    """A picture and its labels while they are painted."""

    def __init__(self, size: int, grain: np.ndarray) -> None:
        """`grain` (size, size) in -1..1 is the fine roughness of every texture."""
        self.size = size
        self.unit = size / SIDE
        """Pixels per unit."""
        # one plane per colour: numpy is slow where the innermost axis has three entries
        self.image = np.zeros((3, size, size), np.float32)
        self.label = np.zeros((size, size), np.uint8)
        self.grain = grain

    def paint(self, shape: Shape, colour: Vector | Texture, class_id: int, box: Box = (0, 0, SIDE, SIDE)) -> None:
        """Fill `shape` with smooth edges, within `box`."""
        top, left, bottom, right = (round(min(max(edge, 0), SIDE) * self.unit) for edge in box)
        if top >= bottom or left >= right:
            return
        here = ..., slice(top, bottom), slice(left, right)
        rows, columns = coordinates(self.size)
        y, x = rows[top:bottom], columns[:, left:right]
        # minimum and maximum take a third of the time of numpy's clip on small arrays
        cover = np.minimum(np.maximum(0.5 - shape(y, x) * self.unit, 0), 1)
        paint = colour(y, x, self.grain[here]) if callable(colour) else planes(colour)
        image = self.image[here]
        image += cover * (paint - image)
        np.copyto(self.label[here], class_id, where=cover > 0.5)


@cache
def coordinates(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixel centres in units: a column (size, 1) of y and a row (1, size) of x."""
    centres = ((np.arange(size) + 0.5) * SIDE / size).astype(np.float32)
    return centres[:, None], centres[None, :]


def everywhere(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.float32(-1) + 0 * y


def block(top: float, left: float, bottom: float, right: float, corner: float = 0) -> Shape:
    """A rectangle with rounded corners."""
    middle_y, middle_x = (top + bottom) / 2, (left + right) / 2
    half_y, half_x = (bottom - top) / 2 - corner, (right - left) / 2 - corner

    def shape(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        dy, dx = np.abs(y - middle_y) - half_y, np.abs(x - middle_x) - half_x
        if corner == 0:
            return np.maximum(dy, dx)
        return np.hypot(np.maximum(dy, 0), np.maximum(dx, 0)) + np.minimum(np.maximum(dy, dx), 0) - corner

    return shape


def disc(middle_y: float, middle_x: float, radius: float, flat: float = 1) -> Shape:
    """A circle, or with `flat` above 1 an ellipse wider than high."""
    return lambda y, x: np.hypot((y - middle_y) * flat, x - middle_x) - radius


def wedge(top: float, bottom: float, middle: float, half_top: float, half_bottom: float) -> Shape:
    """A trapezoid between two rows, as wide as given at its top and bottom."""
    slope = (half_bottom - half_top) / (bottom - top)

    def shape(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        side = np.abs(x - middle) - (half_top + slope * (y - top))
        return np.maximum(np.maximum(top - y, y - bottom), side / (1 + slope**2) ** 0.5)

    return shape


def _colours(tone: np.ndarray, base: Vector, tint: Vector = (1, 1, 1)) -> np.ndarray:
    """A base colour, lighter or darker by `tone` (h, w)."""
    return planes(base) + tone * planes(tint)


def planes(colour: Vector | np.ndarray) -> np.ndarray:
    """One colour as (3, 1, 1)."""
    return np.array(colour, np.float32)[:, None, None]


def grass(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
    blades = grain + np.roll(grain, 1, 0) + np.roll(grain, 2, 0)
    colours = _colours(9 * blades + 7 * np.sin(0.45 * y + 0.1 * x), (112, 162, 74), (1, 1, 0.6))
    return np.where(grain > 0.985, planes((250, 232, 150)), colours)  # flowers


def water(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
    waves = np.sin(0.95 * y + 1.8 * np.sin(0.13 * x))
    colours = _colours(13 * waves + 4 * grain, (62, 134, 188), (0.8, 1, 1))
    return np.where((waves > 0.8) & (grain > 0.55), planes((196, 226, 240)), colours)  # glints


def road(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
    colours = _colours(9 * grain, (86, 86, 96))
    lanes = (y % 10 > 4) & (y % 10 < 5.6) & (x % 9 < 5.4)
    return np.where(lanes, planes((232, 214, 150)), colours)


def pale(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
    """Dunes or drifts: nobody can tell from these alone."""
    drifts = np.sin(0.5 * y + 0.16 * x + 1.4 * np.sin(0.11 * x))
    return _colours(7 * drifts + 4 * grain, (234, 228, 214), (0.8, 0.9, 1.1))


def pavement(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
    joints = (y % 5 < 1) | ((x + 4 * (y // 5 % 2)) % 8 < 1)
    return _colours(6 * grain - 20 * joints, (190, 158, 138))


def sky(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
    near = np.minimum(y / 26, 1)
    return planes((104, 168, 226)) * (1 - near) + planes((206, 226, 238)) * near + 1.5 * grain
