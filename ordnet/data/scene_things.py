"""What stands on the grounds of a generated scene: vehicles, trees, houses, clouds."""

from collections.abc import Callable

import numpy as np

from ordnet.data.scene_canvas import Canvas, Texture, Vector, block, disc, planes, wedge

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
    top = bottom - TREE_HEIGHT
    canvas.paint(wedge(top + 8, bottom, middle, 1.4, 2.2), _WOOD, class_id, (top, middle - 3, bottom, middle + 3))
    for reach, drop in ((-7.5, 5), (7.5, 5), (-6, 9), (6, 9), (-5, 2.5), (5, 2.5)):
        _frond(canvas, top + 7, middle, reach, drop, class_id)
    for side in (-2, 2):
        canvas.paint(disc(top + 9, middle + side, 2), (226, 96, 48), class_id, (top, middle - 5, bottom, middle + 5))


def _frond(canvas: Canvas, root_y: float, root_x: float, reach: float, drop: float, class_id: int) -> None:
    """A leaf: half a moon that hangs from the root."""
    middle_y, middle_x = root_y + drop - 5, root_x + reach * 0.8
    tilt = np.arctan2(drop - 3.5, reach)
    cos, sin = np.cos(tilt), np.sin(tilt)

    def shape(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        along = (x - middle_x) * cos + (y - middle_y) * sin
        across = (y - middle_y) * cos - (x - middle_x) * sin
        return np.hypot(along, across * 2.2) - 6

    shade = 1.0 - 0.03 * drop
    colour = (_FRONDS[0] * shade, _FRONDS[1] * shade, _FRONDS[2] * shade)
    canvas.paint(shape, colour, class_id, _tree_box(root_y - 7 + TREE_HEIGHT, root_x))


def pine(canvas: Canvas, bottom: float, middle: float, class_id: int) -> None:
    top, box = bottom - TREE_HEIGHT, _tree_box(bottom, middle)
    canvas.paint(block(bottom - 7, middle - 2, bottom, middle + 2), _WOOD, class_id, box)
    for level, (start, half) in enumerate(((14, 11), (7, 8.5), (0, 6))):
        shade = 0.85 + 0.15 * level
        colour = (_NEEDLES[0] * shade, _NEEDLES[1] * shade, _NEEDLES[2] * shade)
        canvas.paint(wedge(top + start, top + start + 11, middle, 0, half), colour, class_id, box)
        canvas.paint(wedge(top + start, top + start + 3.5, middle, 0, half * 0.32), _FROST, class_id, box)


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
    for dy, dx, radius in ((0, -4, 3.2), (-1.5, 0, 4), (0, 4.5, 3)):
        y, x = middle_y + dy, middle_x + dx
        canvas.paint(disc(y, x, radius, 1.3), (246, 248, 250), class_id, (y - 5, x - 5, y + 5, x + 5))
