"""scripts/branch_worth.py: recalls that a region's size decides, and tables of a real network."""

import json

import numpy as np
import pytest
import torch

import ordnet
from ordnet.data.catalogue import open_dataset
from ordnet.data.labels import IGNORE
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint
from scripts.branch_worth import SIZES, main, region_recalls


def test_every_region_counts_once_whatever_its_size():
    truth = np.zeros((100, 100), np.uint8)
    truth[:5, :5] = 1  # 0.25 % of the picture
    truth[50:, 50:] = 1  # a quarter of it
    truth[0, 99] = 2  # too small to count
    truth[20:30, :40] = IGNORE
    labels = np.zeros_like(truth)
    labels[50:75, 50:] = 1  # half of the large region, nothing of the small one
    found = region_recalls(truth, labels)
    assert found["under 0.1 %"] == [] and found["1 to 10 %"] == []
    assert found["0.1 to 1 %"] == [0.0]
    assert sorted(found["over 10 %"]) == [0.5, 1.0]  # the ignored region is none


def _saved(path, variant):
    classes = open_dataset("scenes", "val").classes
    torch.manual_seed(0)
    net = ordnet.build(variant, classes=len(classes), backbone="tiny")
    checkpoint.save(path, net, classes.names, classes.colours)
    return path


def test_a_network_with_each_part_switched_off(tmp_path, monkeypatch, capsys):
    scenes = open_dataset("scenes", "val")
    monkeypatch.setattr("scripts.branch_worth.open_dataset", lambda *_: _First(scenes, 4))
    main([str(_saved(tmp_path / "net.safetensors", "ordnet")), "--data", "scenes", "--out", str(tmp_path / "worth")])
    plain = json.loads((tmp_path / "worth" / "table.json").read_text())
    assert list(plain) == ["whole", "middle", "long", "gate", "block"]
    for figures in plain.values():
        assert figures["images"] == 4 and list(figures["region_recall"]) == list(SIZES)
    assert "| mIoU |" in capsys.readouterr().out
    for name in ("pictures.png", "worth.png"):
        assert (tmp_path / "worth" / name).stat().st_size > 10_000


def test_a_network_without_a_block_has_nothing_to_switch_off(tmp_path, monkeypatch):
    scenes = open_dataset("scenes", "val")
    monkeypatch.setattr("scripts.branch_worth.open_dataset", lambda *_: _First(scenes, 1))
    path = _saved(tmp_path / "net.safetensors", "dilated-fcn")
    with pytest.raises(OrdnetError, match="nothing to switch off"):
        main([str(path), "--data", "scenes", "--out", str(tmp_path / "worth")])
    assert not (tmp_path / "worth").exists()


class _First:
    """The first few samples of a data set."""

    def __init__(self, dataset, count):
        self._dataset = dataset
        self.name, self.split, self.classes, self.rule = dataset.name, dataset.split, dataset.classes, dataset.rule
        self.ids = list(dataset.ids)[:count]
        self.image, self.label, self.files = dataset.image, dataset.label, dataset.files
