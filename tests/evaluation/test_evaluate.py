"""Scores of a checkpoint through the command line, alone and with two processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import ordnet
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import read_pair
from ordnet.errors import OrdnetError
from ordnet.evaluation.confusion import Confusion
from ordnet.evaluation.evaluate import refuse_other_classes
from ordnet.inference import stream
from ordnet.inference.parser import Parser
from ordnet.model import checkpoint
from ordnet.model.pixels import normalise
from tests.small_data import CLASSES, write_folder

COLOURS = ((0, 0, 255), (0, 128, 0), (255, 0, 0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "own", train=2, val=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "net.safetensors"
    checkpoint.save(path, ordnet.build("ordnet", classes=3, backbone="tiny"), CLASSES, COLOURS)
    return path


def run(*words, start=(sys.executable, "-m", "ordnet")):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*start, "evaluate", *map(str, words)], capture_output=True, text=True, env=environment, check=False
    )


def by_hand(model, folder):
    """Pixel accuracy and IoU from the whole set's labels laid end to end."""
    net, val = checkpoint.load(model).net, open_dataset(f"folder:{folder}", "val")
    truth, guess = [], []
    for index in range(len(val.ids)):
        image, label = read_pair(val, index)
        with torch.no_grad():
            scores = net(normalise(torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]))
        truth.append(label.ravel())
        guess.append(scores[0].argmax(0).numpy().ravel())
    truth, guess = np.concatenate(truth), np.concatenate(guess)
    truth, guess = truth[truth != 255], guess[truth != 255]
    iou = {
        name: ((truth == c) & (guess == c)).sum() / ((truth == c) | (guess == c)).sum()
        for c, name in enumerate(CLASSES)
    }
    return (truth == guess).mean(), iou


def test_figures(model, folder, tmp_path):
    out, chart = tmp_path / "scores.json", tmp_path / "confusion.png"
    done = run(model, "--data", f"folder:{folder}", "--json", out, "--out", chart)
    assert done.returncode == 0, done.stderr
    figures = json.loads(out.read_text())
    accuracy, iou = by_hand(model, folder)
    assert figures["pixel_accuracy"] == pytest.approx(accuracy)
    assert figures["per_class_iou"] == pytest.approx(iou)
    assert figures["miou"] == pytest.approx(np.mean(list(iou.values())))
    assert (figures["protocol"], figures["data"], figures["split"], figures["images"]) == ("whole", "folder", "val", 5)
    assert "protocol whole" in done.stdout
    assert Image.open(chart).size[0] > 300


def test_two_processes_give_the_identical_figures(model, folder, tmp_path):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ordnet")
    for out, start in (("one.json", (sys.executable, "-m", "ordnet")), ("two.json", torchrun)):
        done = run(model, "--data", f"folder:{folder}", "--json", tmp_path / out, start=start)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one.json").read_text() == (tmp_path / "two.json").read_text()


def test_from_python(model, folder):
    evaluation = ordnet.evaluate(model, f"folder:{folder}", protocol="multiscale")
    figures = evaluation.figures()
    assert figures["protocol"] == "multiscale"
    assert figures["scales"] == [0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    assert evaluation.confusion.matrix.sum() == 5 * (40 * 32 - 1)


def test_an_exported_model_scores_as_its_checkpoint(model, folder, tmp_path):
    from ordnet.inference.onnx.export import export

    file = tmp_path / "model.onnx"
    export(model, file)
    done = run(file, "--data", f"folder:{folder}", "--json", tmp_path / "scores.json")
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "scores.json").read_text())
    expected = ordnet.evaluate(model, f"folder:{folder}").figures()
    assert figures["pixel_accuracy"] == pytest.approx(expected["pixel_accuracy"], abs=1e-3)
    assert figures["per_class_iou"] == pytest.approx(expected["per_class_iou"], abs=2e-3)
    assert (figures["protocol"], figures["images"]) == ("whole", 5)
    with pytest.raises(OrdnetError, match="protocol whole only"):
        ordnet.evaluate(file, f"folder:{folder}", protocol="multiscale")


def test_a_parser_in_place_of_a_file_is_answered_with_what_to_do(model, folder):
    with pytest.raises(OrdnetError, match=r"takes a model's file or name, not a Parser"):
        ordnet.evaluate(ordnet.load(model), f"folder:{folder}")


def test_other_classes_are_refused_with_both_lists(model, tmp_path):
    other = write_folder(tmp_path / "other", train=2, val=2, classes=("cat", "dog", "cow"))
    done = run(model, "--data", f"folder:{other}")
    assert done.returncode == 1
    assert "model (3): sky, ground, thing" in done.stderr
    assert "data  (3): cat, dog, cow" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--protocol", "best"], "there is no protocol 'best'"),
        (["--split", "nope"], "nope"),
        (["--data", "ade30k:x"], "there is no data set 'ade30k'"),
    ],
)
def test_wrong_words(model, folder, words, message):
    done = run(model, "--data", f"folder:{folder}", *words)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_place_that_cannot_be_written(model, folder):
    done = run(model, "--data", f"folder:{folder}", "--json", "/proc/nowhere/scores.json")
    assert done.returncode == 1
    assert done.stderr.strip().startswith("ordnet: ")
    assert "/proc/nowhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_picture(model, tmp_path):
    folder = write_folder(tmp_path / "broken", train=2, val=3)
    (folder / "images" / "003.png").write_bytes(b"x")
    done = run(model, "--data", f"folder:{folder}")
    assert done.returncode == 1
    assert "003.png" in done.stderr
    done = run(model, "--data", f"folder:{folder}", "--skip-broken")
    assert done.returncode == 0, done.stderr
    assert "2 pictures" in done.stdout
    assert "left out" in done.stdout


def test_a_part_switched_off(folder, tmp_path):
    """--without block is the network without its block; the figures say what was off."""
    torch.manual_seed(3)
    net = ordnet.build("ordnet", classes=len(CLASSES), backbone="tiny").eval()
    for parameter in net.block.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    colours = tuple((i, i, i) for i in range(len(CLASSES)))
    checkpoint.save(tmp_path / "with.safetensors", net, CLASSES, colours)
    plain = ordnet.build("dilated-fcn", classes=len(CLASSES), backbone="tiny").eval()
    plain.load_state_dict({key: value for key, value in net.state_dict().items() if not key.startswith("block.")})
    checkpoint.save(tmp_path / "plain.safetensors", plain, CLASSES, colours)
    data = f"folder:{folder}"
    off = ordnet.evaluate(tmp_path / "with.safetensors", data, without="block")
    np.testing.assert_array_equal(
        off.confusion.matrix, ordnet.evaluate(tmp_path / "plain.safetensors", data).confusion.matrix
    )
    assert off.figures()["without"] == "block"
    for part in ("middle", "long", "gate"):
        assert ordnet.evaluate(tmp_path / "with.safetensors", data, without=part).figures()["without"] == part
    with pytest.raises(OrdnetError, match="no gate that could be switched off"):
        ordnet.evaluate(tmp_path / "plain.safetensors", data, without="gate")


@pytest.mark.parametrize("protocol", ["whole", "multiscale"])
def test_it_takes_what_predict_takes(model, tmp_path, monkeypatch, protocol):
    """Single pixels, lines, and pictures that are streamed: the labels are those of `predict`."""
    monkeypatch.setitem(Parser.__init__.__kwdefaults__, "whole_up_to", 3000)
    chance = np.random.default_rng(0)
    for kind in ("images", "labels"):
        (tmp_path / kind).mkdir()
    (tmp_path / "classes.txt").write_text("\n".join(CLASSES))
    sizes = {"pixel": (1, 1), "row": (1, 700), "column": (500, 1), "large": (70, 90)}
    expected, parser = Confusion(3), ordnet.load(model, protocol=protocol)
    for name, size in sizes.items():
        image, label = chance.integers(0, 256, (*size, 3), np.uint8), chance.integers(0, 3, size, np.uint8)
        Image.fromarray(image).save(tmp_path / f"images/{name}.png")
        Image.fromarray(label).save(tmp_path / f"labels/{name}.png")
        expected.add(torch.from_numpy(label), parser(image).labels)
    (tmp_path / "val.txt").write_text("\n".join(sizes))
    (tmp_path / "train.txt").write_text("large\n")
    streamed = []
    real = stream.labels
    monkeypatch.setattr(stream, "labels", lambda *words, **more: streamed.append(1) or real(*words, **more))
    found = ordnet.evaluate(model, f"folder:{tmp_path}", protocol=protocol)
    assert np.array_equal(found.confusion.matrix, expected.matrix)
    assert bool(streamed) == (protocol == "whole")


def test_other_classes_are_named_in_few_words():
    model = tuple(f"class {number}" for number in range(150))
    with pytest.raises(OrdnetError) as caught:
        refuse_other_classes(model, (*model[:-1], "lamp"))
    said = str(caught.value)
    assert "different classes" in said and len(said) < 500
    assert "model (150): class 0, class 1, class 2 and 147 more; only here: class 149\n" in said
    assert "data  (150): class 0, class 1, class 2 and 147 more; only here: lamp\n" in said
    assert "take a model that was trained on these classes" in said and "classes.txt" in said
    with pytest.raises(OrdnetError, match="the same classes in another order"):
        refuse_other_classes(("a", "b"), ("b", "a"))
    refuse_other_classes(["a", "b"], ("a", "b"))


def test_a_broken_picture_says_what_lists_them_all(model, tmp_path):
    own = write_folder(tmp_path / "own", train=2, val=5)
    (own / "images/003.png").write_bytes(b"no picture")
    done = run(model, "--data", f"folder:{own}")
    assert done.returncode == 1 and "003.png is not a picture" in done.stderr
    assert f"`ordnet data check folder:{own}` lists all that is broken; --skip-broken leaves it out" in done.stderr
    assert run(model, "--data", f"folder:{own}", "--skip-broken").returncode == 0
