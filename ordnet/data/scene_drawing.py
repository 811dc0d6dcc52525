"""Drawing generated scenes with numpy: a canvas, ground textures, and the things that stand on the ground.

All coordinates are in scene units: a picture is 128 units wide, however many pixels it has.
"""

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


VEHICLE_HEIGHT, VEHICLE_WIDTH = 17, 24
TREE_HEIGHT, TREE_HALF_WIDTH = 30, 12

Tree = Callable[[Canvas, float, float, int], None]
"""A way to paint a tree by its bottom, middle and class."""

_PAINTS: tuple[Vector, ...] = ((206, 62, 56), (240, 140, 40), (124, 78, 168), (236, 196, 52), (214, 84, 140))
_WALLS: tuple[Vector, ...] = ((172, 84, 68), (204, 146, 84), (126, 108, 132), (150, 96, 84), (188, 118, 92))
_ROOFS: tuple[Vector, ...] = ((108, 48, 44), (84, 62, 70), (130, 66, 44))
_WOOD, _FRONDS, _NEEDLES, _FROST = (112, 78, 52), (178, 190, 40), (16, 76, 78), (226, 242, 250)


def vehicle(canvas: Canvas, top: float, left: float, class_id: int, rng: np.random.Generator) -> None:
    """A hull, a cabin, a chimney and two round things below, wheels or fenders: boat, car and tractor alike."""
    paint = _PAINTS[rng.integers(len(_PAINTS))]
    light = (0.5 * paint[0] + 120, 0.5 * paint[1] + 120, 0.5 * paint[2] + 120)
    forward = 1 if rng.random() < 0.5 else -1
    bottom, right, middle = top + VEHICLE_HEIGHT, left + VEHICLE_WIDTH, left + VEHICLE_WIDTH / 2
    box = (top, left, bottom, right)
    cabin, chimney = middle - 3 * forward, middle + 6 * forward

    def cabin_paint(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
        from_middle = np.abs(x - cabin)
        pane = (y > top + 2) & (y < top + 7) & (from_middle > 0.7) & (from_middle < 5)
        return np.where(pane, planes((206, 230, 240)), planes(paint))

    def hull_paint(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
        stripe = (y > top + 9) & (y < top + 10.6) & (x > 0)
        return np.where(stripe, planes(light), planes(paint))

    canvas.paint(block(top + 2, chimney - 1.5, top + 9, chimney + 1.5), (70, 66, 74), class_id, box)
    canvas.paint(block(top, cabin - 6.5, top + 10, cabin + 6.5, 2), cabin_paint, class_id, box)
    canvas.paint(wedge(top + 8, bottom - 1.5, middle, 12, 9.5), hull_paint, class_id, box)
    for wheel in (middle - 6, middle + 6):
        canvas.paint(disc(bottom - 3, wheel, 3), _wheel(bottom - 3, wheel), class_id, box)


def _wheel(middle_y: float, middle_x: float) -> Texture:
    hub = disc(middle_y, middle_x, 1.3)
    return lambda y, x, _: np.where(hub(y, x) < 0, planes((190, 190, 196)), planes((40, 38, 44)))


def palm(canvas: Canvas, bottom: float, middle: float, class_id: int) -> None:
    top, box = bottom - TREE_HEIGHT, _tree_box(bottom, middle)
    near = (top, middle - 5, bottom, middle + 5)

    def crown_paint(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
        return planes(_FRONDS) * np.minimum(1.1 - 0.025 * (y - top), 1) + 8 * grain

    canvas.paint(wedge(top + 8, bottom, middle, 1.4, 2.2), _WOOD, class_id, near)
    canvas.paint(_crown(top + 7, middle), crown_paint, class_id, (top, box[1], top + 19, box[3]))
    # coconuts left and right
    canvas.paint(lambda y, x: np.hypot(y - top - 9, np.abs(x - middle) - 2) - 2, (226, 96, 48), class_id, near)


def _crown(root_y: float, root_x: float) -> Shape:
    """Six leaves that hang from the root."""
    reach = np.array((-7.5, 7.5, -6, 6, -5, 5), np.float32)[:, None, None]
    drop = np.array((5, 5, 9, 9, 2.5, 2.5), np.float32)[:, None, None]
    tilt = np.arctan2(drop - 3.5, reach)
    cos, sin = np.cos(tilt), np.sin(tilt)

    def shape(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        down, right = y - (root_y + drop - 5), x - (root_x + reach * 0.8)
        leaves = np.hypot(right * cos + down * sin, (down * cos - right * sin) * 2.2)
        return leaves.min(axis=0) - 6

    return shape


def pine(canvas: Canvas, bottom: float, middle: float, class_id: int) -> None:
    top, box = bottom - TREE_HEIGHT, _tree_box(bottom, middle)
    canvas.paint(block(bottom - 7, middle - 2, bottom, middle + 2), _WOOD, class_id, box)
    for level, (start, half) in enumerate(((14, 11), (7, 8.5), (0, 6))):
        tip = top + start
        tier = planes(_NEEDLES) * (0.85 + 0.15 * level)
        canvas.paint(
            wedge(tip, tip + 11, middle, 0, half), _frosted(tip, tier), class_id, (tip, box[1], tip + 12, box[3])
        )


def _frosted(tip: float, needles: np.ndarray) -> Texture:
    return lambda y, x, grain: np.where((y < tip + 3.5) & (x > 0), planes(_FROST), needles)


def _tree_box(bottom: float, middle: float) -> tuple[float, float, float, float]:
    return bottom - TREE_HEIGHT, middle - TREE_HALF_WIDTH, bottom, middle + TREE_HALF_WIDTH


def house(canvas: Canvas, bottom: float, left: float, class_id: int, rng: np.random.Generator) -> None:
    """14 to 22 wide, 11 or 16 high, flat or gabled, some windows lit."""
    width, height = int(rng.integers(3, 6)) * 4 + 2, int(rng.integers(2, 4)) * 5 + 1
    wall, roof = _WALLS[rng.integers(len(_WALLS))], _ROOFS[rng.integers(len(_ROOFS))]
    # colour by what a spot shows: 0 wall, 1 dark glass, 2 lit glass
    colours = np.array((wall, (50, 62, 84), (250, 220, 130)), np.float32).T
    shows = 1 + (rng.random((4, 8)) < 0.25)
    top, right, middle = bottom - height, left + width, left + width / 2

    def front(y: np.ndarray, x: np.ndarray, grain: np.ndarray) -> np.ndarray:
        down, along = y - top - 2, x - left - 2
        glass = (down % 5 < 3) & (along % 4 < 2) & (down > 0) & (along > 0) & (x < right - 2)
        window = shows[(down // 5).astype(int) % 4, (along // 4).astype(int) % 8]
        return colours[:, window * glass]

    box = (top - 6, left - 1, bottom, right + 1)
    canvas.paint(block(top, left, bottom, right), front, class_id, box)
    if rng.random() < 0.6:
        canvas.paint(wedge(top - 5, top + 1, middle, width / 4, width / 2 + 1), roof, class_id, box)
    else:
        canvas.paint(block(top - 2, left - 1, top + 1, right + 1), roof, class_id, box)


def cloud(canvas: Canvas, middle_y: float, middle_x: float, class_id: int) -> None:
    puffs = (
        disc(middle_y, middle_x - 4, 3.2, 1.3),
        disc(middle_y - 1.5, middle_x, 4, 1.3),
        disc(middle_y, middle_x + 4.5, 3, 1.3),
    )
    box = (middle_y - 6, middle_x - 9, middle_y + 5, middle_x + 9)
    canvas.paint(lambda y, x: np.minimum.reduce([puff(y, x) for puff in puffs]), (246, 248, 250), class_id, box)
