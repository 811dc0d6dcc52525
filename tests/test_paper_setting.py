"""scripts/paper_setting.py and scripts/frozen.py: features that are the backbone's, rows that can be compared, tables
that continue."""

import json
from argparse import Namespace

import numpy as np
import pytest
import torch

from ordnet.config import DataConfig
from ordnet.data.catalogue import open_dataset
from ordnet.data.loader import Batches, examples
from ordnet.model.pixels import normalise
from ordnet.study.ablation import rows_of
from scripts.frozen import crops, network, pictures, scores
from scripts.paper_setting import main, network_of
from tests.small_data import write_folder

TINY = Namespace(backbone="tiny", stride=0, neck=8, block="paper")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return f"folder:{write_folder(tmp_path_factory.mktemp('data') / 'set', train=6, val=3)}"


@pytest.fixture(scope="module")
def study(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "out"
    words = f"branches gate --data {data} --out {out} --backbone tiny --weights none --stride 0 --neck 8 --crop 32"
    words += " --crops 2 --epochs 3 --batch 2 --seeds 0 1"
    main(words.split())
    return out, words.split()


def test_kept_features_are_those_of_the_pictures(data, tmp_path):
    train, val = (open_dataset(data, split) for split in ("train", "val"))
    net = network(TINY, "dilated-fcn", 3).eval()
    settings = DataConfig(workers=0, scale=(0.5, 1.0), flip=True)
    for _ in ("computed", "read"):
        made = crops(net, train, tmp_path / "train", settings, 32, 2)
        whole = pictures(net, val, tmp_path / "val.pt")
    batches = Batches(train, settings, crop=32, batch_size=1, seed=0)
    expected = [batch for epoch in range(2) for batch in batches.epoch(epoch)]
    assert len(made.features) == len(made.labels) == 12 and len(whole) == 3
    with torch.no_grad():
        for number, batch in enumerate(expected):
            found = net.backbone(normalise(batch.images), levels=(-1,))[0]
            torch.testing.assert_close(made.features[number].float(), found[0], rtol=1e-3, atol=1e-3)
            assert torch.equal(made.labels[number], batch.labels[0, ::2, ::2])
        # a whole picture's scores from its features are the network's own, to half precision
        for example, features in zip(examples(val), whole, strict=True):
            image = normalise(example.image)
            torch.testing.assert_close(scores(net, features, image.shape[2:]), net(image), rtol=1e-2, atol=1e-2)


def test_all_rows_of_a_seed_start_alike():
    nets = [network_of(TINY, row, 3, 5) for row in rows_of("branches")]
    for part in ("neck", "head"):
        first, *others = (getattr(net, part).state_dict() for net in nets)
        assert all(torch.equal(first[key], other[key]) for other in others for key in first)
    assert [net.config.variant for net in nets] == [row.name for row in rows_of("branches")]
    living = network_of(Namespace(**{**vars(TINY), "block": "living"}), rows_of("branches")[-1], 3, 5)
    assert living.config.gate_logits == "standard" and nets[-1].config.gate_logits != "standard"


def test_every_row_has_its_seeds(study):
    out, _ = study
    for table in ("branches", "gate"):
        rows = json.loads((out / f"{table}.json").read_text())["rows"]
        assert [row["name"] for row in rows] == [row.name for row in rows_of(table)]
        assert all(len(row["miou"]["values"]) == 2 for row in rows)
    # attention-out with a sigmoid is Basic SA + RLR: one run, in both tables
    assert len(list((out / "cells").iterdir())) == 2 * (5 + 3)


def test_the_same_command_trains_only_what_is_missing(study, capsys):
    out, words = study
    gone = out / "cells" / "ordnet-1.json"
    before = {name: value for name, value in json.loads(gone.read_text()).items() if name != "cpu_seconds"}
    gone.unlink()
    main(words)
    assert capsys.readouterr().err.splitlines() == ["ORDNet (MR + RLR), seed 1"]
    again = json.loads(gone.read_text())
    assert again["cpu_seconds"] > 0
    np.testing.assert_equal({name: value for name, value in again.items() if name != "cpu_seconds"}, before)


def test_another_study_is_not_mixed_in(study):
    with pytest.raises(SystemExit, match="other settings"):
        main([*study[1], "--crop", "40"])
