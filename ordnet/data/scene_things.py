"""What stands on the grounds of a generated scene: vehicles, trees, houses, clouds."""

from collections.abc import Callable

import numpy as np

from ordnet.data.scene_canvas import Canvas, Shape, Texture, Vector, block, disc, planes, wedge

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
