"""The loop within one process: what a run leaves behind, and what it refuses."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import ordnet
from ordnet.config import Settings, TrainingConfig, parse
from ordnet.data.catalogue import open_dataset
from ordnet.data.dataset import Spread
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint
from ordnet.model.build import build_from
from ordnet.training import state as states
from ordnet.training.loop import train_with
from ordnet.training.monitor import Display
from ordnet.training.prepare import batch_of
from ordnet.training.start import Averaged, widths_of
from ordnet.training.step import make_optimizer
from tests.small_data import CLASSES, small_settings, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("data") / "own")


@pytest.fixture(scope="module")
def finished(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "finished"
    train_with(small_settings(folder), out)
    return out


def epochs(out):
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["event"] == "epoch"]


def final(out):
    return load_file(out / "last.safetensors")


def assert_same_weights(a, b, atol=0.0):
    assert a.keys() == b.keys()
    for key in a:
        torch.testing.assert_close(a[key], b[key], rtol=0, atol=atol, msg=lambda m, key=key: f"{key}: {m}")


def test_run_folder(finished, folder):
    names = {path.name for path in finished.iterdir()}
    assert names >= {
        "settings.yaml",
        "log.jsonl",
        "curves.png",
        "best.safetensors",
        "last.safetensors",
        "state",
        "report.html",
    }
    assert parse(yaml.safe_load((finished / "settings.yaml").read_text()), "x") == small_settings(folder)
    first = json.loads((finished / "log.jsonl").read_text().splitlines()[0])
    assert first["event"] == "start"
    assert {"torch", "commit", "threads", "device", "cores"} <= set(first)
    records = epochs(finished)
    assert [record["epoch"] for record in records] == [1, 2, 3]
    for record in records:
        assert {"loss", "cross_entropy", "lovasz", "miou", "pixel_accuracy", "rate", "images_per_second"} <= set(record)
        assert {"added", "varying", "gate_mean", "gate_spread"} <= set(record)
        assert record["protocol"] == "whole"
    assert "data:image/png;base64," in (finished / "report.html").read_text()


def test_it_learns(finished):
    records = epochs(finished)
    assert records[-1]["loss"] < records[0]["loss"]


def test_checkpoints_need_nothing_else(finished):
    loaded = checkpoint.load(finished / "best.safetensors")
    assert loaded.classes == CLASSES
    assert loaded.about["protocol"] == "whole"
    assert loaded.about["miou"] == max(record["miou"] for record in epochs(finished))


def test_the_same_settings_give_the_same_weights(finished, folder, tmp_path):
    train_with(small_settings(folder), tmp_path / "again")
    assert_same_weights(final(finished), final(tmp_path / "again"))
    for name in ("last.safetensors", "best.safetensors"):
        assert (finished / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_another_seed_gives_others(finished, folder, tmp_path):
    train_with(small_settings(folder, "training.seed=1"), tmp_path / "other")
    assert not torch.equal(final(finished)["head.4.weight"], final(tmp_path / "other")["head.4.weight"])


EXACT = ("training.lovasz=0", "training.freeze_norm=true", "model.dropout=0")


def test_accumulation_is_the_whole_batch(folder, tmp_path):
    """Cross-entropy is divided by the pixels of the whole batch, however it is split."""
    train_with(small_settings(folder, *EXACT), tmp_path / "whole")
    train_with(small_settings(folder, *EXACT, "training.micro_batch=1"), tmp_path / "split")
    assert_same_weights(final(tmp_path / "whole"), final(tmp_path / "split"), atol=2e-5)


@pytest.mark.parametrize(
    "changes",
    [
        ("training.optimizer=adamw", "training.rate=0.001", "training.clip=1.0"),
        ("model.auxiliary=true", "model.variant=dilated-fcn"),
        ("training.class_weights=[1, 1, 4]", "training.lovasz_per_image=true"),
        ("training.channels_last=false", "evaluation.every=2", "data.limit=8", "data.jitter=0.3"),
    ],
)
def test_options(folder, tmp_path, changes):
    run = train_with(small_settings(folder, *changes, "training.epochs=2"), tmp_path / "run")
    assert run.figures["images"] == 3
    assert all(torch.isfinite(tensor).all() for tensor in final(run.folder).values())


def test_average(folder, tmp_path):
    """With an averaged network, the average is what is kept: between its start and the last weights."""
    plain = train_with(small_settings(folder, "training.epochs=1"), tmp_path / "plain")
    averaged = train_with(small_settings(folder, "training.epochs=1", "training.ema=0.5"), tmp_path / "ema")
    state = states.load(averaged.folder / "state", print)
    assert_same_weights(state["net"], final(plain.folder))
    kept = final(averaged.folder)["head.4.weight"]
    assert not torch.equal(kept, state["net"]["head.4.weight"])
    assert torch.equal(kept, state["averaged"]["head.4.weight"])


def test_a_long_average_of_a_short_run_forgets_the_start():
    """After 60 steps at the same weights the random start is gone, however long the average is meant to be."""
    start, end = nn.Linear(4, 4), nn.Linear(4, 4)
    averaged = Averaged(start, 0.9999)
    for step in range(1, 61):
        averaged.update(end, step)
    torch.testing.assert_close(averaged.net.weight, end.weight, atol=1e-4, rtol=0)
    still = Averaged(start, 0.5)  # once the average is as long as asked for, the share of a step is 1 - decay
    still.update(end, 100)
    torch.testing.assert_close(still.net.weight, (start.weight + end.weight) / 2)


def test_frozen_norms_keep_their_statistics(folder, tmp_path):
    run = train_with(small_settings(folder, "training.freeze_norm=true", "training.epochs=1"), tmp_path / "frozen")
    norms = {k: v for k, v in final(run.folder).items() if k.endswith("running_mean")}
    assert norms
    assert not any(v.any() for v in norms.values())


def test_frozen_stages_keep_their_weights_and_a_random_backbone_learns_whole(folder, tmp_path):
    words = ("model.backbone=resnet18", "model.output_stride=16", "training.freeze_stages=1", "training.epochs=1")
    start = ordnet.build("ordnet", classes=3, backbone="resnet18", output_stride=16).backbone
    save_file(start.state_dict(), tmp_path / "weights.safetensors")
    for weights, frozen in ((tmp_path / "weights.safetensors", True), ("none", False)):
        out = tmp_path / f"frozen-{frozen}"
        run = train_with(small_settings(folder, *words, f"model.weights={weights}"), out)
        end = checkpoint.load(run.folder / "last.safetensors").net.backbone
        if not frozen:
            assert not torch.equal(end.bn1.running_mean, torch.zeros(64))
            continue
        own, learnt = start.state_dict(), end.state_dict()
        same = {key for key in own if torch.equal(own[key], learnt[key].to(own[key].dtype))}
        first = {key for key in own if key.startswith(("conv1.", "bn1.", "layer1."))}
        assert first <= same and "layer2.0.conv1.weight" not in same and "layer4.1.bn2.weight" not in same


def test_a_stage_from_a_checkpoint(finished, folder, tmp_path):
    best = finished / "best.safetensors"
    settings = small_settings(folder, "training.epochs=1", "training.rate=1e-12", "training.freeze_norm=true")
    train_with(settings, tmp_path / "same", init=best)
    assert_same_weights(load_file(best), final(tmp_path / "same"), atol=1e-6)


def test_new_classes_get_a_new_last_layer(finished, tmp_path, capsys):
    other = write_folder(tmp_path / "other", classes=("sky", "ground", "car", "person"))
    settings = small_settings(other, "training.epochs=1", "training.rate=1e-12", "training.freeze_norm=true")
    train_with(settings, tmp_path / "stage", init=finished / "best.safetensors")
    assert "the last layer starts anew" in capsys.readouterr().err.replace("\n", " ")
    before, after = load_file(finished / "best.safetensors"), final(tmp_path / "stage")
    assert after["head.4.weight"].shape[0] == 4
    torch.testing.assert_close(after["backbone.stem.0.weight"], before["backbone.stem.0.weight"])


def test_another_network_is_no_start(finished, folder, tmp_path):
    settings = small_settings(folder, "model.variant=mr")
    with pytest.raises(OrdnetError, match="holds another network"):
        train_with(settings, tmp_path / "x", init=finished / "best.safetensors")


def test_a_start_brings_its_widths_along(folder, tmp_path, capsys):
    """A recipe is as wide as the checkpoint it starts from, unless a width is asked for."""
    wide = ordnet.build("ordnet", classes=3, backbone="tiny", neck=24, key_channels=4, value_channels=8)
    checkpoint.save(tmp_path / "wide.safetensors", wide, ("a", "b", "c"), [(0, 0, 0)] * 3)
    recipe = tmp_path / "small.yaml"
    recipe.write_text(small_settings(folder, "training.epochs=1", "model.output_stride=4").to_yaml())
    run = ordnet.train(str(recipe), out=tmp_path / "run", init=tmp_path / "wide.safetensors")
    assert "model.neck=24, model.key_channels=4, model.value_channels=8" in capsys.readouterr().err
    assert ordnet.load(run.best).net.config.neck == 24
    with pytest.raises(OrdnetError, match=r"model.neck is 24 there and 16 here"):
        ordnet.train(str(recipe), out=tmp_path / "x", changes={"model.neck": 16}, init=tmp_path / "wide.safetensors")


def test_a_start_may_lack_the_auxiliary_head_or_have_one_too_many(finished, folder, tmp_path):
    """It is of use in training alone."""
    words = ("training.epochs=1", "training.rate=1e-12", "training.freeze_norm=true")
    settings = small_settings(folder, *words, "model.auxiliary=true")
    train_with(settings, tmp_path / "with", init=finished / "best.safetensors")
    gained = final(tmp_path / "with")
    assert any(key.startswith("auxiliary.") for key in gained)
    train_with(small_settings(folder, *words), tmp_path / "without", init=tmp_path / "with" / "last.safetensors")
    assert_same_weights(load_file(finished / "best.safetensors"), final(tmp_path / "without"), atol=1e-6)


def test_a_start_brings_its_fine_decoder_along(tmp_path):
    fine = ordnet.build("ordnet", classes=3, backbone="tiny", decoder="fine")
    checkpoint.save(tmp_path / "fine.safetensors", fine, ("a", "b", "c"), [(0, 0, 0)] * 3)
    asked = {kind: fine.config.model_copy(update={"decoder": kind}) for kind in ("plain", "fine", "dense")}
    found = {kind: widths_of(tmp_path / "fine.safetensors", config, ()) for kind, config in asked.items()}
    # the paper's network stays the paper's
    assert found == {"plain": {}, "fine": {}, "dense": {"decoder": "fine"}}
    assert widths_of(tmp_path / "fine.safetensors", asked["dense"], ("decoder",)) == {}


# ---- what is refused -----------------------------------------------------------------------------------------


def test_a_finished_run_is_not_overwritten(finished, folder):
    before = (finished / "last.safetensors").read_bytes()
    with pytest.raises(OrdnetError, match="holds a finished run"):
        train_with(small_settings(folder), finished)
    train_with(small_settings(folder), finished, resume=True)  # nothing to do
    assert (finished / "last.safetensors").read_bytes() == before


def test_force_overwrites_the_run_and_nothing_else(finished, folder, tmp_path):
    import shutil

    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    (out / "notes.txt").write_text("mine")
    train_with(small_settings(folder, "training.epochs=1"), out, force=True)
    assert len(epochs(out)) == 1
    assert (out / "notes.txt").read_text() == "mine"


def unfinished(finished, tmp_path):
    """A copy of the finished run that believes it has not finished."""
    import shutil

    out = tmp_path / "unfinished"
    shutil.copytree(finished, out)
    state = states.load(out / "state", print)
    state["progress"]["finished"] = False
    for name in ("state.pt", "previous.pt"):
        torch.save(state, out / "state" / name)
    return out


def test_what_a_killed_run_was_writing_is_taken_away(finished, folder, tmp_path):
    out = unfinished(finished, tmp_path)
    left_over = [out / ".last.1234abcd.tmp.safetensors", out / "state" / ".state.1234abcd.tmp.pt"]
    for path in left_over:
        path.write_bytes(b"half a file")
    train_with(small_settings(folder), out, force=True)
    assert not any(path.exists() for path in left_over)


def test_other_settings_are_not_resumed(finished, folder, tmp_path):
    out = unfinished(finished, tmp_path)
    with pytest.raises(OrdnetError, match=r"training\.rate: was 0\.05, now 0\.1") as refused:
        train_with(small_settings(folder, "training.rate=0.1"), out, resume=True)
    assert str(refused.value).endswith(
        "\ngive the same settings again, name another folder with --out, or start over with --force"
    )
    with pytest.raises(OrdnetError, match="unfinished run; continue it with --resume"):
        train_with(small_settings(folder), out)


def test_a_state_cut_short_falls_back(finished, folder, tmp_path, capsys):
    """The state before it is one epoch older: the last epoch is trained again, to the same end."""
    import shutil

    out = tmp_path / "cut"
    shutil.copytree(finished, out)
    current = out / "state" / "state.pt"
    current.write_bytes(current.read_bytes()[:1000])
    train_with(small_settings(folder), out, resume=True)
    assert "is damaged" in capsys.readouterr().err
    assert_same_weights(final(finished), final(out))
    assert [record["epoch"] for record in epochs(out)] == [1, 2, 3]
    assert [r["loss"] for r in epochs(out)] == [r["loss"] for r in epochs(finished)]


def test_no_readable_state_at_all(finished, folder, tmp_path):
    out = unfinished(finished, tmp_path)
    for name in ("state.pt", "previous.pt"):
        (out / "state" / name).write_bytes(b"PK")
    with pytest.raises(OrdnetError, match=r"no state in .* can be read; start over with --force"):
        train_with(small_settings(folder), out, resume=True)


def test_a_loss_that_is_not_finite(folder, tmp_path):
    with pytest.raises(OrdnetError, match=r"the loss is not finite at step \d+ \(loss .*cross_entropy .*lovasz"):
        train_with(small_settings(folder, "training.rate=1e18", "training.epochs=20"), tmp_path / "wild")


def test_a_broken_data_set_is_named_before_training(tmp_path):
    folder = write_folder(tmp_path / "broken")
    (folder / "labels" / "000.png").write_bytes(b"no label")
    with pytest.raises(OrdnetError, match=r"000\.png"):
        train_with(small_settings(folder), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    run = train_with(small_settings(folder, "data.skip_broken=true", "training.epochs=1"), tmp_path / "run")
    assert run.figures["images"] == 3


# ---- longer, shorter, on fewer pictures ------------------------------------------------------------------------


def test_a_finished_run_goes_on_for_more_epochs(folder, tmp_path, capsys):
    """Its schedule is the longer one's from there on; continued in two pieces it ends as in one."""
    import shutil

    train_with(small_settings(folder, "training.epochs=1"), tmp_path / "short")
    shutil.copytree(tmp_path / "short", tmp_path / "again")
    taken = r"finished after 1 epoch; --resume takes it on to 3, --out another folder, or --force starts over"
    with pytest.raises(OrdnetError, match=taken):
        train_with(small_settings(folder, "training.epochs=3"), tmp_path / "short")
    with pytest.raises(OrdnetError, match=r"finished after 1 epoch, with other settings; choose another --out"):
        train_with(small_settings(folder, "training.epochs=3", "training.rate=0.1"), tmp_path / "short")
    longer = small_settings(folder, "training.epochs=3")
    train_with(longer, tmp_path / "short", resume=True)
    said = " ".join(capsys.readouterr().err.split())
    assert "goes on to epoch 3 instead of 1, with the schedule of 3 epochs" in said
    assert "at 69% of its start now (0% in the shorter one)" in said
    records = epochs(tmp_path / "short")
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert records[1]["rate"] > records[0]["rate"] > records[2]["rate"]
    assert "epochs: 3" in (tmp_path / "short" / "settings.yaml").read_text()
    train_with(longer, tmp_path / "again", resume=True)
    assert_same_weights(final(tmp_path / "short"), final(tmp_path / "again"))
    with pytest.raises(OrdnetError, match=r"training\.epochs: was 3, now 2"):
        train_with(small_settings(folder, "training.epochs=2"), tmp_path / "short", resume=True)


def test_patience_ends_a_run_early(folder, tmp_path, capsys):
    still = ("training.rate=1e-12", "training.epochs=6")
    run = train_with(small_settings(folder, *still, "training.patience=2"), tmp_path / "run")
    assert [record["epoch"] for record in epochs(run.folder)] == [1, 2, 3]
    said = " ".join(capsys.readouterr().err.split())
    assert "no better mIoU for 2 epochs (training.patience): ending after epoch 3, the best was epoch 1" in said
    assert (run.folder / "report.html").exists()
    train_with(small_settings(folder, *still, "training.patience=2"), run.folder, resume=True)
    assert "nothing to do" in capsys.readouterr().err
    train_with(small_settings(folder, *still), run.folder, resume=True)
    assert [record["epoch"] for record in epochs(run.folder)] == [1, 2, 3, 4, 5, 6]


def test_a_few_pictures_are_evaluated(tmp_path):
    folder = write_folder(tmp_path / "own", val=9)
    run = train_with(small_settings(folder, "evaluation.limit=3", "training.epochs=1"), tmp_path / "run")
    assert run.figures["images"] == 3
    html = (run.folder / "report.html").read_text()
    assert "3, evenly spread (evaluation.limit), split val" in html
    spread = Spread(open_dataset(f"folder:{folder}", "val"), 3)
    assert list(spread.ids) == ["012", "016", "020"]


@pytest.mark.parametrize(
    ("pictures", "limit", "processes", "size"),
    [(12, None, 1, 4), (100, None, 1, 5), (100, None, 2, 4), (100, 40, 1, 4), (1000, None, 1, 8), (3, None, 1, 3)],
)
def test_few_pictures_make_small_batches(folder, pictures, limit, processes, size):
    settings = small_settings(
        folder, "training.batch_size=8", "training.least_steps=20", f"data.limit={limit or 'null'}"
    )
    few = SimpleNamespace(ids=range(pictures))
    assert batch_of(settings, few, processes) == size
    assert batch_of(small_settings(folder, "training.batch_size=8"), few) == 8


def test_an_epoch_of_few_pictures_has_more_steps_at_the_same_rate(folder, tmp_path, capsys):
    words = ("training.batch_size=8", "training.least_steps=20", "training.epochs=1")
    run = train_with(small_settings(folder, *words), tmp_path / "small")
    assert "12 pictures are few: batches of 4 instead of 8, so that an epoch has 3 steps" in capsys.readouterr().err
    equal = ("training.batch_size=4", "training.rate=0.1", "training.epochs=1")  # the rate counts by the batch's size
    other = train_with(small_settings(folder, *equal), tmp_path / "equal")
    assert_same_weights(final(run.folder), final(other.folder))


def test_automatic_class_weights(folder, tmp_path, capsys):
    """They are counted once, logged, and kept with the state; equal weights given as numbers train the same."""
    settings = small_settings(folder, "training.class_weights=auto", "training.epochs=1")
    run = train_with(settings, tmp_path / "auto")
    weights = json.loads((run.folder / "log.jsonl").read_text().splitlines()[0])["class_weights"]
    assert states.load(run.folder / "state", print)["class_weights"] == tuple(weights)
    assert weights[2] > max(weights[:2])  # the thing is rare
    assert "class weights, by the training labels: sky" in capsys.readouterr().err
    given = train_with(small_settings(folder, f"training.class_weights={weights}", "training.epochs=1"), tmp_path / "x")
    assert_same_weights(final(run.folder), final(given.folder))
    plain = train_with(small_settings(folder, "training.class_weights=none", "training.epochs=1"), tmp_path / "none")
    assert not torch.equal(final(run.folder)["head.4.weight"], final(plain.folder)["head.4.weight"])


def test_what_scales_the_loss_in_16_bits_is_kept_with_the_state():
    """Without it a resumed run would start at the largest scale, and pass over other steps."""
    net = build_from(small_settings(Path()).model, 3)
    parts = (net, make_optimizer(net, TrainingConfig()), None)
    scaler, other = (torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 65536.0))
    state = states.snapshot(Settings(), *parts, states.RunProgress(), 0, None, {}, scaler)
    states.restore(state, *parts, other)
    assert other.get_scale() == 8
    states.restore({**state, "scaler": None}, *parts, other)  # as older states are
    assert other.get_scale() == 8


def test_a_single_position_of_a_single_picture_is_answered_with_what_to_do(folder, tmp_path):
    words = ("model.backbone=resnet18", "model.output_stride=32", "model.variant=dilated-fcn", "training.crop=32")
    with pytest.raises(OrdnetError, match=r"larger training\.crop, training\.batch_size or training.micro_batch"):
        train_with(small_settings(folder, *words, "training.batch_size=1"), tmp_path / "run")


def test_stages_that_cannot_be_frozen_are_said(folder, tmp_path, capsys):
    train_with(small_settings(folder, "training.freeze_stages=1", "training.epochs=1"), tmp_path / "run")
    assert "training.freeze_stages=1 has no effect" in capsys.readouterr().err


def test_a_run_says_what_it_started_from(finished, folder, tmp_path):
    best = finished / "best.safetensors"
    run = train_with(small_settings(folder, "training.epochs=1"), tmp_path / "run", init=best)
    assert (run.folder / "settings.yaml").read_text().startswith(f"# started with --init {best}\n")
    html = (run.folder / "report.html").read_text().replace("<wbr>", "").replace(" class=long", "")
    assert f'<th scope="row">--init</th><td>{best}</td>' in html
    train_with(small_settings(folder, "training.epochs=2"), run.folder, resume=True)
    assert (run.folder / "settings.yaml").read_text().startswith(f"# started with --init {best}\n")


def test_a_single_class_and_void(tmp_path, capsys):
    folder = write_folder(tmp_path / "own", classes=("crack",), most=0)
    run = train_with(small_settings(folder, "training.epochs=1"), tmp_path / "run")
    assert run.figures["miou"] == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "over 1 of 1 class" in said and "have a single class" in said
    html = (run.folder / "report.html").read_text()
    assert "every pixel that counts is right" not in html
    assert "There are none: there is a single class in these labels." in html


def test_a_class_that_val_does_not_have_and_one_never_predicted(tmp_path, capsys):
    folder = write_folder(tmp_path / "own", classes=("sky", "ground", "thing", "nothing"))
    train_with(small_settings(folder, "training.epochs=1", "training.rate=1e-12"), tmp_path / "run")
    said = " ".join(capsys.readouterr().err.split())
    assert "not in the labels of val, so that nothing is known of it: nothing" in said
    assert "of 4 classes" in said
    if epochs(tmp_path / "run")[0]["never_predicted"]:
        assert "try --set training.class_weights=auto" in said


@pytest.mark.parametrize("weighted", [False, True])
def test_what_helps_a_class_that_is_never_predicted(weighted, capsys):
    display = Display(main=True)
    display.weighted = weighted
    record = {
        "epoch": 1, "loss": 1.0, "miou": 0.2, "pixel_accuracy": 0.5, "protocol": "whole", "rate": 0.1, "split": "val",
        "images_per_second": 1.0, "per_class_iou": {"a": 0.4, "b": 0.0}, "absent_classes": [], "never_predicted": ["b"],
    }  # fmt: skip
    display.epoch(record, 3)
    said = " ".join(capsys.readouterr().err.split())
    assert "never predicted: b; if that lasts, try" in said
    assert ("class_weights=auto" in said) == (not weighted)  # no advice to do what is done


def test_pictures_far_larger_than_the_crop_are_remarked_on(tmp_path, capsys):
    folder = write_folder(tmp_path / "own")
    for name, changes in (("own", ()), ("shrunk", ("data.long_side=16",))):
        train_with(small_settings(folder, "training.epochs=1", "training.crop=8", *changes), tmp_path / name)
        assert ("--set data.long_side=16` shrinks them" in capsys.readouterr().err) == (name == "own")


def test_a_checkpoint_knows_how_large_its_pictures_were(tmp_path):
    folder = write_folder(tmp_path / "own")
    sides = [max(Image.open(path).size) for path in (folder / "images").iterdir()]
    assert min(sides) == max(sides)
    for name, changes, expected in (
        ("own", (), sides[0]),
        ("shrunk", ("data.long_side=16",), 16),
    ):
        run = train_with(small_settings(folder, "training.epochs=1", "training.crop=8", *changes), tmp_path / name)
        assert ordnet.load(run.best).known_size == (expected, expected), name


def test_files_of_a_run_have_the_usual_mode(finished):
    import os
    import stat

    mask = os.umask(0)
    os.umask(mask)
    for path in finished.rglob("*"):
        if path.is_file() and path.name != ".lock":
            assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path


def test_a_device_that_is_not_there(folder, tmp_path):
    with pytest.raises(OrdnetError, match="there is no device 'warp' here"):
        train_with(small_settings(folder), tmp_path / "run", device="warp")
    run = train_with(small_settings(folder, "training.epochs=1"), tmp_path / "run", device="cpu")
    assert ordnet.evaluate(run.best, f"folder:{folder}", device="cpu").images == 3
    with pytest.raises(OrdnetError, match="there is no device 'warp' here"):
        ordnet.evaluate(run.best, f"folder:{folder}", device="warp")
