"""ImageNet weights by a backbone's name: from a mirror, the cache, a shipped model, or an error that helps."""

import pytest
import torch
from safetensors.torch import save_file

import ordnet
from ordnet.config import ModelConfig
from ordnet.errors import OrdnetError
from ordnet.model import build as building
from ordnet.model.build import build_from, make_backbone
from ordnet.recipes import recipes


def stored(backbone, path):
    torch.manual_seed(5)
    tensors = {key: tensor.clone() for key, tensor in make_backbone(backbone).state_dict().items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, {"stride_on": "conv1"})
    return tensors


@pytest.mark.parametrize("backbone", ["mobilenet_v2", "resnet18"])
@pytest.mark.parametrize("flat", [True, False])
def test_a_mirror_of_the_hub_fills_the_backbone(tmp_path, monkeypatch, backbone, flat):
    source = building.source_of(backbone)
    file = f"{backbone}_imagenet.safetensors" if flat else f"{source.repository}/{source.file}"
    tensors = stored(backbone, tmp_path / file)
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))
    said = []
    net = build_from(ModelConfig(backbone=backbone, weights="imagenet"), 3, said.append)
    for key, tensor in net.backbone.state_dict().items():
        torch.testing.assert_close(tensor, tensors[key])
    assert "sha256" in said[0]
    assert net.config.stride_on == "conv1"  # from the file's metadata
    assert net.config.weights is None  # a checkpoint that is loaded later looks for no file


def test_without_network_the_shipped_backbone_stands_in_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))
    said = []
    net = build_from(ModelConfig(backbone="mobilenet_v2", output_stride=16, weights="imagenet"), 3, said.append)
    assert "the backbone of the shipped model `outdoor` stands in" in said[0]
    assert "trained on Stanford Background: scores on those pictures are too high" in said[0]
    source = building.source_of("mobilenet_v2")
    missing = f"mobilenet_v2_imagenet.safetensors nor {source.repository}/{source.file}"
    assert f"ORDNET_HUB={tmp_path} holds neither {missing}" in said[0]
    shipped = ordnet.load("outdoor").net  # its norms are folded; the first convolution of the plain file will do
    assert shipped.config.backbone == "mobilenet_v2_full"  # which holds all of the usual one
    file, _ = building._shipped_backbone("mobilenet_v2")
    torch.testing.assert_close(net.backbone.features[1].conv[1].weight, file.tensors["features.1.conv.1.weight"])


def test_a_stand_in_gives_the_reason_and_the_remedy(monkeypatch):
    """As where there is no network; its remedy works."""
    monkeypatch.delenv("ORDNET_HUB", raising=False)

    def unreached(*words):
        raise OrdnetError("the hub was not reached; check the network")

    monkeypatch.setattr(building.hub, "fetch_checked", unreached)
    _, said = building.imagenet_weights("mobilenet_v2_full")
    assert "cannot be had (the hub was not reached): the backbone" in said
    assert "put mobilenet_v2_imagenet.safetensors into a folder and name that with ORDNET_HUB" in said
    assert "--set model.weights=FILE" in said


@pytest.mark.parametrize("backbone", ["mobilenet_v2_full", "resnet34"])
@pytest.mark.parametrize("kind", ["missing", "file"])
def test_nothing_stands_in_for_a_misspelt_mirror(tmp_path, monkeypatch, backbone, kind):
    if kind == "file":
        (tmp_path / "hub").write_text("no folder")
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path / "hub"))
    with pytest.raises(OrdnetError, match=f"^ORDNET_HUB={tmp_path / 'hub'} is no folder"):
        building.imagenet_weights(backbone)


@pytest.mark.filterwarnings("ignore:.*left at random")
def test_the_default_command_starts_without_a_network(tmp_path, monkeypatch):
    """Whichever form of the network it takes: a shorter shipped one leaves the last layers at random."""
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))
    said = []
    net = build_from(recipes()["folder-default"].settings.model, 3, said.append)
    assert "stands in" in said[0]
    file, _ = building._shipped_backbone("mobilenet_v2_full")
    torch.testing.assert_close(net.backbone.features[1].conv[1].weight, file.tensors["features.1.conv.1.weight"])


def test_what_cannot_be_had_is_named_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("ORDNET_HUB", str(tmp_path))
    message = (
        r"weights of resnet34 are hf:timm/resnet34.tv_in1k/model.safetensors.* model.weights=FILE.*resnet34_imagenet"
    )
    with pytest.raises(OrdnetError, match=message):
        build_from(ModelConfig(backbone="resnet34", weights="imagenet"), 3)
    said = []
    build_from(ModelConfig(backbone="tiny", weights="imagenet"), 3, said.append)
    assert said == ["there are no ImageNet weights for the tiny backbone: it starts at random"]
    assert build_from(ModelConfig(backbone="resnet18", weights="none"), 3).config.weights is None


def test_a_damaged_file_in_the_cache_is_found(tmp_path, monkeypatch):
    """The hub's cache keeps a large file under its hash; content that does not have it is refused."""
    monkeypatch.delenv("ORDNET_HUB", raising=False)
    blob = tmp_path / ("ab" * 32)
    blob.write_bytes(b"not what was meant")
    monkeypatch.setattr(building.hub, "fetch_checked", lambda *words: (blob, "main", blob.name))
    with pytest.raises(OrdnetError, match="is damaged: its sha256 is"):
        building._find_weights("resnet18", building.source_of("resnet18"))


def test_every_recipe_with_a_known_backbone_starts_pretrained():
    for recipe in recipes().values():
        model = recipe.settings.model
        assert (model.weights == "imagenet") == (model.backbone in building.SOURCES), recipe.name


def test_a_checkpoint_never_asks_for_weights(tmp_path, monkeypatch):
    """Whatever its settings say: a file from elsewhere must not make anybody contact the hub."""
    import json

    from safetensors import safe_open
    from safetensors.torch import load_file

    from ordnet.model import checkpoint

    net = ordnet.build("ordnet", classes=2, backbone="tiny")
    checkpoint.save(tmp_path / "good.safetensors", net, ("a", "b"), ((0, 0, 0), (1, 1, 1)))
    with safe_open(tmp_path / "good.safetensors", "pt") as file:
        metadata = dict(file.metadata())
    settings = json.loads(metadata["ordnet"])
    settings["model"]["weights"] = "hf:evil/x"
    save_file(
        load_file(tmp_path / "good.safetensors"),
        tmp_path / "evil.safetensors",
        {**metadata, "ordnet": json.dumps(settings)},
    )

    def refuse(*words):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr("ordnet.model.hub.locate", refuse)
    try:
        loaded = checkpoint.load(tmp_path / "evil.safetensors")
    except OrdnetError:
        return  # refused for its checksum
    assert loaded.net.config.weights is None


def test_the_address_that_is_said_leads_to_the_same_content(tmp_path, monkeypatch):
    """`hf:user/name@commit/file` can be given as model.weights another time."""
    monkeypatch.delenv("ORDNET_HUB", raising=False)
    stored("mobilenet_v2", tmp_path / "model.safetensors")
    asked = []
    monkeypatch.setattr(
        building.hub,
        "fetch_checked",
        lambda *words: asked.append(words) or (tmp_path / "model.safetensors", "c" * 40, None),
    )
    said = []
    build_from(ModelConfig(backbone="mobilenet_v2", weights="imagenet"), 3, said.append)
    address = f"hf:timm/mobilenetv2_100.ra_in1k@{'c' * 40}/model.safetensors"
    assert f"ImageNet weights: {address}, sha256 " in said[0]
    build_from(ModelConfig(backbone="mobilenet_v2", weights=address), 3, said.append)
    assert f"weights: {address}, sha256 " in said[1]
    repository = "timm/mobilenetv2_100.ra_in1k"
    assert asked == [(repository, "model.safetensors", None), (repository, "model.safetensors", "c" * 40)]
