"""A folder data set small enough to train on within a test, and the settings for it."""

from pathlib import Path

import numpy as np
from PIL import Image

from ordnet.config import Settings, override

CLASSES = ("sky", "ground", "thing")


def write_folder(path: Path, train: int = 12, val: int = 3, classes=CLASSES, size=(40, 32), most: int = 2) -> Path:
    """`most`: the highest class id that the labels have."""
    rng = np.random.default_rng(0)
    (path / "images").mkdir(parents=True)
    (path / "labels").mkdir()
    width, height = size
    for index in range(train + val):
        label = np.zeros((height, width), np.uint8)
        label[height // 2 :] = 1
        row, column = rng.integers(0, height - 8), rng.integers(0, width - 8)
        label[row : row + 8, column : column + 8] = 2
        label[0, 0] = 255
        label[label < 255] = np.minimum(label[label < 255], most)
        colours = np.array([(80, 120, 220), (90, 160, 60), (200, 60, 60)])[np.minimum(label, 2)]
        image = np.clip(colours + rng.normal(0, 12, colours.shape), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(path / "images" / f"{index:03}.png")
        Image.fromarray(label).save(path / "labels" / f"{index:03}.png")
    (path / "classes.txt").write_text("\n".join(classes) + "\n")
    ids = [f"{index:03}" for index in range(train + val)]
    (path / "train.txt").write_text("\n".join(ids[:train]) + "\n")
    (path / "val.txt").write_text("\n".join(ids[train:]) + "\n")
    return path


def small_settings(folder: Path, *changes: str) -> Settings:
    basic = [
        f"data.name=folder:{folder}", "data.workers=0", "model.backbone=tiny",
        "training.epochs=3", "training.batch_size=4", "training.crop=32", "training.rate=0.05", "training.head_rate=1",
    ]  # fmt: skip
    return override(Settings(), [*basic, *changes])
