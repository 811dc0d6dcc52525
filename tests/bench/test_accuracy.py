"""Time to accuracy: cells that are neither lost nor repeated, the same start for everybody. Scores are never judged."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from PIL import Image
from torch.nn import functional

import ordnet
from ordnet.bench import accuracy, timed_run
from ordnet.bench.timed_run import LOOKED_AT, OURS, Cell, make_network, ready_to_parse, run_cell, weights_from
from ordnet.config import override
from ordnet.data.scenes import Scenes
from ordnet.errors import OrdnetError
from ordnet.model import weights
from ordnet.model.build import make_backbone
from ordnet.model.card import shipped_models
from ordnet.recipes import settings_of

SMALL = ["model.weights=none", "training.crop=64", "training.batch_size=2"]
AT_RANDOM = {"origin": "backbones start at random", "sha256": None}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder of a few generated scenes."""
    path = tmp_path_factory.mktemp("scenes")
    (path / "images").mkdir()
    (path / "labels").mkdir()
    for split, count in {"train": 4, "val": 2}.items():
        source = Scenes(split)
        for index in range(count):
            source.image(index).save(path / "images" / f"{split}{index}.png")
            Image.fromarray(source.label(index)).save(path / "labels" / f"{split}{index}.png")
        (path / f"{split}.txt").write_text("".join(f"{split}{index}\n" for index in range(count)))
    (path / "classes.txt").write_text("\n".join(Scenes().classes.names) + "\n")
    return path


@pytest.fixture
def needs_smp():
    try:
        timed_run.import_smp()
    except OrdnetError as error:
        pytest.skip(str(error))


@pytest.fixture
def weight_file(tmp_path):
    """A whole MobileNetV2 of random weights under torchvision's names, the layer that only smp takes included."""
    torch.manual_seed(3)
    tensors = dict(make_backbone("mobilenet_v2", 32).state_dict())
    tensors["features.18.0.weight"] = torch.randn(1280, 320, 1, 1)
    tensors |= {f"features.18.1.{name}": torch.rand(1280) for name in ("weight", "bias", "running_mean", "running_var")}
    path = tmp_path / "mobilenet.pth"
    torch.save(tensors, path)
    return weights.read(path)


def cells_of(scenes, names, seeds=1, seconds=0.2, changes=()):
    return accuracy.plan(f"folder:{scenes}", names, seconds, seeds, "val", "folder-default", [*SMALL, *changes])


def check_figures(figures, cell):
    assert {key: figures[key] for key in ("contestant", "seed", "seconds", "split")} == {
        key: value for key, value in cell.plain().items() if key != "settings"
    }
    assert figures["weights_from"] == AT_RANDOM
    assert figures["spent"] >= cell.seconds
    assert figures["steps"] >= 1
    assert (figures["protocol"], figures["images"], figures["looked_at"]) == ("whole", 2, min(2, LOOKED_AT))
    times = [point["seconds"] for point in figures["curve"]]
    assert times == sorted(times) and times[-1] == figures["spent"]
    # a split smaller than a look: the last look is the test
    assert figures["curve"][-1]["miou"] == pytest.approx(figures["miou"])
    assert 0 <= figures["pixel_accuracy"] <= 1


@pytest.mark.parametrize("name", [*accuracy.USUAL, "basic-sa-mr-fine", "danet-fine", "ppm-plain"])
def test_a_cell_of_ours(name, scenes):
    (cell,) = cells_of(scenes, [name])
    figures = run_cell(cell)
    check_figures(figures, cell)
    net = make_network(name, cell.settings, 13, 0)
    assert figures["parameters"] == sum(p.numel() for p in net.parameters())
    assert ("gate_mean" in figures["vitals"]) == name.startswith("ordnet")


def test_all_that_a_recipe_says_is_done(scenes):
    changes = ["training.ema=0.9", "training.class_weights=auto", "training.freeze_norm=true", "training.clip=1"]
    (cell,) = cells_of(scenes, ["dilated-fcn-plain"], changes=changes)
    check_figures(run_cell(cell), cell)


def test_tested_at_the_scale_of_training(scenes, monkeypatch):
    """Larger and smaller pictures are seen as `ordnet evaluate` sees them; labels keep their size."""
    seen = []
    usual = timed_run.protocols.labels
    monkeypatch.setattr(timed_run.protocols, "labels", lambda net, image, **more: seen.append(image.shape[2:]) or usual(
        net, image, **more
    ))  # fmt: skip
    (cell,) = cells_of(scenes, ["ordnet-fine"], changes=["data.long_side=64"])
    check_figures(run_cell(cell), cell)
    assert set(seen) == {(64, 64)}


def test_pictures_smaller_than_the_network_takes(scenes, tmp_path):
    for part in ("images", "labels"):
        (tmp_path / part).mkdir()
        for file in (scenes / part).iterdir():
            Image.open(file).crop((0, 0, 128, 12)).save(tmp_path / part / file.name)
    for name in ("train.txt", "val.txt", "classes.txt"):
        (tmp_path / name).write_bytes((scenes / name).read_bytes())
    (cell,) = cells_of(tmp_path, ["ordnet-fine"])
    check_figures(run_cell(cell), cell)


@pytest.mark.parametrize("name", timed_run.NETWORKS)
def test_a_cell_of_theirs(name, scenes, needs_smp):
    (cell,) = cells_of(scenes, [name])
    check_figures(run_cell(cell), cell)


@pytest.mark.parametrize("name", timed_run.NETWORKS)
def test_the_same_backbone_with_the_same_weights(name, needs_smp, weight_file):
    ours = make_backbone("mobilenet_v2", 32)
    weights.load(ours, weight_file)
    theirs = timed_run.SmpNetwork(name, 5, weight_file).eval()
    image = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for own, other in zip(ours.eval()(image), theirs.backbone(image)[2:5], strict=False):
            torch.testing.assert_close(own, other)
        if theirs.backbone.output_stride == 32:  # DeepLabV3+ dilates its last stage
            torch.testing.assert_close(ours(image)[-1], theirs.backbone.features[:18](image))
        for own, other in zip(ours.first_stages(2), theirs.first_stages(2), strict=True):  # what may be frozen, too
            assert [p.shape for p in own.parameters()] == [p.shape for p in other.parameters()]


@pytest.mark.parametrize("name", timed_run.NETWORKS)
def test_scores_of_theirs(name, needs_smp):
    """Any size of pictures, losses before the last upsampling, folded for testing: the library's own scores."""
    torch.manual_seed(0)
    net = timed_run.SmpNetwork(name, 5, None).eval()
    image = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.8, 1.2)
        whole = net.net(image)
        torch.testing.assert_close(net(image), whole)
        small, _ = net.training_scores(image, small=True)
        up = functional.interpolate(small, size=(64, 96), mode="bilinear", align_corners=True)
        torch.testing.assert_close(up, whole, atol=1e-4, rtol=1e-4)
        labels = net.labels_at_scores(torch.zeros(2, 64, 96, dtype=torch.uint8))
        assert labels.shape == (2, *small.shape[2:])
        odd = torch.randn(1, 3, 50, 70)
        assert net(odd).shape == (1, 5, 50, 70)
        assert (
            net.training_scores(odd, small=True)[0].shape[2:]
            == net.labels_at_scores(labels[:1].new_zeros(1, 50, 70)).shape[1:]
        )
        torch.testing.assert_close(ready_to_parse(net)(odd), net(odd), atol=1e-4, rtol=1e-4)


def test_weights_that_lack_a_layer_are_no_fair_start(needs_smp, tmp_path):
    torch.save(make_backbone("mobilenet_v2", 32).state_dict(), tmp_path / "short.pth")
    with pytest.raises(OrdnetError, match=r"lacks \d+ of the encoder's \d+ tensors, such as features.18"):
        timed_run.SmpNetwork("smp-fpn", 5, weights.read(tmp_path / "short.pth"))


def test_theirs_are_never_needed(monkeypatch):
    def missing():
        raise OrdnetError("segmentation_models_pytorch is not installed; pip install 'ordnet[smp]'")

    monkeypatch.setattr(timed_run, "import_smp", missing)
    names, said = accuracy.contestants(None)
    assert names == list(accuracy.USUAL)
    assert "left out" in said and "ordnet[smp]" in said
    assert accuracy.contestants("ordnet-fine, dilated-fcn-fine") == (["ordnet-fine", "dilated-fcn-fine"], "")
    with pytest.raises(OrdnetError, match="not installed"):
        accuracy.contestants("ordnet-fine,smp-fpn")


def test_every_kind_of_context_can_take_part():
    assert set(OURS) == {f"{variant}-{decoder}" for variant in ordnet.variants() for decoder in ("fine", "plain")}
    assert not set(OURS) & set(timed_run.NETWORKS)
    assert accuracy.contestants(",".join(OURS)) == (list(OURS), "")


def test_seeds_come_first(scenes):
    cells = cells_of(scenes, ["ordnet-fine", "ordnet-plain"], seeds=2)
    assert [(cell.seed, cell.contestant) for cell in cells] == [
        (0, "ordnet-fine"), (0, "ordnet-plain"), (1, "ordnet-fine"), (1, "ordnet-plain"),
    ]  # fmt: skip


def test_the_command_continues_and_repeats_nothing(scenes, tmp_path):
    out, rows = tmp_path / "out", tmp_path / "rows.json"
    changes = [word for change in SMALL for word in ("--set", change)]
    names = ["--contestants", "dilated-fcn-fine,ordnet-fine"]
    words = ["--data", f"folder:{scenes}", "--seconds", "0.3", "--seeds", "1", *names, *changes]
    command = [sys.executable, "-m", "ordnet", "bench", "accuracy", *words, "--out", str(out), "--json", str(rows)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    victim = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    first = out / "dilated-fcn-fine-seed-0.json"
    while not first.exists():
        assert victim.poll() is None
        time.sleep(0.05)
    victim.send_signal(signal.SIGTERM)
    _, said = victim.communicate()
    assert victim.returncode in (0, 143), said  # it may have been done already
    before = first.stat().st_mtime_ns
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert first.stat().st_mtime_ns == before
    found = json.loads(rows.read_text())
    assert [row["name"] for row in found] == ["dilated-fcn-fine", "ordnet-fine"]
    for row in found:
        assert {"mIoU", "pixel_accuracy", "steps", "params_M", "seconds", "gflops"} <= set(row)
        assert [seed["seed"] for seed in row["seeds"]] == [0]
    for picture in ("accuracy.png", "seeds.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    assert "made for our networks" in done.stdout
    assert "smp" not in done.stdout  # none of its networks took part
    assert done.stdout.count("backbones start at random") == 1
    assert re.search(r"\d cells? w(as|ere) run before", done.stdout)


def test_cells_of_other_settings_are_refused(scenes, tmp_path):
    (cell,) = cells_of(scenes, ["ordnet-fine"])
    assert accuracy.finished(cell, tmp_path, AT_RANDOM) is None
    path = tmp_path / "ordnet-fine-seed-0.json"
    path.write_text(json.dumps(cell.plain()))
    assert accuracy.finished(cell, tmp_path, AT_RANDOM) == json.loads(path.read_text())
    (longer,) = cells_of(scenes, ["ordnet-fine"], seconds=5)
    with pytest.raises(OrdnetError, match="run with other seconds; choose another --out"):
        accuracy.finished(longer, tmp_path, AT_RANDOM)
    path.write_text("{half")
    with pytest.raises(OrdnetError, match="no cell of this benchmark"):
        accuracy.finished(cell, tmp_path, AT_RANDOM)


def test_cells_of_other_weights_are_refused(scenes, tmp_path):
    """The file counts, wherever it was found; cells from before this was noted are taken."""
    (cell,) = cells_of(scenes, ["ordnet-fine"])
    path = tmp_path / "ordnet-fine-seed-0.json"
    started = {"origin": "ImageNet weights: hf:timm/net", "sha256": "0123456789ab"}
    path.write_text(json.dumps({**cell.plain(), "weights_from": started}))
    assert accuracy.finished(cell, tmp_path, {**started, "origin": "a copy of it"})
    other = {"origin": "hf:timm/net cannot be had: `outdoor` stands in. Advice.", "sha256": "ba9876543210"}
    with pytest.raises(OrdnetError, match=r"run with other weights \(0123456789ab, ImageNet.*now ba98.* stands in\)"):
        accuracy.finished(cell, tmp_path, other)
    with pytest.raises(OrdnetError, match="run with other weights"):
        accuracy.finished(cell, tmp_path, AT_RANDOM)
    path.write_text(json.dumps(cell.plain()))
    assert accuracy.finished(cell, tmp_path, other)


@pytest.mark.parametrize("name", ["ordnet-fine", "dilated-fcn-plain", "smp-fpn"])
def test_the_backbone_that_stands_in_is_named(name, tmp_path, monkeypatch):
    """For contestants of both sides; "imagenet" in the settings does not say that it is another file."""
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))
    found = weights_from(name, settings_of("folder-default"))
    assert "`outdoor` stands in" in found["origin"]
    assert found["sha256"] == hashlib.sha256(shipped_models()["outdoor"].read_bytes()).hexdigest()[:12]
    torch.save(make_backbone("mobilenet_v2", 32).state_dict(), tmp_path / "own.pth")
    own = weights_from(name, override(settings_of("folder-default"), [f"model.weights={tmp_path / 'own.pth'}"]))
    assert own["origin"].endswith("own.pth")
    assert own["sha256"] not in (None, found["sha256"])


def test_origin_and_kept_cells_are_said_once(scenes, tmp_path, monkeypatch):
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path / "hub"))
    (tmp_path / "hub").mkdir()
    cells = cells_of(scenes, ["ordnet-fine", "dilated-fcn-plain"], seeds=2, changes=["model.weights=imagenet"])

    def run(cell, out):
        out.mkdir(exist_ok=True)
        started = weights_from(cell.contestant, cell.settings)
        (out / f"{cell.contestant}-seed-{cell.seed}.json").write_text(
            json.dumps({**cell.plain(), "weights_from": started})
        )

    monkeypatch.setattr(accuracy, "_run", run)
    said = []
    accuracy.compare(cells[:2], tmp_path / "out", said.append)
    (origin,) = said
    assert "`outdoor` stands in" in origin
    said.clear()
    assert len(accuracy.compare(cells, tmp_path / "out", said.append)) == 4
    assert said == [origin, "2 cells were run before"]
    old = tmp_path / "out" / "ordnet-fine-seed-1.json"
    old.write_text(json.dumps(cells[2].plain()))
    said.clear()
    accuracy.compare(cells, tmp_path / "out", said.append)
    assert said[1] == "4 cells were run before; 1 of them: with which weights was not noted then"


def test_mistakes_are_said_before_the_first_cell(scenes, tmp_path, needs_smp):
    with pytest.raises(OrdnetError, match="no contestant 'unet'; there are ordnet-fine"):
        accuracy.contestants("unet")
    with pytest.raises(OrdnetError, match="nosuch"):
        cell = cells_of(scenes, ["ordnet-fine"])[0]
        accuracy.compare([Cell(cell.contestant, 0, 1, "nosuch", cell.settings)], tmp_path / "out")
    resnet = override(settings_of("folder-default"), ["model.backbone=resnet18", "model.weights=none"])
    with pytest.raises(OrdnetError, match="mobilenet_v2 backbone only"):
        make_network("smp-fpn", resnet, 3, 0)
    assert not (tmp_path / "out").exists()


def test_a_failing_cell_ends_with_its_last_words(scenes, tmp_path):
    cells = cells_of(scenes, ["dilated-fcn-plain"], changes=["training.rate=1e30"], seconds=30)
    with pytest.raises(OrdnetError, match=r"dilated-fcn-plain, seed 0: the loss is not finite"):
        accuracy.compare(cells, tmp_path)


def test_remarks_say_when_nothing_is_decided(scenes):
    cells = cells_of(scenes, ["ordnet-fine"])
    made = [
        accuracy.Measurement(name, extra={"mIoU": miou, "mIoU_spread": spread})
        for name, miou, spread in (("ordnet-fine", 0.62, 0.01), ("smp-fpn", 0.60, 0.005), ("smp-unet", 0.5, 0.0))
    ]
    assert "+2.0 points" in accuracy.remarks(cells, made)[0] and "undecided" not in accuracy.remarks(cells, made)[0]
    made[1].extra["mIoU_spread"] = 0.03
    assert "undecided" in accuracy.remarks(cells, made)[0]


def test_remarks_are_of_what_took_part(scenes, monkeypatch):
    cells = cells_of(scenes, ["ordnet-fine"])
    ours, theirs = (
        accuracy.Measurement(name, extra={"mIoU": 0.6, "mIoU_spread": None}) for name in ("ordnet-fine", "smp-fpn")
    )
    alone = " ".join(accuracy.remarks(cells, [ours]))
    assert "smp" not in alone
    assert "the curves are" not in alone  # the split has 2 pictures, and each look is at all of them
    assert "smp's might do better with one of their own" in " ".join(accuracy.remarks(cells, [ours, theirs]))
    monkeypatch.setattr(accuracy, "LOOKED_AT", 1)
    assert "the curves are of 1 pictures, the table is of the whole split" in " ".join(accuracy.remarks(cells, [ours]))
