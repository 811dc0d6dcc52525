"""ImageNet weights by the name of a backbone: `model.weights: imagenet`.

A table says which file of which repository of the Hugging Face hub holds them. It is fetched once, its content is
compared with the hash that the hub gives for it, and it stays in the hub's cache. The commit that it came from is said,
and later runs on this computer take the same (ordnet/model/hub.py). ORDNET_HUB=FOLDER stands for the hub
where there is no network: FOLDER/user/name/file as on the hub, or simply FOLDER/BACKBONE_imagenet.safetensors.

Without a network and without a mirror, the backbone of a model that comes with the package stands in where it is the
same network. It has been trained further on that model's pictures, which is said.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import safe_open

from ordnet.errors import OrdnetError
from ordnet.model import hub, weights
from ordnet.model.card import read_card, shipped_models
from ordnet.model.weights import WeightFile

TIMM = "timm:"


@dataclass(frozen=True)
class Source:
    """A file of the hub."""

    repository: str
    file: str = "model.safetensors"
    revision: str | None = None

    def __str__(self) -> str:
        """As model.weights takes it."""
        return f"hf:{self.repository}{f'@{self.revision}' if self.revision else ''}/{self.file}"


# torchvision's own weights, and for the deep stems those of GluonCV, as timm keeps them in safetensors
SOURCES = {
    "mobilenet_v2": Source("timm/mobilenetv2_100.ra_in1k"),
    "mobilenet_v2_full": Source("timm/mobilenetv2_100.ra_in1k"),
    "mobilenet_v2_short": Source("timm/mobilenetv2_100.ra_in1k"),
    "resnet18": Source("timm/resnet18.tv_in1k"),
    "resnet34": Source("timm/resnet34.tv_in1k"),
    "resnet50": Source("timm/resnet50.tv_in1k"),
    "resnet101": Source("timm/resnet101.tv_in1k"),
    "resnet152": Source("timm/resnet152.tv_in1k"),
    "resnet50s": Source("timm/resnet50s.gluon_in1k"),
    "resnet101s": Source("timm/resnet101s.gluon_in1k"),
    "resnet152s": Source("timm/resnet152s.gluon_in1k"),
}

SCRATCH = ("tiny",)
"""Backbones so small that they learn from nothing, and were never trained on ImageNet."""


def source_of(backbone: str) -> Source:
    """Where a backbone's ImageNet weights are kept; for timm's models, timm is asked."""
    if backbone in SOURCES:
        return SOURCES[backbone]
    if not backbone.startswith(TIMM):
        raise OrdnetError(
            f"there are no ImageNet weights for the {backbone} backbone; model.weights: none starts at random"
        )
    from ordnet.model.backbones.timm import pretrained_repository

    repository = pretrained_repository(backbone.removeprefix(TIMM))
    if repository is None:
        raise OrdnetError(f"timm has no pretrained weights for {backbone}; model.weights: none starts at random")
    return Source(repository)


def chosen(setting: str | None, backbone: str) -> tuple[WeightFile | None, str]:
    """The weights that `model.weights` names, and, for ImageNet weights, a line that says where they came from."""
    if setting == "imagenet" and backbone in SCRATCH:
        return None, f"there are no ImageNet weights for the {backbone} backbone: it starts at random"
    if setting == "imagenet":
        return read(backbone)
    if setting and hub.is_address(setting):
        repository, file, revision = hub.split(setting)
        path, where = _fetched(Source(repository, file, revision))
        return weights.read(path), f"weights: {where}, sha256 {_sha256(path)[:12]}"
    return (weights.read(setting) if setting and setting != "none" else None), ""


def read(backbone: str) -> tuple[WeightFile, str]:
    """The weights of a backbone, and a line that says where they came from."""
    source = source_of(backbone)
    try:
        path, where = _find(backbone, source)
    except OrdnetError as error:
        stand_in = _shipped(backbone)
        if stand_in is None:
            raise OrdnetError(
                f"the ImageNet weights of {backbone} are {source}, which cannot be had: {error}. Fetch that file "
                f"elsewhere and name it with --set model.weights=FILE, or put it into a folder as "
                f"{_network(backbone)}_imagenet.safetensors and name the folder with ORDNET_HUB; "
                f"--set model.weights=none starts at random"
            ) from None
        file, name = stand_in
        return file, f"{source} cannot be had here: the backbone of the shipped model `{name}` stands in"
    return weights.read(path), f"ImageNet weights: {where}, sha256 {_sha256(path)[:12]}"


def _find(backbone: str, source: Source) -> tuple[Path, str]:
    """The file, and where it came from."""
    if mirror := hub.mirror():
        flat = mirror / f"{_network(backbone)}_imagenet.safetensors"
        if flat.is_file() and not (mirror / source.repository / source.file).is_file():
            return flat, str(flat)
    return _fetched(source)


def _fetched(source: Source) -> tuple[Path, str]:
    """The file of the hub or its mirror, and an address that leads to the same content another time."""
    if mirror := hub.mirror():
        return hub.fetch(source.repository, source.file), f"{source} of {mirror}"
    path, revision, expected = hub.fetch_checked(source.repository, source.file, source.revision)
    if expected and (found := _sha256(path)) != expected:
        raise OrdnetError(
            f"{path} is damaged: its sha256 is {found[:12]}…, the hub says {expected[:12]}…; remove it, and it is "
            f"fetched again"
        )
    return path, str(replace(source, revision=revision))


def _shipped(backbone: str) -> tuple[WeightFile, str] | None:
    """The backbone of a model that comes with the package, if it is the same network, or a longer or a shorter form of
    it; of a shorter one the last layers start at random, which is said where it is loaded."""
    network = _network(backbone)
    models = {name: (path, read_card(path).settings["model"]) for name, path in shipped_models().items()}
    for wanted in (backbone, f"{network}_full", network):
        for name, (path, model) in models.items():
            if model.get("backbone") == wanted:
                prefix = "backbone."
                with safe_open(path, framework="pt") as file:
                    tensors = {
                        key.removeprefix(prefix): file.get_tensor(key).float()
                        for key in file.keys()  # noqa: SIM118
                        if key.startswith(prefix)
                    }
                return WeightFile(path, tensors, model.get("stride_on", "conv2")), name
    return None


def _network(backbone: str) -> str:
    """The network that a backbone is the whole or the beginning of."""
    return backbone.removeprefix(TIMM).removesuffix("_short").removesuffix("_full")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
