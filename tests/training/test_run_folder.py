"""Whose files are whose in a run's folder, and what a run makes of changed data and damaged files."""

import json
import os
import shutil
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ordnet
from ordnet.config import DataConfig, Settings, override, parse
from ordnet.data.catalogue import open_dataset
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint
from ordnet.training import state as states
from ordnet.training.loop import train_with
from ordnet.training.prepare import _workers, trained_at
from ordnet.training.run_folder import OWN, RunFolder
from ordnet.training.state import check_fingerprint, fingerprint
from tests.small_data import small_settings, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "own")


@pytest.fixture(scope="module")
def halfway(folder, tmp_path_factory):
    """A run whose state says that one of two epochs is done."""
    out = tmp_path_factory.mktemp("runs") / "halfway"
    train_with(small_settings(folder, "training.epochs=1"), out)
    state = states.load(out / "state", print)
    state["progress"]["finished"] = False
    state["settings"]["training"]["epochs"] = 2
    states.save(out / "state", state)
    return out


def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def again(folder):
    return small_settings(folder, "training.epochs=2")


# ---- whose files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in OWN if name != "tensorboard"])
@pytest.mark.parametrize("force", [False, True])
def test_a_foreign_file_in_the_way_is_an_error(folder, tmp_path, name, force):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(OrdnetError, match="is in the way: no run wrote it"):
        train_with(small_settings(folder), tmp_path / "out", force=force)
    assert path.read_text() == "mine"


def test_files_beside_the_run_s_stay(halfway, folder, tmp_path):
    out = copy(halfway, tmp_path)
    mine = [".notes.tmp.txt", "state/notes.txt", ".best.backup.tmp.safetensors", "tensorboard/notes", "data.csv"]
    for name in mine:
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_text("mine")
    left_over = [out / ".last.1234abcd.tmp.safetensors", out / "state" / ".state.1234abcd.tmp.pt"]
    for path in left_over:
        path.write_bytes(b"half a file")
    with pytest.raises(OrdnetError, match="unfinished run"):
        train_with(again(folder), out)
    assert all(path.exists() for path in left_over)  # a refused run touches nothing
    train_with(small_settings(folder, "training.epochs=1", "training.rate=0.01"), out, force=True)
    assert not any(path.exists() for path in left_over)
    for name in mine:
        assert (out / name).read_text() == "mine", name
    assert len(RunFolder(out).epochs()) == 1


@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_torchrun_starts_again_goes_on(halfway, folder, tmp_path, monkeypatch, force):
    """--force was meant for the first start: it must not throw away what the run has reached since."""
    out = copy(halfway, tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    train_with(again(folder), out, force=force)
    assert [record["event"] for record in RunFolder(out).records()] == ["start", "epoch", "resume", "epoch"]


def test_a_run_from_before_the_list_was_kept(halfway, folder, tmp_path):
    out = copy(halfway, tmp_path)
    (out / ".ordnet-files").unlink()
    train_with(again(folder), out, resume=True)
    assert [record["epoch"] for record in RunFolder(out).epochs()] == [1, 2]
    assert (out / ".ordnet-files").exists()
    # done; its log is emptied
    (out / "log.jsonl").write_bytes(b"")
    with pytest.raises(OrdnetError, match="figures of this finished run are lost"):
        train_with(again(folder), out, resume=True)
    assert (out / "best.safetensors").exists()


MISTAKES = [
    ("data.name=folder:/misspelt", "misspelt"),
    ("data.split=trian", "trian"),
    ("model.backbone=tinny", "no backbone 'tinny'"),
    ("model.variant=ordnett", "no variant 'ordnett'"),
    ("model.weights=/nowhere.safetensors", "nowhere.safetensors"),
    ("training.batch_size=1000", "fewer than one batch"),
]
"""Settings that are found wrong by the data, or when the network is built."""


def content(path):
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("word", "expected"), MISTAKES)
def test_a_mistake_costs_no_earlier_run_and_is_named_first(halfway, folder, tmp_path, word, expected, force):
    """With --force too, and before the news that the folder is taken."""
    out = copy(halfway, tmp_path)
    before = content(out)
    with pytest.raises(OrdnetError, match=expected):
        train_with(small_settings(folder, "training.epochs=2", word), out, force=force)
    assert content(out) == before


def test_a_missing_library_costs_no_earlier_run(halfway, folder, tmp_path, monkeypatch):
    out = copy(halfway, tmp_path)
    before = content(out)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(OrdnetError, match="needs TensorBoard"):
        train_with(small_settings(folder, "training.tensorboard=true"), out, force=True)
    assert content(out) == before


def test_a_run_that_is_removed_halfway_cannot_be_resumed(halfway, tmp_path, monkeypatch):
    """Killed anywhere in between: while a state can be read, all that belongs to it is still there."""
    remove, parts = Path.unlink, ("log.jsonl", "last.safetensors", "best.safetensors")
    left = []
    for kills in range(len(OWN)):
        out = copy(halfway, tmp_path / str(kills))
        done = []

        def dying(path, missing_ok=False, done=done, kills=kills):
            if len(done) == kills:
                raise KeyboardInterrupt
            done.append(path)
            remove(path, missing_ok=missing_ok)

        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "unlink", dying)
            RunFolder(out).clear()
        left.append(states.load(out / "state", print) is not None)
        assert not left[-1] or all((out / name).exists() for name in parts)
    assert left[0] and not left[-1]


# ---- damaged files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("torn", [b'{"event": "epo', b'"just a word"\n', b"[" * 100_000, b"\xff\xfe\n"])
def test_a_torn_log(halfway, folder, tmp_path, torn):
    out = copy(halfway, tmp_path)
    with (out / "log.jsonl").open("ab") as file:
        file.write(torn)
    assert len(RunFolder(out).epochs()) == 1
    state = states.load(out / "state", print)
    states.save(out / "state", {**state, "log_size": (out / "log.jsonl").stat().st_size})
    train_with(again(folder), out, resume=True)
    assert [record["epoch"] for record in RunFolder(out).epochs()] == [1, 2]


def test_class_names_with_line_separators(tmp_path):
    folder = RunFolder(tmp_path)
    folder.append({"event": "epoch", "per_class_iou": {"sky\u2028blue\x85": 0.5}})
    assert len(folder.epochs()) == 1


def test_every_flipped_bit_of_a_state_is_found_or_does_not_matter(halfway, tmp_path):
    sound = states.load(halfway / "state", print)
    content = (halfway / "state" / "state.pt").read_bytes()
    found = 0
    for place in range(40, len(content), len(content) // 60):
        damaged = bytearray(content)
        damaged[place] ^= 4
        (tmp_path / "state.pt").write_bytes(damaged)
        try:
            state = states.load(tmp_path, lambda text: None)
        except OrdnetError:
            found += 1
            continue
        assert all(torch.equal(state["net"][key], value) for key, value in sound["net"].items()), place
        assert state["progress"] == sound["progress"]
    assert found > 50


def test_a_flipped_bit_falls_back(halfway, folder, tmp_path, capsys):
    out = copy(halfway, tmp_path)
    shutil.copy(out / "state" / "state.pt", out / "state" / "previous.pt")
    content = bytearray((out / "state" / "state.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (out / "state" / "state.pt").write_bytes(content)
    train_with(again(folder), out, resume=True)
    assert "is damaged" in capsys.readouterr().err


# ---- changed data -------------------------------------------------------------------------------------------------


def fewer(folder):
    ids = (folder / "train.txt").read_text().split()
    (folder / "train.txt").write_text("\n".join(ids[:-1]))
    return "training part: had 12 pictures, has 11"


def reordered(folder):
    ids = (folder / "train.txt").read_text().split()
    (folder / "train.txt").write_text("\n".join(ids[::-1]))
    return "training part: its pictures come in another order"


def renamed(folder):
    (folder / "classes.txt").write_text("sky\nfloor\nthing\n")
    return "classes: were sky, ground, thing; are sky, floor, thing"


def repainted(folder):
    from PIL import Image

    Image.new("L", (40, 32)).save(folder / "labels" / "013.png")
    return "evaluated part: files of its pictures or labels have other sizes"


@pytest.mark.parametrize("change", [fewer, reordered, renamed, repainted])
def test_changed_data_is_refused(halfway, folder, tmp_path, change, capsys):
    own = tmp_path / "data"
    shutil.copytree(folder, own)
    out = copy(halfway, tmp_path)
    state = states.load(out / "state", print)
    state["settings"]["data"]["name"] = f"folder:{own}"
    states.save(out / "state", state)
    expected = change(own)
    with pytest.raises(OrdnetError, match="started with other data") as refused:
        train_with(again(own), out, resume=True)
    assert expected in str(refused.value) and "--force-data" in str(refused.value)
    train_with(again(own), out, resume=True, force_data=True)
    assert expected in " ".join(capsys.readouterr().err.split())


def test_another_number_of_processes(folder):
    data = open_dataset(f"folder:{folder}", "train")
    one, two = fingerprint(data, data, 1), fingerprint(data, data, 2)
    assert json.loads(json.dumps(one)) == one
    with pytest.raises(OrdnetError, match="processes: were 1, are 2"):
        check_fingerprint(one, two, force=False)
    assert check_fingerprint(one, two, force=True) == ["processes: were 1, are 2"]
    assert check_fingerprint(None, two, force=False) == []  # a state from before


# ---- settings that would take a machine down ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["data.scale=[.inf, .inf]", "training.rate=.nan", "training.rate=.inf", "training.class_weights=[1, .inf]",
             "data.scale=[0, 1]", "data.scale=[2, 1]", "data.scale=[1, 1e9]", "training.save_minutes=.inf",
             "training.seed=100000000000000000000", "training.micro_batch=100000000000000000000", "training.rate=1e300",
             "training.head_rate=1e300", "model.neck=100000000000", "data.base_size=1000000000", "training.crop=1e9",
             "data.long_side=100001"],
)  # fmt: skip
def test_settings_are_finite(word):
    with pytest.raises(OrdnetError, match=word.partition("=")[0]):
        override(Settings(), [word])
    assert parse(Settings().model_dump(mode="json"), "x") == Settings()


def test_workers_are_bounded_by_the_cores(monkeypatch):
    said = []

    class Display:
        say = staticmethod(said.append)

    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert _workers(2, Display) == 2 and not said
    assert _workers(5000, Display) == 8
    assert said == ["data.workers is 5,000, more than this computer with its 2 cores can use: it gets 8"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert _workers(5000, Display) == 2


# ---- files made to hurt ------------------------------------------------------------------------------------------


def test_states_of_other_content_are_passed_over(halfway, folder, tmp_path, capsys):
    """What torch can read, but no run wrote: the state before it is taken, and the reason said in a line."""
    out = copy(halfway, tmp_path)
    sound = states.load(out / "state", print)
    (out / "state" / "previous.pt").write_bytes((out / "state" / "state.pt").read_bytes())
    wrong = [
        [1, 2],
        {"version": 1},
        {**sound, "progress": {"epoch": "many"}},
        {**sound, "progress": {"unknown": 1}},
        {**sound, "settings": {"training": {}}},
        {**sound, "settings": {"training": {"epochs": 1}, "data": 5}},
        {**sound, "log_size": -1},
    ]
    for content in wrong:
        torch.save(content, out / "state" / "state.pt")
        said = []
        found = states.load(out / "state", said.append)
        assert found["progress"] == sound["progress"] and "is damaged" in said[0] and len(said[0]) < 500
    torch.save({**sound, "net": {"other": torch.zeros(1)}}, out / "state" / "state.pt")
    with pytest.raises(OrdnetError, match="the state is that of another network"):
        train_with(again(folder), out, resume=True)


def test_pipes_in_the_folder_are_not_waited_for(folder, tmp_path):
    for name, says in ((".lock", "a pipe"), (".ordnet-files", None), ("state/state.pt", "in the way")):
        out = tmp_path / name.replace("/", "-")
        (out / name).parent.mkdir(parents=True)
        os.mkfifo(out / name)
        if says is None:
            assert RunFolder(out)._listed() == set()
            continue
        with pytest.raises(OrdnetError, match=says):
            train_with(small_settings(folder), out)


def test_a_refused_run_leaves_a_foreign_lock(folder, tmp_path):
    """A file .lock that somebody else keeps in an otherwise empty folder."""
    (tmp_path / "out").mkdir()
    for name in (".lock", ".ordnet-files"):
        (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(OrdnetError, match="fewer than one batch"):
        train_with(small_settings(folder, "training.batch_size=1000"), tmp_path / "out")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        ".lock": "mine", ".ordnet-files": "mine",
    }  # fmt: skip


def test_a_resumed_run_needs_no_weight_file(folder, tmp_path):
    """Its state has all weights; the file, or the hub, that they came from may be gone."""
    backbone = ordnet.build("ordnet", classes=2, backbone="tiny").backbone
    save_file(backbone.state_dict(), tmp_path / "tiny.safetensors", {"stride_on": "conv1"})
    words = (f"model.weights={tmp_path / 'tiny.safetensors'}", "training.epochs=1")
    train_with(small_settings(folder, *words), tmp_path / "run")
    (tmp_path / "tiny.safetensors").unlink()
    train_with(small_settings(folder, words[0], "training.epochs=2"), tmp_path / "run", resume=True)
    assert checkpoint.load(tmp_path / "run/last.safetensors").net.config.stride_on == "conv1"
    assert len(RunFolder(tmp_path / "run").epochs()) == 2


def test_a_packed_state_is_not_unpacked(tmp_path, monkeypatch):
    """A few megabytes were read as gigabytes before they were refused."""
    with zipfile.ZipFile(tmp_path / "state.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1_000_000))
    monkeypatch.setattr(zipfile.ZipFile, "testzip", lambda archive: pytest.fail("it was unpacked"))
    said = []
    with pytest.raises(OrdnetError, match="no state in"):
        states.load(tmp_path, said.append)
    assert "compressed" in said[0]


def test_a_run_on_very_long_pictures_says_a_size_that_can_be_read():
    """A checkpoint that claims more is taken for damaged."""
    assert trained_at([150_000] * 3, DataConfig()) == (100_000, 100_000)
    assert trained_at([200, 300], DataConfig()).most < 301
