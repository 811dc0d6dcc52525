"""`ordnet models`: the list, the cards, and what is put on the hub."""

import io
import json

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

import ordnet
from ordnet import progress
from ordnet.commands import app
from ordnet.commands.models import recipes
from ordnet.errors import OrdnetError
from ordnet.model import checkpoint
from ordnet.model.card import read_card, shipped_models
from tests.test_package import run_isolated

NAMES = ("sky", "tree", "road")
COLOURS = ((0, 0, 255), (0, 255, 0), (128, 128, 128))
ABOUT = {
    "about": "A little test model.",
    "data": "folder", "split": "val", "protocol": "multiscale", "images": 1234, "miou": 0.4321, "pixel_accuracy": 0.75,
    "per_class_iou": {"sky": 0.5, "tree": 0.3642, "road": None},
}  # fmt: skip


def saved(path, about=ABOUT):
    checkpoint.save(path, ordnet.build("ordnet", classes=3, backbone="tiny"), NAMES, COLOURS, about)
    return path


def run(*words):
    result = CliRunner().invoke(app, ["models", *map(str, words)], env={"COLUMNS": "200"})
    if isinstance(result.exception, OrdnetError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_outdoor_comes_first():
    """It answers where no model is named, and its backbone stands in where ImageNet's cannot be had."""
    assert list(shipped_models()) == ["outdoor", "animals", "street"]


def test_every_shipped_model_is_listed_with_its_own_scores():
    shown = run()
    shipped = shipped_models()
    assert shipped
    for name, path in shipped.items():
        about = checkpoint.load(path).about
        assert f"{name}: " in shown
        assert f"mIoU {about['miou']:.4f}" in shown
        assert f"protocol {about['protocol']}" in shown


@pytest.mark.parametrize("name", list(shipped_models()))
def test_every_shipped_model_has_a_card(name):
    shown = run(name)
    loaded = checkpoint.load(shipped_models()[name])
    assert f"mIoU {loaded.about['miou']:.4f}" in shown
    assert all(word in shown for word in loaded.classes)
    assert all(title in shown for title in ("Data", "Licence note", "Limits"))


def test_no_score_is_typed_into_a_shipped_card():
    import re

    for path in shipped_models().values():
        assert not re.search(r"0\.\d\d|\d %|\d%|mIoU|IoU", path.with_suffix(".md").read_text())


def test_list_and_cards_need_no_torch():
    code = (
        "import sys; from ordnet.commands import app\n"
        "for words in ([], ['outdoor']):\n"
        "    try: app(['models', *words])\n"
        "    except SystemExit: pass\n"
        "print('torch' in sys.modules)"
    )
    assert run_isolated(code).splitlines()[-1] == "False"


def test_the_card_of_a_file(tmp_path):
    path = saved(tmp_path / "mine.safetensors")
    card = read_card(path)
    assert (card.name, card.classes) == ("mine", NAMES)
    assert card.parameters == sum(t.numel() for t in checkpoint.load(path).net.state_dict().values())
    assert card.scores == "mIoU 0.4321, pixel accuracy 0.7500 (folder val, 1,234 pictures, protocol multiscale)"
    assert "| tree | 0.3642 |\n| road | – |" in card.markdown()
    (tmp_path / "mine.md").write_text("## Limits\n\nToo small.\n")
    assert "Too small." in run(path)
    assert "Too small." in run("show", path)


def test_a_model_that_was_never_measured(tmp_path):
    path = saved(tmp_path / "new.safetensors", {})
    shown = run(path)
    assert "never measured" in shown
    run("push", path, "me/new", "--dry-run", tmp_path / "dry")
    head = yaml.safe_load((tmp_path / "dry" / "README.md").read_text().split("---\n")[1])
    assert "metrics" not in head
    assert "model-index" not in head


def test_dry_run_writes_what_the_hub_wants(tmp_path):
    path = saved(tmp_path / "mine.safetensors")
    out = tmp_path / "dry"
    assert "nothing was uploaded" in run("push", path, "me/streets", "--dry-run", out)
    assert sorted(p.name for p in out.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert (out / "model.safetensors").read_bytes() == path.read_bytes()
    assert json.loads((out / "config.json").read_text())["classes"] == list(NAMES)
    _, head, body = (out / "README.md").read_text().split("---\n", 2)
    head = yaml.safe_load(head)
    assert head["library_name"] == "ordnet"
    assert "image-segmentation" in head["tags"]
    assert "license" not in head
    (result,) = head["model-index"][0]["results"]
    assert [(m["type"], m["value"]) for m in result["metrics"]] == [("mean_iou", 0.4321), ("accuracy", 0.75)]
    assert all("multiscale" in m["name"] for m in result["metrics"])
    assert body.strip().startswith("# streets")
    assert 'ordnet.load("hf:me/streets")' in body
    run("push", path, "me/streets", "--dry-run", out, "--licence", "cc-by-4.0")
    assert "license: cc-by-4.0\n" in (out / "README.md").read_text()


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
def test_a_dry_run_leaves_the_files_of_others(tmp_path, name):
    """`--dry-run .` in one's own project once replaced its README."""
    path = saved(tmp_path / "mine.safetensors")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / name).write_text("mine")
    with pytest.raises(OrdnetError, match=f"{name} is in the way"):
        run("push", path, "me/streets", "--dry-run", tmp_path / "project")
    assert [p.read_text() for p in (tmp_path / "project").iterdir()] == ["mine"]
    for _ in range(2):  # its own files are replaced
        run("push", path, "me/streets", "--dry-run", tmp_path / "dry")


def test_push_and_load_again(tmp_path, monkeypatch):
    path = saved(tmp_path / "mine.safetensors")
    (tmp_path / "hub").mkdir()
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path / "hub"))
    assert "pushed to" in run("push", path, "me/mine", "--private")
    assert ordnet.load("hf:me/mine").classes == NAMES
    assert "A little test model." in run("hf:me/mine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nix"], "no model 'nix': there is no such checkpoint file, and shipped models are"),
        (["push", "nix", "me/mine"], "no model 'nix'"),
        (["push", "outdoor", "mine", "--dry-run", "dry"], "'mine' is no repository of the hub; expected user/name"),
    ],
)
def test_mistakes(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OrdnetError, match=message):
        run(*words)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_checkpoint(tmp_path):
    import torch
    from safetensors.torch import save_file

    (tmp_path / "cut.safetensors").write_bytes(saved(tmp_path / "m.safetensors").read_bytes()[:500])
    save_file({"conv1.weight": torch.zeros(1)}, tmp_path / "backbone.safetensors")
    save_file({"x": torch.zeros(1)}, tmp_path / "odd.safetensors", {"format": "ordnet-1", "ordnet": "[]"})
    for name, message in (
        ("cut", "no ordnet checkpoint, or was cut short"),
        ("backbone", r"but no ordnet checkpoint.*model\.weights"),
        ("odd", "its settings are damaged"),
    ):
        with pytest.raises(OrdnetError, match=message):
            read_card(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    ("asked", "whole"),
    [
        ({"name": None, "paper": True}, ("DAG-RNN + CRF", "ResNet-101 + COCO Stuff", "54.5 *", "not measured")),
        ({"name": "pcontext-r50-ordnet", "cost": True}, ("RTX 4090 x 64 *", "1,466.5", "pictures/s", "network", "636")),
        ({"name": None, "cost": True}, ("pcontext-r50-gate-out-softmax", "GFLOP/picture", "66.8 M", "2,703", "64 *")),
    ],
)
def test_tables_of_recipes_are_whole_on_any_terminal(asked, whole, width, monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(progress, "plain_console", lambda pipe_width=0: Console(file=out, width=width, markup=False))
    if asked.get("cost") and asked["name"] is None:  # of two of them: counting all takes long
        known = ordnet.recipes.recipes()
        some = {name: known[name] for name in ("pcontext-r50-gate-out-softmax", "ade20k-r101")}
        monkeypatch.setattr(ordnet.recipes, "recipes", lambda: some)
    recipes(**{"paper": False, "cost": False, **asked})
    text = out.getvalue()
    tables = [line for line in text.splitlines() if line[:1] in ("┃", "│", "┏", "└")]
    assert tables and all(len(line) <= width for line in tables)
    assert not any("…" in line for line in tables)
    for words in whole:
        assert words in text
