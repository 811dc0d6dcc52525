"""Predictions for the servers: names, raw ids, palettes, read back from the archive."""

import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

import ordnet
from ordnet.data.catalogue import open_dataset
from ordnet.errors import OrdnetError
from ordnet.evaluation.submission import _members, submit, voc_palette
from ordnet.model import checkpoint


def save_model(path, dataset):
    torch.manual_seed(0)
    net = ordnet.build("dilated-fcn", classes=len(dataset.classes), backbone="tiny")
    checkpoint.save(path, net, dataset.classes.names, dataset.classes.colours)
    return net.eval()


def pictures(folder, names, sizes=((20, 16), (17, 23))):
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, (width, height) in zip(names, sizes, strict=True):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(folder / f"{name}.jpg")


@pytest.fixture
def ade20k(tmp_path):
    pictures(tmp_path / "release_test" / "testing", ("ADE_test_00000001", "ADE_test_00000002"))
    for split in ("training", "validation"):
        pictures(tmp_path / "ADEChallengeData2016" / "images" / split, (), ())
        (tmp_path / "ADEChallengeData2016" / "annotations" / split).mkdir(parents=True)
    return f"ade20k:{tmp_path}"


@pytest.fixture
def voc(tmp_path):
    root = tmp_path / "VOCdevkit" / "VOC2012"
    pictures(root / "JPEGImages", ("2008_000001", "2008_000002"))
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "test.txt").write_text("2008_000001\n2008_000002\n")
    (root / "SegmentationClass").mkdir()
    return f"voc:{root}"


def test_ade20k(ade20k, tmp_path):
    data = open_dataset(ade20k, "test")
    net = save_model(tmp_path / "net.safetensors", data)
    assert submit("ade20k", tmp_path / "net.safetensors", ade20k, tmp_path / "out.zip", "whole") == 2
    from ordnet.model.pixels import normalise

    with zipfile.ZipFile(tmp_path / "out.zip") as file:
        assert file.namelist() == ["ADE_test_00000001.png", "ADE_test_00000002.png"]
        for index, name in enumerate(file.namelist()):
            raw = np.asarray(Image.open(io.BytesIO(file.read(name))))
            image = torch.from_numpy(np.array(data.image(index))).permute(2, 0, 1)[None]
            with torch.no_grad():
                # the server's ids start at 1
                assert (raw == net(normalise(image))[0].argmax(0).numpy() + 1).all()


def test_voc(voc, tmp_path):
    save_model(tmp_path / "net.safetensors", open_dataset(voc, "test"))
    command = [sys.executable, "-m", "ordnet", "submit", "voc", str(tmp_path / "net.safetensors"), "--data", voc]
    done = subprocess.run([*command, "--out", str(tmp_path / "o.tar.gz")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 predictions, protocol encnet, read back and checked" in done.stdout
    unpacked = tmp_path / "unpacked"
    subprocess.run(["tar", "-xzf", tmp_path / "o.tar.gz", "--one-top-level=unpacked"], cwd=tmp_path, check=True)
    folder = unpacked / "results" / "VOC2012" / "Segmentation" / "comp6_test_cls"
    files = [path for path in unpacked.rglob("*") if path.is_file()]
    assert sorted(files) == [folder / "2008_000001.png", folder / "2008_000002.png"]
    for path, size in zip(sorted(files), ((20, 16), (17, 23)), strict=True):
        with Image.open(path) as picture:
            assert (picture.mode, picture.size) == ("P", size)
            assert np.asarray(picture).max() <= 20
            assert bytes(picture.getpalette()[:63]) == voc_palette()[:63]


@pytest.mark.parametrize("ending", [".tgz", ".zip"])
def test_other_archives_of_voc_hold_the_same_files(voc, tmp_path, ending):
    save_model(tmp_path / "net.safetensors", open_dataset(voc, "test"))
    for name in (f"a{ending}", "b.tar.gz"):
        assert submit("voc", tmp_path / "net.safetensors", voc, tmp_path / name, "whole") == 2
    assert list(_members(tmp_path / f"a{ending}")) == list(_members(tmp_path / "b.tar.gz"))


def test_cityscapes_wants_original_ids(tmp_path):
    root = tmp_path / "cityscapes"
    rng = np.random.default_rng(0)
    names = ["berlin/berlin_000000_000019", "bonn/bonn_000001_000019"]
    for name in names:
        path = root / "leftImg8bit" / "test" / f"{name}_leftImg8bit.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (16, 32, 3), np.uint8)).save(path)
    data = open_dataset(f"cityscapes:{root}", "test")
    save_model(tmp_path / "net.safetensors", data)
    out = tmp_path / "o.zip"
    assert submit("cityscapes", tmp_path / "net.safetensors", f"cityscapes:{root}", out, "whole") == 2
    with zipfile.ZipFile(out) as file:
        assert file.namelist() == ["berlin_000000_000019.png", "bonn_000001_000019.png"]
        for index, name in enumerate(file.namelist()):
            raw = np.asarray(Image.open(io.BytesIO(file.read(name))))
            parse = ordnet.load(tmp_path / "net.safetensors")(np.asarray(data.image(index)))
            classes = data.rule.encode(raw)
            assert (classes == parse.labels).mean() > 0.99
            # the 19 classes have the ids 7 to 33, road is 7 and not 0
            assert raw.min() >= 7 and raw.max() <= 33
            assert (raw[classes == 0] == 7).all()


def test_voc_palette_is_that_of_the_class_table(voc):
    colours = np.frombuffer(voc_palette(), np.uint8).reshape(256, 3)
    assert [tuple(map(int, colour)) for colour in colours[:21]] == list(open_dataset(voc, "test").classes.colours)
    assert tuple(colours[255]) == (224, 224, 192)


def test_refusals(voc, ade20k, tmp_path):
    save_model(tmp_path / "net.safetensors", open_dataset(voc, "test"))
    for arguments, message in (
        (("kitti", tmp_path / "net.safetensors", voc, tmp_path / "o.zip"), "there is no server"),
        (("voc", tmp_path / "net.safetensors", ade20k, tmp_path / "o.zip"), "takes predictions for voc:PATH"),
        (("voc", tmp_path / "net.safetensors", voc, tmp_path / "o.tar"), r"ends in \.tar\.gz or \.tgz"),
        (("ade20k", tmp_path / "net.safetensors", ade20k, tmp_path / "o.tgz"), r"ends in \.zip"),
        (("ade20k", tmp_path / "net.safetensors", ade20k, tmp_path / "o.zip"), "different classes"),
    ):
        with pytest.raises(OrdnetError, match=message):
            submit(*arguments)
    assert not list(tmp_path.glob("*.zip"))
