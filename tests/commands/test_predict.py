"""`ordnet predict` through the real command line, with the inputs people really have."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import ordnet
from ordnet.commands import app, main
from ordnet.commands.predict import _run
from ordnet.data.pictures import find_pictures, sample_picture
from ordnet.errors import OrdnetError, is_printable
from ordnet.files import CannotWrite, write_text
from ordnet.inference.parser import Parser
from ordnet.inference.prediction import Prediction
from ordnet.model import checkpoint

NAMES = ("sky", "tree", "road")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    net = ordnet.build("ordnet", classes=3, backbone="tiny")
    checkpoint.save(path, net, NAMES, ((0, 0, 255), (0, 255, 0), (128, 128, 128)))
    return str(path)


def photo(path: Path, height=30, width=40, seed=0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def run(*words, **environment):
    return CliRunner().invoke(app, ["predict", *map(str, words)], env=environment)


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def wide_tiff(channels: int) -> bytes:
    """A 4 x 4 TIFF with this many 8-bit channels."""
    side, entries = 4, 10
    bits_at = 8 + 2 + 12 * entries + 4
    pixels_at = bits_at + 2 * channels
    tags = [
        (256, 3, 1, side), (257, 3, 1, side), (258, 3, channels, bits_at), (259, 3, 1, 1), (262, 3, 1, 1),
        (273, 4, 1, pixels_at), (277, 3, 1, channels), (278, 3, 1, side), (279, 4, 1, side * side * channels),
        (284, 3, 1, 1),
    ]  # fmt: skip
    directory = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", entries) + directory + struct.pack("<I", 0)
    return head + struct.pack("<H", 8) * channels + bytes(side * side * channels)


def test_a_file_name_that_is_no_text(model, tmp_path):
    """As Latin-1 names are on a system that takes UTF-8: parsed, and known the next time."""
    picture = tmp_path / os.fsdecode(b"caf\xe9.png")
    try:
        photo(picture)
    except OSError:
        pytest.skip("this file system takes UTF-8 alone")
    out = tmp_path / "out"
    first, second = (run(model, picture, "--out", out, "--save", "labels,coco") for _ in range(2))
    assert first.exit_code == 0 and "1 parsed" in first.output, first.output
    assert second.exit_code == 0 and "1 were done already" in second.output, second.output
    assert json.loads((out / f"{picture.stem}.json").read_text())["picture"].endswith(picture.name)


def test_hostile_files_are_reported_and_the_rest_is_done(model, tmp_path):
    folder, out = tmp_path / "in", tmp_path / "out"
    photo(folder / "good.png")
    photo(folder / "pixel.png", 1, 1)
    photo(folder / "line.png", 1, 5000)
    Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50).save(folder / "deep.png")
    frames = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue")]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    broken = ("zero.png", "text.png", "cut.jpg", "wide.tif", "huge.png")
    (folder / "zero.png").write_bytes(b"")
    (folder / "text.png").write_text("this is not a picture")
    whole = photo(tmp_path / "whole.jpg", 200, 200).read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "wide.tif").write_bytes(wide_tiff(200)[:-100])
    # a header that promises 3.6 gigapixels must not be decoded
    header = (folder / "good.png").read_bytes()
    (folder / "huge.png").write_bytes(header[:16] + struct.pack(">II", 60000, 60000) + header[24:])

    command = [sys.executable, "-m", "ordnet", "predict", model, str(folder), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{len(broken)} of 10 pictures failed" in done.stderr
    messages = done.stderr.split("failed:")[1].splitlines()
    assert all(any(name in line for line in messages) for name in broken), done.stderr
    assert names_in(out) == sorted(
        f"{stem}.{kind}"
        for stem in ("good", "pixel", "line", "deep", "moving")
        for kind in ("overlay.png", "labels.png", "palette.png", "json")
    )
    for stem, size in {"pixel": (1, 1), "line": (5000, 1), "deep": (40, 30), "moving": (40, 30)}.items():
        with Image.open(out / f"{stem}.labels.png") as image:
            assert image.size == size


def test_results_equal_the_parsers(model, tmp_path):
    path = photo(tmp_path / "a.png")
    assert run(model, path, "--out", tmp_path / "out", "--save", "labels,beside").exit_code == 0
    assert names_in(tmp_path / "out") == ["a.beside.png", "a.json", "a.labels.png"]
    parse = ordnet.load(model)(path)
    with Image.open(tmp_path / "out" / "a.labels.png") as image:
        np.testing.assert_array_equal(np.asarray(image), parse.labels)
    record = json.loads((tmp_path / "out" / "a.json").read_text())
    assert record["areas"] == parse.areas()
    assert record["protocol"] == "whole"


def test_streaming_from_the_command_line(model, tmp_path):
    path = photo(tmp_path / "a.png", 90, 110)
    for limit in ("0", "4"):
        assert run(model, path, "--out", tmp_path / limit, "--save", "labels", "--whole-up-to", limit).exit_code == 0
    with Image.open(tmp_path / "0" / "a.labels.png") as one, Image.open(tmp_path / "4" / "a.labels.png") as other:
        assert np.mean(np.asarray(one) == np.asarray(other)) > 0.999


def test_what_is_done_is_skipped_until_something_changes(model, tmp_path):
    path, out = photo(tmp_path / "a.png"), tmp_path / "out"
    first = run(model, path, "--out", out)
    assert "1 parsed, 0 were done" in first.stdout
    assert "0 parsed, 1 were done" in run(model, path, "--out", out).stdout
    assert "1 parsed" in run(model, path, "--out", out, "--force").stdout
    # another picture to draw, another strength, a missing file, a changed picture
    assert "1 parsed" in run(model, path, "--out", out, "--save", "overlay,labels,palette,beside").stdout
    assert "1 parsed" in run(model, path, "--out", out, "--strength", "0.7").stdout
    assert "1 parsed" in run(model, path, "--out", out).stdout
    (out / "a.labels.png").unlink()
    assert "1 parsed" in run(model, path, "--out", out).stdout
    photo(path, seed=1)
    assert "1 parsed" in run(model, path, "--out", out).stdout
    (out / "a.json").write_bytes(b"")  # as a power cut leaves it
    assert "1 parsed" in run(model, path, "--out", out).stdout
    assert "0 parsed, 1 were done" in run(model, path, "--out", out).stdout


@pytest.mark.parametrize("content", ['\ufeff{"shapes": []}', "notes of mine", "[half a fi"])
def test_an_own_record_beside_own_pictures_is_kept(model, tmp_path, content):
    """A file that cannot be read as a record was not written by `predict`, whatever lies beside it."""
    path, out = photo(tmp_path / "a.png"), tmp_path / "out"
    out.mkdir()
    (out / "a.json").write_text(content, encoding="utf-8")
    photo(out / "a.overlay.png", seed=2)
    before = {file: file.read_bytes() for file in out.iterdir()}
    refused = run(model, path, "--out", out)
    assert refused.exit_code == 1 and "is in the way" in refused.stderr
    assert {file: file.read_bytes() for file in out.iterdir()} == before
    assert "1 parsed" in run(model, path, "--out", out, "--force").stdout


def test_another_model_starts_anew(model, tmp_path):
    path, out = photo(tmp_path / "a.png"), tmp_path / "out"
    run(model, path, "--out", out)
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(Path(model).read_bytes())
    assert "1 were done" in run(moved, path, "--out", out).stdout
    checkpoint.save(moved, ordnet.build("mr", classes=3, backbone="tiny"), NAMES, ((0, 0, 0),) * 3)
    assert f"1 parsed, 1 in place of results of {model}" in run(moved, path, "--out", out).stdout


def test_model_and_picture_in_the_wrong_order(model, tmp_path):
    refused = run(photo(tmp_path / "a.png"), model, "--out", tmp_path / "out")
    assert "is a picture: the model comes first" in str(refused.exception)


def test_videos_take_no_save(model, tmp_path):
    (tmp_path / "a.mp4").touch()
    refused = run(model, tmp_path / "a.mp4", "--out", tmp_path / "out", "--save", "labels")
    assert "--label-frames" in str(refused.exception)


def test_results_of_another_picture_are_not_overwritten(model, tmp_path):
    one, other, out = photo(tmp_path / "x" / "a.png"), photo(tmp_path / "y" / "a.png", seed=1), tmp_path / "out"
    run(model, one, "--out", out)
    before = (out / "a.labels.png").read_bytes()
    second = run(model, other, "--out", out)
    assert second.exit_code == 1
    assert "results of" in second.stderr and "--force" in second.stderr
    assert (out / "a.labels.png").read_bytes() == before
    assert run(model, other, "--out", out, "--force").exit_code == 0


def test_processes_share_the_pictures(model, tmp_path):
    for i in range(5):
        photo(tmp_path / "in" / f"{i}.png", seed=i)
    for rank in range(2):
        done = run(model, tmp_path / "in", "--out", tmp_path / "out", RANK=str(rank), WORLD_SIZE="2")
        assert f"{3 - rank} parsed, 0 were done" in done.stdout
    assert len(names_in(tmp_path / "out")) == 5 * 4


def listed(tmp_path, *words, **options):
    return {
        found.path.relative_to(tmp_path).as_posix(): found.stem
        for found in find_pictures([str(tmp_path / word) for word in words], **options)
    }


def test_names_tell_pictures_apart(tmp_path):
    for name in ("x/a.png", "y/a.png", "x/b.png", "x/b.jpg", "x/sub/c.png", "x/A.png"):
        photo(tmp_path / name)
    assert listed(tmp_path, "x/b.png") == {"x/b.png": "b"}
    assert listed(tmp_path, "x/b.png", "x/b.jpg") == {"x/b.png": "b.png", "x/b.jpg": "b.jpg"}
    assert listed(tmp_path, "x/a.png", "y/a.png", "x/b.png") == {
        "x/a.png": "x/a.png", "y/a.png": "y/a.png", "x/b.png": "b",
    }  # fmt: skip
    folder = listed(tmp_path, "x")
    assert folder["x/sub/c.png"] == "sub/c"
    assert len({stem.lower() for path, stem in folder.items() if path != "x/A.png"}) == len(folder) - 1
    # the same picture twice is one picture
    assert listed(tmp_path, "x/b.png", "x/b.png", "x/../x/b.png") == {"x/b.png": "b"}


def test_formats_that_cannot_be_read_are_said(model, tmp_path):
    photo(tmp_path / "in/a.jpg")
    (tmp_path / "in/b.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    done = run(model, tmp_path / "in", "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert "left out 1 .heic (cannot be read here: convert to JPEG or PNG)" in done.output
    done = run(model, tmp_path / "in/b.heic", "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert ".heic cannot be read here, convert it to JPEG or PNG" in done.output


def test_videos_of_a_folder_are_said_to_be_left_out(model, tmp_path):
    """They were skipped without a word. Hidden files, and overlays of earlier calls, are none that anybody misses."""
    photo(tmp_path / "in/a.jpg")
    for name in ("clip.MP4", ".hidden.mp4"):
        (tmp_path / "in" / name).write_bytes(b"some video")
    done = run(model, tmp_path / "in", "--out", tmp_path / "out")
    assert done.exit_code == 0 and "left out 1 video (.mp4): name videos one by one" in done.output
    (tmp_path / "in/sub").mkdir()
    (tmp_path / "in/sub/b.mov").write_bytes(b"some video")
    (tmp_path / "in/old.overlay.mp4").write_bytes(b"drawn earlier")
    (tmp_path / "in/old.json").write_text(json.dumps({"areas": {}, "files": ["old.overlay.mp4"]}))
    done = run(model, tmp_path / "in", "--out", tmp_path / "out")
    assert "left out 2 videos (.mov, .mp4): name videos one by one" in done.output
    alone = run(model, tmp_path / "in/sub", "--out", tmp_path / "out")
    assert "no pictures in" in str(alone.exception) and "found 1 video (.mov): name videos" in str(alone.exception)


def test_no_arrow_to_a_folder_that_nothing_was_written_to(model, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"no picture")
    done = run(model, tmp_path / "a.jpg", "--out", tmp_path / "out")
    assert done.stdout == "0 parsed, 0 were done already\n" and not (tmp_path / "out").exists()
    photo(tmp_path / "a.jpg")
    for words in ("1 parsed, 0 were done already", "0 parsed, 1 were done already"):
        assert run(model, tmp_path / "a.jpg", "--out", tmp_path / "out").stdout == f"{words} → {tmp_path / 'out'}\n"


def test_folders_patterns_and_odd_names(tmp_path):
    for name in (
        "in/a.png",
        "in/.hidden.png",
        "in/deep/er/b.JPG",
        "in/[1].png",
        "in/notes.txt",
        "in/out/a.overlay.png",
    ):
        photo(tmp_path / name) if not name.endswith("txt") else (tmp_path / name).write_text("")
    assert set(listed(tmp_path, "in")) == {
        "in/a.png", "in/deep/er/b.JPG", "in/[1].png", "in/out/a.overlay.png",
    }  # fmt: skip
    assert set(listed(tmp_path, "in/**/*.JPG")) == {"in/deep/er/b.JPG"}
    assert set(listed(tmp_path, "in/[1].png")) == {"in/[1].png"}
    with pytest.raises(OrdnetError, match=r"no picture, folder or match for .*nothing"):
        listed(tmp_path, "nothing*.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OrdnetError, match=r"no pictures in .*empty"):
        listed(tmp_path, "empty")


def test_results_are_not_taken_for_pictures_and_pictures_are_not_lost(model, tmp_path, monkeypatch):
    """Also where pictures and results lie in one folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "deep/b.jpg", "c.overlay.png"):  # the last has the name of a result, but no call wrote it
        photo(tmp_path / name)
    assert "1 parsed" in run(model, "a.jpg", "--out", ".").output
    done = run(model, ".", "--out", ".")
    assert "2 parsed, 1 were done already" in done.output, done.output
    assert sorted(path.name for path in tmp_path.glob("**/*.overlay.png")) == [
        "a.overlay.png", "b.overlay.png", "c.overlay.overlay.png", "c.overlay.png",
    ]  # fmt: skip
    assert "3 parsed" in run(model, ".", "--out", "elsewhere").output
    assert "0 parsed, 3 were done already" in run(model, ".", "--out", "elsewhere").output
    assert "1 parsed" in run(model, "a.overlay.png", "--out", "again").output  # asked for by its name
    done = run(model, "deep/*.png", "--out", "none")
    assert done.exit_code == 1 and "results of earlier calls do not count" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--save", "mask"], "expected some of overlay, labels, palette, beside"),
        (["--save", ","], "expected some of"),
        (["--protocol", "best"], "there are whole, multiscale, encnet"),
        (["--device", "toaster"], "no device 'toaster'"),
    ],
)
def test_wrong_options_are_named(model, tmp_path, words, message):
    done = run(model, photo(tmp_path / "a.png"), "--out", tmp_path / "out", *words)
    assert isinstance(done.exception, OrdnetError)
    assert message in str(done.exception)


def test_a_full_memory_is_reported_and_the_rest_is_done(model, tmp_path, monkeypatch):
    parse = Parser.__call__

    def full_for_large_pictures(self, picture, progress=None):
        if len(picture) == 90:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return parse(self, picture, progress)

    monkeypatch.setattr(Parser, "__call__", full_for_large_pictures)
    large, small = photo(tmp_path / "large.png", height=90), photo(tmp_path / "small.png")
    done = run(model, large, small, "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert "large.png: not enough memory" in done.stderr
    assert "1 parsed" in done.stdout


def test_an_out_that_is_a_file_is_refused(model, tmp_path):
    path = photo(tmp_path / "a.png")
    done = run(model, path, "--out", path)
    assert "is a file; give a folder" in str(done.exception)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_files_are_reported(model, tmp_path):
    path = photo(tmp_path / "a.png")
    path.chmod(0)
    assert run(model, path, "--out", tmp_path / "out").exit_code == 1


def test_probabilities_of_every_class_at_every_pixel(model, tmp_path):
    picture = photo(tmp_path / "a.png")
    done = run(model, picture, "--out", tmp_path / "out", "--save", "labels,probabilities")
    assert done.exit_code == 0, done.output
    assert names_in(tmp_path / "out") == ["a.json", "a.labels.png", "a.probabilities.npz"]
    with np.load(tmp_path / "out" / "a.probabilities.npz") as file:  # allow_pickle is off
        found, classes = file["probabilities"], file["classes"]
    assert (found.shape, found.dtype, tuple(classes)) == ((3, 30, 40), np.float16, NAMES)
    np.testing.assert_allclose(found.astype(np.float32).sum(axis=0), 1, atol=2e-3)
    scores = ordnet.load(model).scores(picture)
    np.testing.assert_allclose(found, torch.from_numpy(scores).softmax(0).numpy(), atol=1e-3)
    labels = np.asarray(Image.open(tmp_path / "out" / "a.labels.png"))
    best = found.max(axis=0)
    assert (np.take_along_axis(found, labels[None].astype(int), 0)[0] == best).mean() > 0.99
    again = run(model, picture, "--out", tmp_path / "out", "--save", "labels,probabilities")
    assert "1 were done already" in again.output
    refused = run(model, picture, "--out", tmp_path / "o", "--save", "probabilities", "--protocol", "encnet")
    assert "leave --protocol at whole" in str(refused.exception)


def test_masks_as_coco_json_for_each_picture_and_for_all(model, tmp_path):
    pictures = [photo(tmp_path / "in" / f"{name}.png", seed=seed) for seed, name in enumerate("ab")]
    done = run(model, tmp_path / "in", "--out", tmp_path / "out", "--save", "coco")
    assert done.exit_code == 0, done.output
    assert names_in(tmp_path / "out") == ["a.coco.json", "a.json", "b.coco.json", "b.json", "coco.json"]
    whole = json.loads((tmp_path / "out" / "coco.json").read_text())
    assert [image["file_name"] for image in whole["images"]] == ["a.png", "b.png"]
    assert [category["name"] for category in whole["categories"]] == list(NAMES)
    for image, path in zip(whole["images"], pictures, strict=True):
        areas = ordnet.load(model)(path).areas()
        found = {
            NAMES[each["category_id"] - 1]: each["area"] / (30 * 40)
            for each in whole["annotations"]
            if each["image_id"] == image["id"]
        }
        assert found == pytest.approx(areas)


@pytest.mark.parametrize("content", ['{"shapes": []}', "[1]", "no JSON", '{"a":' * 100_000])
def test_a_json_of_others_is_not_overwritten(model, tmp_path, content):
    """Annotations of the same name, say, in the folder that was named."""
    photo(tmp_path / "a.png")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.json").write_text(content)
    found = run(model, tmp_path / "a.png", "--out", tmp_path / "out")
    assert found.exit_code == 1 and "a.json is in the way" in found.output
    assert names_in(tmp_path / "out") == ["a.json"] and (tmp_path / "out/a.json").read_text() == content
    assert run(model, tmp_path / "a.png", "--out", tmp_path / "out", "--force").exit_code == 0
    assert "areas" in json.loads((tmp_path / "out/a.json").read_text())


@pytest.mark.parametrize("content", ['{"images": [], "categories": [], "annotations": []}', "[1]", "no JSON"])
def test_a_coco_file_of_others_is_not_overwritten(model, tmp_path, content):
    """Annotations of one's own, say. That of an earlier call is."""
    photo(tmp_path / "a.png")
    words = (model, tmp_path / "a.png", "--out", tmp_path / "out", "--save", "coco")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/coco.json").write_text(content)
    refused = run(*words)
    assert isinstance(refused.exception, OrdnetError) and "coco.json is in the way" in str(refused.exception)
    assert names_in(tmp_path / "out") == ["coco.json"] and (tmp_path / "out/coco.json").read_text() == content
    assert run(*words, "--force").exit_code == 0
    assert run(*words).exit_code == 0
    assert len(json.loads((tmp_path / "out/coco.json").read_text())["images"]) == 1


@pytest.mark.parametrize("names", [("coco",), ("a", "a.coco")])
def test_masks_and_records_of_one_name_are_refused(model, tmp_path, names):
    for name in names:
        photo(tmp_path / "in" / f"{name}.png")
    refused = run(model, tmp_path / "in", "--out", tmp_path / "out", "--save", "coco")
    assert f"what is said of the picture {names[-1]}" in str(refused.exception)
    assert run(model, tmp_path / "in", "--out", tmp_path / "out").exit_code == 0


def test_pictures_of_others_are_not_overwritten_but_those_of_a_killed_call_are(model, tmp_path, monkeypatch):
    photo(tmp_path / "a.png")
    photo(tmp_path / "b.png")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.labels.png").write_bytes(b"drawn by hand")
    words = (model, tmp_path / "a.png", tmp_path / "b.png", "--out", out, "--save", "labels,overlay")
    found = run(*words)
    assert found.exit_code == 1 and "a.labels.png is in the way" in found.output
    assert (out / "a.labels.png").read_bytes() == b"drawn by hand"
    assert names_in(out) == ["a.labels.png", "b.json", "b.labels.png", "b.overlay.png"]
    (out / "a.labels.png").unlink()
    with monkeypatch.context() as patch:  # ends between the files of a picture
        patch.setattr("ordnet.inference.parse.Parse.overlay", lambda *words: os.write(-1, b""))
        assert run(*words).exit_code == 1
    assert names_in(out)[:2] == [".a.unfinished", "a.labels.png"]
    assert run(*words).exit_code == 0
    assert [name for name in names_in(out) if "a" in name.split(".")] == ["a.json", "a.labels.png", "a.overlay.png"]


def test_many_at_once_give_what_one_at_a_time_gives_in_order(model, tmp_path):
    sizes = [(24 + 5 * (i % 4), 30 + 7 * (i % 3)) for i in range(14)]
    for number, (height, width) in enumerate(sizes):
        photo(tmp_path / "in" / f"{number:02}.png", height, width, seed=number)
    (tmp_path / "in" / "05.png").write_bytes(b"not a picture")
    (tmp_path / "in" / "09.png").write_bytes(b"")
    job = Prediction(model, [str(tmp_path / "in")], tmp_path / "out", ("labels",))
    outcomes = list(job.run())
    assert [outcome.picture.stem for outcome in outcomes] == [f"{number:02}" for number in range(14)]
    assert [outcome.picture.stem for outcome in outcomes if outcome.failure] == ["05", "09"]
    assert all(str(outcome.picture.path) in outcome.failure for outcome in outcomes if outcome.failure)
    parser = ordnet.load(model)
    for outcome in outcomes:
        if outcome.failure is None:
            written = np.asarray(Image.open(tmp_path / "out" / f"{outcome.picture.stem}.labels.png"))
            assert (written == parser(outcome.picture.path).labels).mean() > 0.999  # up to rounding
    assert [outcome.skipped for outcome in job.run()] == [outcome.failure is None for outcome in outcomes]
    assert not any(outcome.skipped for outcome in job.run(force=True))


def test_pictures_that_fill_the_memory_go_alone(model, tmp_path, monkeypatch):
    """Whatever is under way together never needs more than the bounds on pixels."""
    under_way, most = [], []
    parse = Parser.__call__

    def counted(self, picture, progress=None):
        under_way.append(picture[..., 0].size)
        most.append(list(under_way))
        try:
            return parse(self, picture, progress)
        finally:
            under_way.remove(picture[..., 0].size)

    monkeypatch.setattr(Parser, "__call__", counted)
    for number in range(12):
        photo(tmp_path / "in" / f"{number:02}.png", 40, 60 if number % 3 else 130, seed=number)
    job = Prediction(model, [str(tmp_path / "in")], tmp_path / "out", ("labels",), whole_up_to=5000)
    assert not any(outcome.failure for outcome in job.run())
    assert len(most) == 12
    assert all(len(together) == 1 or sum(together) <= 5000 for together in most)


def test_a_caller_that_stops_listening_ends_the_work(model, tmp_path):
    for number in range(30):
        photo(tmp_path / "in" / f"{number:02}.png", seed=number)
    job = Prediction(model, [str(tmp_path / "in")], tmp_path / "out", ("labels",))
    outcomes = job.run()
    next(outcomes)
    outcomes.close()
    written = names_in(tmp_path / "out")
    assert len(written) < 60  # what was under way is complete, the rest was never begun
    assert {name.split(".")[0] for name in written if name.endswith(".json")} == {
        name.split(".")[0] for name in written
    }


def test_a_cold_start_imports_nothing_that_it_does_not_need(model, tmp_path):
    heavy = (
        *(
            "matplotlib",
            "scipy",
            "pandas",
            "torchvision",
            "timm",
            "accelerate",
            "huggingface_hub",
            "onnx",
            "onnxruntime",
        ),
        *("fastapi", "uvicorn", "tensorboard", "av", "torch._dynamo", "torch._inductor", "torch.onnx", "sympy"),
    )
    words = ["predict", model, str(photo(tmp_path / "a.png")), "--out", str(tmp_path / "out")]
    script = (
        "import sys, torch\nwith_torch = set(sys.modules)\nfrom ordnet.commands import app\n"
        f"app({words!r}, standalone_mode=False)\n"
        f"print([name for name in {heavy!r} if name in sys.modules and name not in with_torch])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def command(*words, **environment):
    """Through a process of its own: exit code, and all that it said, as bytes."""
    line = [sys.executable, "-m", "ordnet", "predict", *map(os.fsencode, map(str, words))]
    done = subprocess.run(line, capture_output=True, check=False, env={**os.environ, **environment}, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_names_that_a_terminal_would_obey_are_shown_escaped(model, tmp_path):
    (tmp_path / "in").mkdir()
    for name in (b"\x1b[2Jx.jpg", b"caf\xe9.jpg"):
        try:
            Path(os.fsdecode(os.fsencode(tmp_path / "in") + b"/" + name)).write_bytes(b"no picture")
        except OSError:
            pytest.skip("this file system takes UTF-8 alone")
    code, said = command(model, tmp_path / "in", "--out", tmp_path / "out")
    assert code == 1 and b"\x1b" not in said
    assert said.count(b"/\\x1b[2Jx.jpg") == said.count(b"/caf\\udce9.jpg") == 1
    # and the bar, which only a terminal gets
    told = []
    bar = SimpleNamespace(
        add_task=lambda *words, **_: told.append(words), update=lambda *_, **words: told.append(words)
    )
    _run(Prediction(model, [str(tmp_path / "in")], tmp_path / "out", ("labels",)), bar, force=False)
    names = [words["description"] for words in told if "description" in words]
    assert len(names) == 2 and all(map(is_printable, names))


def test_a_terminal_that_knows_few_letters(model, tmp_path):
    """Arrows, and folders whose names are no text, were trace-backs after the work was done."""
    picture = photo(tmp_path / "a.png")
    code, said = command(model, picture, "--out", tmp_path / "out", PYTHONIOENCODING="ascii")
    assert code == 0 and b"1 parsed, 0 were done already \\u2192" in said
    strange = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    code, said = command(model, picture, "--out", strange, PYTHONIOENCODING="utf-8:strict")
    assert code == 0 and b"caf\\udce9" in said


@pytest.mark.parametrize("kind", ["words", "pipe"])
def test_masks_of_others_are_not_gathered(model, tmp_path, kind):
    """That picture was refused, and then its file was read all the same: a trace-back, or no end."""
    photo(tmp_path / "a.png")
    photo(tmp_path / "b.png")
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.coco.json").write_text("[1]") if kind == "words" else os.mkfifo(out / "a.coco.json")
    code, said = command(model, tmp_path / "a.png", tmp_path / "b.png", "--out", out, "--save", "coco")
    assert code == 1 and b"a.coco.json is in the way" in said and b"Traceback" not in said
    assert [each["file_name"] for each in json.loads((out / "coco.json").read_text())["images"]] == ["b.png"]
    if kind == "words":  # one of ours that was spoilt later
        (out / "b.coco.json").write_text("{}")
        with pytest.raises(OrdnetError, match=r"b\.coco\.json does not hold the masks"):
            raise run(model, tmp_path / "b.png", "--out", out, "--save", "coco").exception


def test_what_others_put_beside_our_results_stays(model, tmp_path):
    """Labels that were drawn by hand, beside an overlay of an earlier call: settings that differ once replaced them."""
    picture, out = photo(tmp_path / "a.png"), tmp_path / "out"
    assert run(model, picture, "--out", out, "--save", "overlay").exit_code == 0
    assert json.loads((out / "a.json").read_text())["files"] == ["a.overlay.png"]
    (out / "a.labels.png").write_bytes(b"drawn by hand")
    for words in ((), ("--strength", "0.7"), ("--long-side", "20")):
        found = run(model, picture, "--out", out, "--save", "overlay,labels", *words)
        assert found.exit_code == 1 and "a.labels.png is in the way" in found.output
        assert (out / "a.labels.png").read_bytes() == b"drawn by hand"
    assert run(model, picture, "--out", out, "--save", "overlay", "--strength", "0.7").exit_code == 0
    assert run(model, picture, "--out", out, "--save", "labels", "--force").exit_code == 0
    assert json.loads((out / "a.json").read_text())["files"] == ["a.labels.png", "a.overlay.png"]
    assert run(model, picture, "--out", out, "--save", "overlay,labels", "--strength", "0.2").exit_code == 0
    # records from before they had such lists
    record = json.loads((out / "a.json").read_text())
    del record["files"]
    (out / "a.json").write_text(json.dumps(record))
    assert run(model, picture, "--out", out, "--save", "overlay,labels", "--strength", "0.3").exit_code == 0


# ---- places that cannot be written to, and Ctrl-C, which are the same for all commands -----------------------------


@pytest.fixture
def unwritable(tmp_path):
    """Names below a regular file, which not even root can write."""
    (tmp_path / "file").write_text("")
    return tmp_path / "file"


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("predict outdoor PICTURE --out RO/x", "--out"),
        ("predict outdoor PICTURE clip.mp4 --out RO/x/y", "--out"),
        ("explain outdoor PICTURE --at 5,5 --out RO/x.png", "--out"),
        ("explain outdoor PICTURE --at 5,5 --out x.png --json RO/x.json", "--json"),
        ("evaluate outdoor --data scenes --json RO/x.json", "--json"),
        ("compare outdoor --data scenes --out RO/x.png", "--out"),
        ("submit voc outdoor --data voc:x --out RO/x.tgz", "--out"),
        ("demo --out RO/x", "--out"),
        ("data stats scenes --json RO/x.json", "--json"),
        ("data preview scenes --out RO/x.png", "--out"),
        ("data correlate scenes --out x.png --json RO/x.json", "--json"),
        ("data shards scenes --out RO/x", "--out"),
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(unwritable, words, option, monkeypatch):
    places = {"PICTURE": str(sample_picture()), "RO": str(unwritable)}
    for name, place in places.items():
        words = words.replace(name, place)
    monkeypatch.setattr(torch.nn.Module, "__call__", pytest.fail)  # no network runs
    found = CliRunner().invoke(app, words.split())
    assert isinstance(found.exception, OrdnetError), found.output
    place = next(word for word in words.split() if word.startswith(f"{unwritable}/"))
    assert str(found.exception) == f"cannot write to {place}: {unwritable} is no folder; choose another {option}"
    assert found.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(model, tmp_path):
    (tmp_path / "ro").mkdir(mode=0o500)
    found = run(model, photo(tmp_path / "a.png"), "--out", tmp_path / "ro/x")
    assert str(found.exception) == f"cannot write to {tmp_path / 'ro/x'}: permission denied; choose another --out"


def test_what_cannot_be_written_after_all(unwritable, capsys, monkeypatch):
    """A place that was not looked at before, or that others have changed meanwhile: the option that named it."""

    def work():
        raise CannotWrite(13, "Permission denied", str(unwritable / "b"))

    monkeypatch.setattr("ordnet.commands.app", work)
    for option in ("--json", "--out"):
        monkeypatch.setattr("sys.argv", ["ordnet", "bench", "block", option, str(unwritable / "b")])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err
        assert ended.value.code == 1
        assert said == f"ordnet: cannot write to {unwritable / 'b'}: permission denied; choose another {option}\n"
    for path in (unwritable / "b", unwritable / "b/c"):
        with pytest.raises(CannotWrite) as caught:
            write_text(path, "words")
        assert str(caught.value).startswith(f"cannot write to {path}: ")


def interrupted(script: str, *words: str, ready: str) -> tuple[int, str]:
    """Exit code and standard error of a command that is sent SIGINT once `ready` stands in what it prints.

    `script` runs before it, in the same process.
    """
    line = f"import sys, time\n{script}\nfrom ordnet.commands import main\nsys.argv = {['ordnet', *words]!r}\nmain()"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", line], **pipes) as process:
        assert any(ready in said for said in process.stdout)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


WAITS = """
def wait(*words, **named):
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ("import ordnet.evaluation.evaluate as e; e.open_dataset = wait", "evaluate outdoor --data scenes"),
        ("import ordnet.commands.data_output as e; e.sheet = wait", "data preview scenes --out x.png"),
        ("import ordnet.study.demo as e; e._photo = wait", "demo --out OUT"),
        ("import ordnet.inference.parser as e; e.load = wait", "explain outdoor PICTURE --at 5,5 --out x.png"),
    ],
)
def test_ctrl_c_is_answered(tmp_path, patch, words):
    """It ended every command but a training without a word."""
    words = words.replace("OUT", str(tmp_path / "out")).replace("PICTURE", str(sample_picture()))
    code, errors = interrupted(WAITS + patch, *words.split(), ready="ready")
    assert (code, errors) == (130, "ordnet: interrupted\n")


SLOW = """
from ordnet.inference.parser import Parser
parse = Parser.__call__
def slowly(self, picture, progress=None):
    print("ready", picture[0, 0, 0], flush=True)
    time.sleep(0.3)
    return parse(self, picture, progress)
Parser.__call__ = slowly
"""


@pytest.mark.parametrize("force", [False, True])
def test_ctrl_c_says_how_far_it_came_and_the_same_command_continues(model, tmp_path, force):
    for number in range(30):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(photo(tmp_path / "in" / f"{number:02}.png"))
    words = ["predict", model, str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--save", "labels"]
    code, errors = interrupted(SLOW, *words, *["--force"] * force, ready="ready 6")
    said = re.fullmatch(r"ordnet: interrupted after (\d+) of 30 pictures; the same command (.*)continues\n", errors)
    assert code == 130 and said, errors
    assert said[2] == ("without --force " if force else "")
    written = len(list((tmp_path / "out").glob("*.json")))
    assert int(said[1]) <= written < 30
    assert f"{30 - written} parsed, {written} were done already" in run(*words[1:]).output
