"""scripts/gate_study.py: cells that can be compared, a flattened gate that is what it says, and a resumable folder."""

import json
from argparse import Namespace

import pytest
import torch
from PIL import Image

from ordnet.data.catalogue import open_dataset
from ordnet.model.omni_range import OmniRange
from scripts.gate_study import WAYS, main, network_of, with_flat_gate

TRAIN, VAL, STEPS = 6, 3, 4


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A few generated scenes as a folder data set."""
    folder, found = tmp_path_factory.mktemp("scenes"), open_dataset("scenes", "train")
    for name in ("images", "labels"):
        (folder / name).mkdir()
    ids = [f"{index:02}" for index in range(TRAIN + VAL)]
    for index, name in enumerate(ids):
        found.image(index).save(folder / "images" / f"{name}.png")
        Image.fromarray(found.label(index)).save(folder / "labels" / f"{name}.png")
    (folder / "classes.txt").write_text("\n".join(found.classes.names) + "\n")
    (folder / "train.txt").write_text("\n".join(ids[:TRAIN]) + "\n")
    (folder / "val.txt").write_text("\n".join(ids[TRAIN:]) + "\n")
    return folder


@pytest.fixture(scope="module")
def study(scenes, tmp_path_factory):
    """A finished study's folder, and the words that made it."""
    out = tmp_path_factory.mktemp("study") / "out"
    words = f"--data folder:{scenes} --backbone tiny --weights none --stride 0 --neck 8 --crop 64 --epochs 1 --batch 2"
    words += f" --steps {STEPS} --early 2 --settings none paper recommended --seeds 0 1 --out {out}"
    main(words.split())
    return out, words.split()


def test_the_table_has_every_cell(study):
    out, _ = study
    cells = json.loads((out / "table.json").read_text())["cells"]
    assert {name: len(seeds) for name, seeds in cells.items()} == {"none": 2, "paper": 2, "recommended": 2}
    rows = (out / "table.md").read_text().splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows[2:]] == [WAYS[name].title for name in cells]
    assert len({row.count("|") for row in rows}) == 1
    for name, seeds in cells.items():
        for cell, shown in zip(seeds, rows[2 + list(cells).index(name)].split(" | ")[5].split(", "), strict=True):
            assert 0 <= cell["miou"] <= 1 and f"{cell['miou']:.3f}" == shown
    assert all("gate_mean" not in cell["end"] and "miou_flat" not in cell for cell in cells["none"])
    assert all(cell["query_gradient"] > 0 for cell in cells["paper"])


def test_the_recommended_block_begins_with_nothing_and_an_open_gate(study):
    for cell in json.loads((study[0] / "table.json").read_text())["cells"]["recommended"]:
        assert cell["start"]["added"] == 0 < cell["end"]["added"]
        for when in ("start", "early", "end"):
            assert 0.05 < cell[when]["gate_mean"] < 0.95 and cell[when]["gate_spread"] > 0.05


def test_the_same_command_trains_only_what_is_missing(study, capsys):
    out, words = study
    gone = out / "cells" / "paper-1.json"
    before = gone.read_bytes()
    gone.unlink()
    main(words)
    said = capsys.readouterr()
    assert said.err.splitlines() == ["paper, seed 1"]
    assert gone.read_bytes() == before
    assert said.out.strip() == (out / "table.md").read_text().strip()


def test_another_study_is_not_mixed_in(study):
    _, words = study
    with pytest.raises(SystemExit, match="other settings"):
        main([*words, "--crop", "32"])
    with pytest.raises(SystemExit, match=f"expected 1…{STEPS}"):
        main([*words, "--early", "9"])


def test_all_settings_of_a_seed_start_alike():
    study = Namespace(backbone="tiny", stride=0, neck=8, variant="ordnet")
    nets = {name: network_of(study, way, 3, 5) for name, way in WAYS.items()}
    for part in ("neck", "head"):
        first, *others = (getattr(net, part).state_dict() for net in nets.values())
        assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    query = nets["paper"].block.long.attention.query.weight
    assert all(torch.equal(query, nets[name].block.long.attention.query.weight) for name in WAYS if name != "none")
    other_seed = network_of(study, WAYS["none"], 4, 5)
    assert not torch.equal(other_seed.head[0].weight, nets["none"].head[0].weight)


@pytest.mark.parametrize("logits", ["plain", "standard"])
def test_a_flat_gate_is_the_mean_of_each_map(logits):
    block = OmniRange(8, gate_logits=logits).double()
    x = torch.randn(2, 8, 6, 5, dtype=torch.float64)
    gate = block.gate_map(x).mean((2, 3), keepdim=True)
    ungated = block.without("gate").long(x, literal=True)
    expected = x + block.fuse(block.middle(x, literal=True), ungated * gate)
    with torch.no_grad():
        assert torch.allclose(with_flat_gate(block)(x), expected, atol=1e-12)
        assert not torch.allclose(block(x), expected, atol=1e-6)
