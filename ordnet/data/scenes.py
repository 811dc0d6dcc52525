"""Generated landscapes in which every class needs context of a known range; drawn on demand, nothing to download.

Short: sky, grounds, houses and trees have their own look. Middle: the same vehicle is a boat, a car or a tractor. The
paved yard around it tells nothing; the water, road or grass around the yard, in the same quarter of the picture, does.
The other quarters have grounds of their own. Long: the same pale ground is sand or snow. Palms or pines tell which,
across the picture in another quarter.

Every part draws from a random stream of its own, so no choice of class can leave a trace in what another part draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from ordnet.data import scene_drawing as drawing
from ordnet.data.labels import Classes, identity_rule
from ordnet.data.scene_drawing import SIDE, Canvas, block, everywhere, planes
from ordnet.errors import OrdnetError

CLASSES = Classes(
    names=(
        *("sky", "building", "palm", "pine", "grass", "water", "road", "pavement"),
        *("tractor", "boat", "car", "sand", "snow"),
    ),
    colours=(
        *((135, 190, 235), (160, 82, 72), (70, 145, 20), (20, 85, 70)),
        *((140, 200, 90), (50, 110, 190), (90, 90, 100), (200, 170, 150)),
        *((235, 140, 30), (200, 40, 60), (130, 60, 180), (240, 215, 120), (225, 235, 250)),
    ),
    ranges=("short",) * 8 + ("middle",) * 3 + ("long",) * 2,
)
SKY, BUILDING, PALM, PINE, GRASS, WATER, ROAD, PAVEMENT, TRACTOR, BOAT, CAR, SAND, SNOW = range(len(CLASSES))

CLEARANCE = 21
"""Units between an ambiguous thing and whatever tells its class: a picture of 128 pixels has one pixel per unit, the
`tiny` backbone and its head see 15 pixels to each side, and upsampling positions to pixels mixes in up to 6 more."""

HALF = SIDE // 2
_GROUNDS = ((GRASS, drawing.grass), (WATER, drawing.water), (ROAD, drawing.road))
_VEHICLES = (TRACTOR, BOAT, CAR)
_SEED = 20
_SPLITS = {"train": (0, 2000), "val": (1, 256), "test": (2, 256)}
_SIZES = (128, 512)


@dataclass(frozen=True)
class Kinds:
    """The choices that decide ambiguous classes. They decide nothing else."""

    left: int
    """Ground and vehicle of the lower left quarter: 0 grass, tractor; 1 water, boat; 2 road, car."""
    right: int
    """The same for the lower right quarter."""
    far: int
    """The ground of the upper half: contradicts or agrees with the others by chance."""
    pale: int
    """0 palm and sand, 1 pine and snow."""


class Scenes:
    """One split. Picture i of a split is always the same, wherever and in whatever order it is drawn."""

    name = "scenes"
    classes = CLASSES
    rule = identity_rule(len(CLASSES))

    def __init__(self, split: str = "train", size: int = SIDE) -> None:
        if split not in _SPLITS:
            raise OrdnetError(f"scenes has no split {split!r}: there are {', '.join(_SPLITS)}")
        self.split = split
        self.size = size
        self._stream, count = _SPLITS[split]
        self.ids: Sequence[str] = [f"{split}-{index:04d}" for index in range(count)]

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(_drawn(self._stream, index, self.size)[0])

    def label(self, index: int) -> np.ndarray:
        return _drawn(self._stream, index, self.size)[1].copy()

    def files(self, index: int) -> tuple[str, str]:
        name = f"generated scene {self.ids[index]}"
        return name, f"label of {name}"


def open_split(path: str | None, split: str) -> Scenes:
    """`scenes`, or `scenes:256` for pictures of 256 x 256 pixels."""
    if path is None:
        return Scenes(split)
    if not path.isdecimal() or not _SIZES[0] <= int(path) <= _SIZES[1]:
        raise OrdnetError(
            f"scenes:{path}: scenes are generated and have no folder; expected scenes, "
            f"or scenes:SIZE with a size from {_SIZES[0]} to {_SIZES[1]} pixels"
        )
    return Scenes(split, int(path))


@lru_cache(maxsize=2)
def _drawn(stream: int, index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cached, because image and label are asked for one after the other."""
    return draw(stream, index, size)


def draw(stream: int, index: int, size: int = SIDE, *, kinds: Kinds | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Image (size, size, 3) and class ids (size, size), uint8. `kinds` overrides the scene's own choices."""
    chosen, light, *parts = (np.random.default_rng((_SEED, stream, index, part)) for part in range(7))
    own = Kinds(*(int(kind) for kind in chosen.integers((3, 3, 3, 2))))
    kinds = kinds or own
    canvas = Canvas(size, (2 * light.random((size, size), dtype=np.float32) - 1))
    _far_half(canvas, kinds, parts[0])
    _vehicle_quarter(canvas, kinds.left, False, parts[1])
    _vehicle_quarter(canvas, kinds.right, True, parts[2])
    _paths(canvas, parts[3])
    tone = light.uniform(0.95, 1.04) * light.uniform(0.99, 1.01, 3)
    image = np.clip(canvas.image * planes(tone) + 0.5, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(image.transpose(1, 2, 0)), canvas.label


def _far_half(canvas: Canvas, kinds: Kinds, rng: np.random.Generator) -> None:
    """Sky, houses on the horizon, the pale ground on one side and the grove that names it on the other."""
    mirrored = rng.random() < 0.5
    horizon, edge = rng.uniform(19, 23), rng.uniform(42, 48)
    waves, phases = rng.uniform(0.06, 0.14, 2), rng.uniform(0, 6, 2)
    class_id, texture = _GROUNDS[kinds.far]
    canvas.paint(everywhere, drawing.sky, SKY, (0, 0, 30, SIDE))
    for x in rng.uniform(0, SIDE, rng.integers(1, 4)):
        drawing.cloud(canvas, rng.uniform(4, 9), x, SKY)

    def land(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        return horizon + 1.5 * np.sin(waves[0] * x + phases[0]) - y

    def pale_land(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        from_side = SIDE - x if mirrored else x
        return np.maximum(land(y, x), from_side - edge - 2 * np.sin(3 * waves[1] * y + phases[1]))

    canvas.paint(land, texture, class_id, (15, 0, HALF, SIDE))
    pale_side = (0, HALF, HALF, SIDE) if mirrored else (0, 0, HALF, HALF)
    canvas.paint(pale_land, drawing.pale, SAND + kinds.pale, pale_side)
    for slot in rng.permutation(5)[: rng.integers(2, 5)]:
        drawing.house(canvas, horizon + rng.uniform(3, 6), 2 + 25 * slot + rng.uniform(0, 3), BUILDING, rng)
    tree = (drawing.palm, drawing.pine)[kinds.pale]
    _grove(canvas, tree, PALM + kinds.pale, mirrored, rng)


def _grove(canvas: Canvas, tree: drawing.Tree, class_id: int, mirrored: bool, rng: np.random.Generator) -> None:
    """Four trees, each in a small planter, the last two in front of the others."""
    places = np.array((94, 111, 88.5, 103)) + rng.uniform(-1, 1, 4)
    for place, bottom in zip(places, (*rng.uniform(49, 52, 2), *rng.uniform(56, 58, 2)), strict=True):
        middle = SIDE - place if mirrored else place
        planter = (bottom - 3, middle - 6, bottom + 3, middle + 6)
        canvas.paint(drawing.disc(bottom, middle, 5.5, 2.4), drawing.pavement, PAVEMENT, planter)
        tree(canvas, bottom, middle, class_id)


def _vehicle_quarter(canvas: Canvas, kind: int, on_right: bool, rng: np.random.Generator) -> None:
    """A ground, a yard so wide that the backbone does not see past it from the vehicle, and the vehicle."""
    class_id, texture = _GROUNDS[kind]
    offset = HALF if on_right else 0
    quarter = (HALF, offset, SIDE, offset + HALF)
    canvas.paint(everywhere, texture, class_id, quarter)
    top = rng.uniform(HALF + CLEARANCE + 14, SIDE - drawing.VEHICLE_HEIGHT - 2)
    left = rng.uniform(2, HALF - CLEARANCE - drawing.VEHICLE_WIDTH)
    if on_right:
        left = SIDE - left - drawing.VEHICLE_WIDTH
    # the extra width outweighs the rounded corners; where only a sliver of ground would be left, the yard covers it
    margin = CLEARANCE + 2
    yard_left, yard_right = left - margin, left + drawing.VEHICLE_WIDTH + margin
    yard_left = yard_left if yard_left > offset + 7 else offset - 9
    yard_right = yard_right if yard_right < offset + HALF - 7 else offset + HALF + 9
    yard = block(top - margin, yard_left, SIDE + 9, yard_right, 5)
    canvas.paint(yard, drawing.pavement, PAVEMENT, quarter)
    drawing.vehicle(canvas, top, left, _VEHICLES[kind], rng)


def _paths(canvas: Canvas, rng: np.random.Generator) -> None:
    """Footpaths between the quarters, so that no two telling grounds touch."""
    waves, phases = rng.uniform(0.1, 0.2, 2), rng.uniform(0, 6, 2)
    canvas.paint(
        lambda y, x: np.abs(y - HALF - np.sin(waves[0] * x + phases[0])) - 2.2,
        drawing.pavement,
        PAVEMENT,
        (HALF - 5, 0, HALF + 5, SIDE),
    )
    canvas.paint(
        lambda y, x: np.abs(x - HALF - np.sin(waves[1] * y + phases[1])) - 2.2,
        drawing.pavement,
        PAVEMENT,
        (HALF, HALF - 5, SIDE, HALF + 5),
    )
