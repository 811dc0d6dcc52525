"""Folders of thin cracks, about one per cent of the pixels: python scripts/crack_sets.py FOLDER [SET …]

Four sets of 120 pictures each, drawn from seeds, so that what finds cracks in one is not made for that one alone.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

PICTURES = 120
_STEP = 6
"""Pixels between two points of a crack."""


@dataclass(frozen=True)
class Cracks:
    width: int
    height: int
    lines: tuple[int, int]
    """The narrowest and the widest crack, in pixels."""
    ground: str
    contrast: tuple[int, int]
    """What a crack adds to grey values of 0..255: below zero it is dark."""
    without: float
    """The share of pictures that have none."""
    share: float
    """About what a crack covers of the other pictures."""


SETS = {
    "a": Cracks(256, 256, (2, 3), "noise", (-55, -35), 0, 0.008),
    "b": Cracks(512, 384, (3, 5), "bricks", (30, 60), 0.25, 0.012),
    "c": Cracks(512, 512, (2, 4), "speckle", (-50, -30), 0.3, 0.012),
    "d": Cracks(400, 300, (2, 5), "bricks", (-70, -40), 0.1, 0.009),
}


def write(name: str, folder: Path) -> float:
    """Write the set as `folder:` reads it; the share of the pixels that are crack."""
    cracks = SETS[name]
    rng = np.random.default_rng(ord(name))
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    covered = []
    for index in range(PICTURES):
        image, label = _drawn(cracks, rng)
        Image.fromarray(image).save(folder / "images" / f"{index:03}.jpg", quality=90)
        Image.fromarray(label).save(folder / "labels" / f"{index:03}.png")
        covered.append(label.mean())
    (folder / "classes.txt").write_text("ground\ncrack\n")
    return float(np.mean(covered))


def _drawn(cracks: Cracks, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A picture (H, W, 3) and its classes (H, W)."""
    colour = rng.uniform(90, 150) + rng.normal(0, 10, 3)
    ground = rng.normal(0, 6, (cracks.height, cracks.width))
    for layer in _layers(cracks, rng):
        ground += layer
    label = np.zeros((cracks.height, cracks.width), np.uint8)
    if rng.random() >= cracks.without:
        label = _cracked(cracks, rng)
    soft = np.asarray(Image.fromarray(label * 255).filter(ImageFilter.GaussianBlur(0.6))) / 255
    image = colour + ground[..., None] + rng.uniform(*cracks.contrast) * soft[..., None]
    image = image + rng.normal(0, 5, image.shape)
    return np.clip(image, 0, 255).astype(np.uint8), label


def _layers(cracks: Cracks, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """What lies below the cracks: noise of several sizes, bricks with their joints, or specks."""
    height, width = cracks.height, cracks.width
    if cracks.ground == "noise":
        for cells, strength in ((4, 14), (12, 12), (48, 12)):
            yield _noise(rng, cells, cells, strength, width, height)
        return
    canvas = Image.new("F", (width, height), 0)
    draw = ImageDraw.Draw(canvas)
    if cracks.ground == "bricks":
        high, wide = int(rng.integers(30, 60)), int(rng.integers(70, 130))
        for top in range(0, height, high):
            for left in range(-(top // high % 2 * wide // 2), width, wide):
                draw.rectangle((left, top, left + wide - 4, top + high - 4), fill=float(rng.normal(18, 7)))
        yield np.asarray(canvas)
        yield _noise(rng, height // 8, width // 8, 8, width, height)
        return
    for _ in range(height * width // 300):
        x, y, radius = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(0.7, 3)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=float(rng.normal(0, 25)))
    yield np.asarray(canvas)


def _noise(rng: np.random.Generator, rows: int, columns: int, strength: float, width: int, height: int) -> np.ndarray:
    coarse = Image.fromarray(rng.normal(0, strength, (rows, columns)).astype(np.float32))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


def _cracked(cracks: Cracks, rng: np.random.Generator) -> np.ndarray:
    """Wandering lines from the left or the upper edge, until they cover enough."""
    height, width = cracks.height, cracks.width
    label = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(label)
    while True:
        line = int(rng.integers(cracks.lines[0], cracks.lines[1] + 1))
        if rng.random() < 0.5:
            x, y, angle = 0.0, rng.uniform(0, height), rng.normal(0, 0.4)
        else:
            x, y, angle = rng.uniform(0, width), 0.0, np.pi / 2 + rng.normal(0, 0.4)
        points = [(x, y)]
        for _ in range(int(rng.uniform(0.3, 1.2) * max(height, width) / _STEP)):
            angle += rng.normal(0, 0.25)
            x, y = x + _STEP * np.cos(angle), y + _STEP * np.sin(angle)
            points.append((x, y))
        draw.line(points, fill=1, width=line)
        if np.asarray(label).mean() > cracks.share * rng.uniform(0.6, 1.2):
            return np.array(label)


if __name__ == "__main__":
    for name in sys.argv[2:] or SETS:
        print(f"{name}: {write(name, Path(sys.argv[1]) / name):.2%} of the pixels are crack")
