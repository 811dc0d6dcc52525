"""Thin dark cracks on a textured ground, about one per cent of the pixels: the usual recipe has to find them."""

import json

import numpy as np
import pytest
from PIL import Image

import ordnet

SIZE = 128


def write_cracks(path, count=120):
    (path / "images").mkdir(parents=True)
    (path / "labels").mkdir()
    rng = np.random.default_rng(0)
    shares = []
    for index in range(count):
        image, label = draw_crack(rng)
        shares.append(label.mean())
        Image.fromarray(image).save(path / "images" / f"{index:03}.png")
        Image.fromarray(label).save(path / "labels" / f"{index:03}.png")
    (path / "classes.txt").write_text("ground\ncrack\n")
    assert 0.005 < np.mean(shares) < 0.02
    return path


def draw_crack(rng):
    """A wandering line of one to three pixels, from left to right; noise of several sizes around it."""
    texture = rng.normal(0, 8, (SIZE, SIZE))
    for cells, strength in ((4, 12), (16, 14), (64, 10)):
        coarse = Image.fromarray(rng.normal(0, strength, (cells, cells)).astype(np.float32))
        texture += np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    label = np.zeros((SIZE, SIZE), np.uint8)
    x, y, angle = 0.0, rng.uniform(20, SIZE - 20), 0.0
    while x < SIZE and 0 <= y < SIZE:
        width = rng.choice([1, 1, 2, 3])
        row, column = int(y) - (width - 1) // 2, int(x)
        label[max(row, 0) : row + width, column] = 1
        angle = 0.95 * angle + rng.normal(0, 0.15)
        x, y = x + np.cos(angle), y + np.sin(angle)
    image = 115 + texture[..., None] + rng.normal(0, 8, 3) - rng.uniform(40, 60) * label[..., None]
    return np.clip(image, 0, 255).astype(np.uint8), label


@pytest.mark.timeout(1200)
def test_the_usual_recipe_finds_thin_cracks(tmp_path, monkeypatch):
    """Six epochs, with smaller crops; the backbone of a model that comes along stands in for ImageNet's."""
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))  # a mirror without anything in it
    folder = write_cracks(tmp_path / "cracks")
    changes = {"training.epochs": 6, "training.crop": SIZE, "data.workers": 0}
    run = ordnet.train("folder-default", f"folder:{folder}", tmp_path / "run", changes)
    records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    found = [record["per_class_iou"]["crack"] for record in records if record["event"] == "epoch"]
    assert max(found) >= 0.4, found
    assert found[-1] >= 0.35, found
