"""The ablation tables: the paper's rows, runs that are neither lost nor repeated, verdicts that seeds can carry."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ordnet.config import override
from ordnet.errors import OrdnetError
from ordnet.model.build import build_from
from ordnet.paper import ABLATIONS
from ordnet.study.ablation import METHODS, TABLES, ablate, base_settings, default_recipe
from ordnet.study.table import Figure, Table, TableRow, undecided
from ordnet.training.run_folder import RunFolder
from tests.small_data import small_settings, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "own", train=8)


@pytest.fixture(scope="module")
def recipe(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("settings") / "small.yaml"
    path.write_text(small_settings(folder, "training.epochs=2").to_yaml())
    return str(path)


@pytest.fixture(scope="module")
def done(folder, recipe, tmp_path_factory):
    """Branches with two seeds."""
    out = tmp_path_factory.mktemp("runs") / "study"
    table = ablate("branches", f"folder:{folder}", out, recipe=recipe, seeds=2)
    return table, out


def test_rows_are_the_papers():
    assert {name: {cell.name for cell in cells} for name, cells in TABLES.items()} == {
        name: set(rows) for name, rows in ABLATIONS.items()
    }


def test_rows_with_one_run_have_the_same_settings():
    base = base_settings("scenes", None)
    seen = {}
    for cell in (cell for cells in TABLES.values() for cell in cells):
        settings = cell.settings(base, 0)
        assert seen.setdefault(cell.run, settings) == settings
    assert len(seen) == 14  # 17 rows, three of which share a run with another table


def test_what_is_ablated():
    base = base_settings("pascal-context:PATH", None)
    for cell in (cell for cells in TABLES.values() for cell in cells):
        settings = cell.settings(base, 3)
        assert (settings.training.lovasz, settings.training.cross_entropy, settings.training.seed) == (0, 1, 3)
        assert (settings.evaluation.protocol, settings.training.epochs) == ("whole", 50)
        assert settings.training.crop == (640 if cell.name == "p4-large" else 480)
    assert all(cell.model["variant"] == "basic-sa-rlr" for cell in TABLES["gate"])
    assert all(cell.model["variant"] == "ordnet" for cell in TABLES["fusion"])
    assert {default_recipe(data) for data in ("scenes", "folder:x", "camvid:x")} == {
        "scenes-tiny", "folder-default", "camvid-mobilenet",
    }  # fmt: skip


def test_one_patch_is_basic_self_attention():
    """The patches table's first row shares Basic SA's run: the same weights must give the same scores."""
    base = override(base_settings("scenes", None), ["model.backbone=tiny"])
    torch.manual_seed(0)
    basic = build_from(TABLES["patches"][0].settings(base, 0).model, 5).eval()
    torch.manual_seed(0)
    middle = build_from(base.model.model_copy(update={"variant": "mr", "patches": 1}), 5).eval()
    image = torch.randn(1, 3, 37, 50)
    with torch.no_grad():
        torch.testing.assert_close(basic(image), middle(image))


def test_a_study(done):
    table, out = done
    assert [row.name for row in table.rows] == [cell.name for cell in TABLES["branches"]]
    for row in table.rows:
        assert len(row.figure("miou").values) == 2
        runs = [json.loads(line) for line in (out / row.name / "seed-1" / "log.jsonl").read_text().splitlines()]
        assert row.figure("miou").values[1] == runs[-1]["miou"]  # of the last epoch, not the best
        assert row.cost["gflops_literal"] >= row.cost["gflops"] > 0
    assert table.rows[-1].figure("gate_mean") is not None
    assert table.rows[0].figure("gate_mean") is None


def test_nothing_is_run_twice(done, folder, recipe):
    table, out = done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("last.safetensors")}
    again = ablate("branches", f"folder:{folder}", out, recipe=recipe, seeds=2)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("last.safetensors")} == before
    assert again.plain() == table.plain()


def test_other_settings_are_refused(done, folder, recipe):
    _, out = done
    with pytest.raises(OrdnetError, match=r"seed-0: the run was started with other settings:\s+training.rate"):
        ablate("branches", f"folder:{folder}", out, recipe=recipe, seeds=2, changes=["training.rate=0.01"])


def test_another_split_is_evaluated_once(done, folder, recipe):
    _, out = done
    table = ablate("branches", f"folder:{folder}", out, recipe=recipe, seeds=1, split="train")
    assert table.split == "train"
    kept = out / "ordnet" / "seed-0" / "evaluation-train.json"
    assert json.loads(kept.read_text())["images"] == 8
    assert json.loads(kept.read_text())["miou"] == table.rows[-1].figure("miou").values[0]


def test_written_files(done, tmp_path):
    table, _ = done
    markdown, comma, plain, picture = table.write(tmp_path)
    assert [path.name for path in (markdown, comma, plain, picture)] == [
        f"branches.{suffix}" for suffix in ("md", "csv", "json", "png")
    ]
    rows = list(csv.reader(comma.open()))
    assert len(rows) == 6
    assert all(len(row) == len(rows[0]) for row in rows)
    found = json.loads(plain.read_text())
    assert found["rows"][4]["paper"] == {"miou": 50.67, "pixel_accuracy": 79.35}
    assert "| ORDNet (MR + RLR) |" in markdown.read_text()
    assert "50.67" in markdown.read_text()
    assert Image.open(picture).size[0] > 400


def test_methods_share_the_runs_of_the_branches(folder, recipe, done, tmp_path):
    _, out = done
    trained = {path: path.stat().st_mtime_ns for path in out.rglob("last.safetensors")}
    table = ablate("methods", f"folder:{folder}", out, recipe=recipe, seeds=1, changes=["training.epochs=2"])
    for path, time_before in trained.items():  # no context, Basic SA and ORDNet are rows of both tables
        assert path.stat().st_mtime_ns == time_before
    assert [row.label for row in table.rows][-1] == "ORDNet"
    assert all(row.cost["ms"] > 0 and row.cost["params_M"] > 0 for row in table.rows)
    written = table.write(tmp_path)
    assert [path.name for path in written] == [
        "methods.md", "methods.csv", "methods.json", "methods.png", "methods-cost.png",
    ]  # fmt: skip
    rows = list(csv.reader(written[1].open()))
    assert len(rows) == 1 + len(METHODS)
    assert {len(row) for row in rows} == {len(rows[0])}
    assert "ms" in rows[0] and not any("paper" in title for title in rows[0])
    assert "paper's order" not in written[0].read_text()
    assert list(table.order()) == []
    assert Image.open(written[4]).size[0] > 400


def test_a_killed_study_continues(folder, recipe, tmp_path):
    out = tmp_path / "study"
    words = ["fusion", "--data", f"folder:{folder}", "--recipe", recipe, "--seeds", "1", "--out", str(out)]
    command = [sys.executable, "-m", "ordnet", "ablate", *words]
    victim = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while not (out / "fusion-sum" / "seed-0" / "last.safetensors").exists():
        assert victim.poll() is None
        time.sleep(0.02)
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    ours = json.loads((out / "fusion.json").read_text())
    # two at a time, never killed: the same figures
    fresh = ablate("fusion", f"folder:{folder}", tmp_path / "fresh", recipe=recipe, seeds=1, jobs=2)
    assert [row["miou"]["values"] for row in ours["rows"]] == [list(row.figure("miou").values) for row in fresh.rows]


def test_a_study_that_is_asked_to_stop_takes_its_runs_along(folder, recipe, tmp_path):
    out = tmp_path / "study"
    words = ["fusion", "--data", f"folder:{folder}", "--recipe", recipe, "--set", "training.epochs=500", "--jobs", "2"]
    command = [sys.executable, "-m", "ordnet", "ablate", *words, "--out", str(out)]
    study = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    folders = [out / name / "seed-0" for name in ("fusion-sum", "ordnet")]
    while not all((run / "state" / "state.pt").exists() for run in folders):
        assert study.poll() is None
        time.sleep(0.05)
    study.terminate()
    _, said = study.communicate()
    assert study.returncode == 143, said
    assert "the same command continues" in said and "Traceback" not in said
    for run in folders:  # each has saved and left its folder
        RunFolder(run).claim()


def test_mistakes(folder, recipe, tmp_path, monkeypatch):
    data = f"folder:{folder}"
    with pytest.raises(OrdnetError, match=r"no ablation 'depth'; there are branches, patches, gate, fusion"):
        ablate("depth", data, tmp_path, recipe=recipe)
    with pytest.raises(OrdnetError, match="nosuch"):
        ablate("gate", data, tmp_path, recipe=recipe, split="nosuch")
    with pytest.raises(OrdnetError, match="at least 1"):
        ablate("gate", data, tmp_path, recipe=recipe, seeds=0)
    with pytest.raises(OrdnetError, match="in"):  # refused before the first run
        ablate("gate", data, tmp_path, recipe=recipe, changes=["model.similarity=softmax"])
    monkeypatch.setitem(os.environ, "WORLD_SIZE", "2")
    with pytest.raises(OrdnetError, match="torchrun"):
        ablate("gate", data, tmp_path, recipe=recipe, jobs=2)
    assert not any(tmp_path.iterdir())


def test_a_failing_run_ends_the_study_with_its_last_words(folder, recipe, tmp_path):
    data, too_fast = f"folder:{folder}", ["training.rate=1e30"]
    with pytest.raises(OrdnetError, match=r"seed-0: the loss is not finite"):
        ablate("branches", data, tmp_path / "out", recipe=recipe, seeds=1, jobs=2, changes=too_fast)


def record(miou):
    return {"miou": miou, "pixel_accuracy": miou}


@given(st.lists(st.floats(0, 1), min_size=2, max_size=4), st.lists(st.floats(0, 1), min_size=2, max_size=4))
def test_verdicts(a, b):
    first, second = Figure(tuple(a)), Figure(tuple(b))
    assert undecided(first, second) == undecided(second, first)
    assert undecided(first, first)
    if not undecided(first, second):
        assert abs(first.mean - second.mean) > max(first.spread, second.spread)


def test_order_against_the_paper():
    scores = {
        "in-softmax": (0.5, 0.51),
        "in-sigmoid": (0.6, 0.61),
        "out-softmax": (0.60, 0.62),
        "out-sigmoid": (0.3, 0.31),
    }
    rows = [TableRow(name, name, [record(value) for value in values]) for name, values in scores.items()]
    table = Table("gate", "scenes", "test", 2, 2, rows)
    assert [pair["verdict"] for pair in table.order()] == ["agrees", "undecided", "contradicts"]
    single = Table("gate", "scenes", "test", 2, 1, [TableRow(n, n, [record(v[0])]) for n, v in scores.items()])
    assert {pair["verdict"] for pair in single.order()} == {"undecided"}


def test_the_folder_of_a_training_run_is_no_place_for_a_table(done, folder, recipe):
    """Its folders were put beside the run's files without a word."""
    _, out = done
    strange = out / "ordnet/seed-0"
    before = sorted(strange.rglob("*"))
    with pytest.raises(OrdnetError, match=r"log\.jsonl is in the way: .*seed-0 is the folder of a training run"):
        ablate("branches", f"folder:{folder}", strange, recipe=recipe, seeds=1)
    assert sorted(strange.rglob("*")) == before
