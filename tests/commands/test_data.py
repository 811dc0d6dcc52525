"""`ordnet data …` as a user calls it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from ordnet.commands import app
from ordnet.config import Settings, override
from ordnet.errors import OrdnetError


def run(*words):
    """Exit code and everything printed. As in `main`, an OrdnetError is one message and code 1."""
    result = CliRunner().invoke(app, ["data", *map(str, words)])
    if isinstance(result.exception, OrdnetError):
        return 1, f"{result.output}ordnet: {result.exception}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures, upper half sky, lower half ground."""
    root = tmp_path / "set"
    for part in ("images", "labels"):
        (root / part).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for index in range(12):
        Image.fromarray(rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(root / "images" / f"{index:02}.png")
        label = np.zeros((30, 40), dtype=np.uint8)
        label[15:] = 1
        label[0, 0] = 255
        Image.fromarray(label).save(root / "labels" / f"{index:02}.png")
    (root / "classes.txt").write_text("sky\n[bold]ground\nnever\n")
    (root / "train.txt").write_text("".join(f"{index:02}\n" for index in range(8)))
    (root / "val.txt").write_text("".join(f"{index:02}\n" for index in range(8, 12)))
    return root


def test_check_of_a_sound_set(folder):
    code, text = run("check", f"folder:{folder}")
    assert code == 0
    assert "train 8, val 4" in text
    assert "nothing is wrong" in text
    assert "never in train: never" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "0", "sky", "7,188", "49.92%", "12"] in rows
    assert ["1", "1", "[bold]ground", "7,200", "50.00%", "12"] in rows
    assert ["255", "–", "ignored", "12", "0.08%", "12"] in rows


def test_names_are_printed_as_they_are(folder):
    """`:phone:` between two colons is an emoji to some."""
    renamed = folder.rename(folder.parent / "phone")
    assert f"folder:{renamed}: train 8" in run("check", f"folder:{renamed}")[1]
    (renamed / "classes.txt").write_text(":sky:\n:phone:\nnever\n")
    assert ":phone:" in run("stats", f"folder:{renamed}")[1]


def test_large_pictures_are_remarked_on(folder):
    for file in (*folder.glob("images/*"), *folder.glob("labels/*")):
        Image.open(file).resize((1200, 900), Image.Resampling.NEAREST).save(file)
    assert (
        "a training crop of 256 shows a small part of them; `--set data.long_side=512`"
        in run("check", f"folder:{folder}")[1]
    )


def test_check_groups_and_counts_problems(folder):
    for index in range(12):
        label = np.full((30, 40), 9, dtype=np.uint8)
        Image.fromarray(label).save(folder / "labels" / f"{index:02}.png")
    (folder / "val.txt").write_text("".join(f"{index:02}\n" for index in range(12)))
    code, text = run("check", f"folder:{folder}")
    assert code == 1
    assert "values outside the classes: 20" in text
    assert "9 (1,200 pixels)" in text
    assert "in two splits: 8" in text
    assert "28 problems" in text
    assert sum(line.startswith(("  /", "  0")) for line in text.splitlines()) <= 20


def test_a_test_split_that_nobody_made_is_no_news(folder):
    """Few folders have one; what is said of one that is there and broken stays."""
    assert "test was not checked" not in run("check", f"folder:{folder}")[1]
    for part in ("train", "val"):
        (folder / f"{part}.txt").unlink()
    code, text = run("check", f"folder:{folder}")
    assert code == 0 and "there are: none" not in text and "test was not checked" not in text
    (folder / "test.txt").write_text("nowhere\n")
    code, text = run("check", f"folder:{folder}")
    assert "test was not checked, and training does not need it: 1 of 1 images are missing: nowhere" in text


def test_preview_of_a_broken_picture_says_what_lists_them_all(folder, tmp_path):
    (folder / "images/03.png").write_bytes(b"no picture")
    code, text = run("preview", f"folder:{folder}", "--n", 8, "--out", tmp_path / "a.png")
    assert code == 1 and "03.png is not a picture" in text and f"`ordnet data check folder:{folder}` lists all" in text


def test_check_of_one_split(folder):
    (folder / "train.txt").write_text("nowhere\n")
    assert run("check", f"folder:{folder}", "--split", "val")[0] == 0
    code, text = run("check", f"folder:{folder}")
    assert code == 1
    assert "nowhere" in text


def test_stats_prints_weights_that_training_takes(folder, tmp_path):
    code, text = run("stats", f"folder:{folder}", "--json", tmp_path / "s.json")
    assert code == 0
    line = next(line for line in text.splitlines() if line.startswith("--set"))
    settings = override(Settings(), [line.removeprefix("--set ")])
    values = json.loads((tmp_path / "s.json").read_text())
    assert list(settings.training.class_weights) == values["class_weights"]
    assert values["images"] == 8
    assert values["classes"][1] == {
        "name": "[bold]ground",
        "pixels": 4800,
        "share": pytest.approx(4800 / 9592),
        "images": 8,
        "weight": values["class_weights"][1],
    }
    assert "40x30 (8)" in text


def test_stats_refuses_broken_labels(folder):
    (folder / "labels" / "03.png").write_bytes(b"")
    code, text = run("stats", f"folder:{folder}")
    assert code == 1
    assert "03.png" in text
    assert "ordnet data check" in text


def test_preview_is_a_picture_that_the_seed_decides(folder, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        out = tmp_path / f"{name}.png"
        code, _ = run("preview", f"folder:{folder}", "--n", 5, "--crop", 64, "--seed", seed, "--out", out)
        assert code == 0
    first, same, other = (np.asarray(Image.open(tmp_path / f"{name}.png")) for name in "abc")
    np.testing.assert_array_equal(first, same)
    assert first.shape != other.shape or (first != other).any()
    assert first.shape[1] > 4 * 64


def test_preview_of_generated_scenes(tmp_path):
    assert run("preview", "scenes", "--n", 2, "--crop", 64, "--out", tmp_path / "s.png")[0] == 0
    assert Image.open(tmp_path / "s.png").width > 2 * 64


@pytest.mark.parametrize(
    ("patches", "expected"), [([], [2, 4]), (["--patches", 3], [3]), (["--patches", 2, 4, 1], [2, 4, 1])]
)
def test_correlate(folder, tmp_path, patches, expected):
    words = ["--n", 4, *patches, "--out", tmp_path / "c.png", "--json", tmp_path / "c.json"]
    code, text = run("correlate", f"folder:{folder}", *words)
    assert code == 0
    values = json.loads((tmp_path / "c.json").read_text())
    assert values["images"] == 4
    assert [row["patches"] for row in values["patches"]] == expected
    assert Image.open(tmp_path / "c.png").width > 100
    if 2 in expected:
        # upper patches are all sky, lower ones all ground
        assert values["patches"][0]["matrix"] == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
        assert (values["patches"][0]["intra"], values["patches"][0]["inter"]) == (1, pytest.approx(1 / 3, abs=1e-6))
        assert "1.000" in text


def test_import_and_check(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for index in range(5):
        Image.new("RGB", (20, 10), (index, 0, 0)).save(source / f"{index}.png")
        shapes = [
            {"label": "dog", "shape_type": "polygon", "points": [[0, 0], [9, 0], [9, 9]]},
            {"label": "dog", "shape_type": "line", "points": [[0, 0], [9, 0]]},
        ]
        (source / f"{index}.json").write_text(json.dumps({"shapes": shapes, "imagePath": f"{index}.png"}))
    code, text = run("import", "labelme", source, "--out", tmp_path / "new")
    assert code == 0
    assert "train 4, val 1" in text
    assert "background, dog" in text
    assert "left out: 5 line shapes" in text
    assert run("check", f"folder:{tmp_path / 'new'}")[0] == 0
    code, text = run("import", "labelme", source, "--out", tmp_path / "new")
    assert code == 1
    assert text.strip() == f"ordnet: {tmp_path / 'new'} exists and is not an empty folder: name a new one"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "folder:/no/such/place"], "/no/such/place"),
        (["check", "nothing"], "no data set 'nothing'"),
        (["check", "folder"], "folder:PATH"),
        (["check", "SET", "--split", "extra"], "extra"),
        (["stats", "SET", "--split", "extra"], "extra"),
        (["stats", "SET", "--json", "FILE/x.json"], "cannot write"),
        (["preview", "SET", "--n", "99", "--out", "x.png"], "has only 8 samples"),
        (["preview", "SET", "--out", "x.xyz"], "ends in .png"),
        (["preview", "SET", "--out", "FILE/x.png"], "cannot write"),
        (["preview", "SET"], "--out"),
        (["preview", "SET", "--n", "0", "--out", "x.png"], "--n"),
        (["correlate", "SET", "--n", "9", "--out", "x.png"], "has only 8 samples"),
        (["correlate", "SET", "--n", "4", "--out", "FILE/x.png"], "cannot write"),
        (["correlate", "SET", "--patches", "2", "four", "--out", "x.png"], "four"),
        (["correlate", "SET", "7", "--out", "x.png"], "cannot make sense of 7"),
        (["correlate", "SET", "--patches", "0", "--out", "x.png"], "--patches"),
        (["import", "labelme", "/no/such/place", "--out", "OUT"], "not a folder"),
        (["import", "labelme", "SRC", "--out", "OUT"], "no labelme files"),
        (["import", "labelme", "SRC", "--images", "SRC", "--out", "OUT"], "belongs to coco"),
        (["import", "coco", "FILE", "--out", "OUT"], "not readable as JSON"),
        (["import", "coco", "FILE", "--images", "/no/such/place", "--out", "OUT"], "no such folder"),
        (["import", "other", "SRC", "--out", "OUT"], "other"),
    ],
)
def test_mistakes_end_in_one_message(folder, tmp_path, words, says):
    file = tmp_path / "file.txt"
    file.write_text("text")
    places = {"SET": f"folder:{folder}", "SRC": str(folder / "labels"), "OUT": str(tmp_path / "out")}
    code, text = run(*(places.get(word, word).replace("FILE", str(file)) for word in words))
    assert code in (1, 2)
    assert says in text
    assert not (tmp_path / "out").exists()


def test_the_program_itself_prints_no_trace_back(tmp_path):
    command = [sys.executable, "-m", "ordnet", "data", "check", "folder:/no/such/place"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("ordnet: folder: there is no folder /no/such/place")
    assert "Traceback" not in done.stderr
