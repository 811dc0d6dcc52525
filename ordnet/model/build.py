"""Names → networks, and the ImageNet weights of their backbones. The only reader of ModelConfig.

`model.weights: imagenet` takes the file of the Hugging Face hub that `SOURCES` names for the backbone. It is fetched
once, its content is compared with the hash that the hub gives for it, and it stays in the hub's cache. The commit it
came from is reported, and later runs on this computer use the same one (ordnet/model/hub.py). Without a network,
ORDNET_HUB=FOLDER replaces the hub: FOLDER/user/name/file as on the hub, or simply FOLDER/BACKBONE_imagenet.safetensors.

Without a network and without a mirror, the backbone of a shipped model stands in where it is the same network. It has
been trained further on that model's pictures, so a message says which one it is, why, and how to do without it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn

from ordnet.config import BLOCK_SETTINGS, ModelConfig, parse_model
from ordnet.errors import OrdnetError
from ordnet.model import hub
from ordnet.model import weights as weight_files
from ordnet.model.backbones.resnet import RESNETS, ResNet
from ordnet.model.backbones.small import MobileNetV2, Tiny
from ordnet.model.backbones.timm import PREFIX as TIMM
from ordnet.model.backbones.timm import TimmBackbone, pretrained_repository
from ordnet.model.baselines import ASPP, DANet, Interlaced, NonLocal, PyramidPooling
from ordnet.model.card import read_card, shipped_models
from ordnet.model.decoder import Classifier, Decoder, FCNHead, FineDecoder, Join, PlainDecoder
from ordnet.model.network import Network
from ordnet.model.omni_range import OmniRange
from ordnet.model.parts import Backbone, Block, NoBlock, conv_norm
from ordnet.model.weights import WeightFile

# The omni-range block's settings in each variant of the paper; everything else is OmniRange's default.
BLOCKS: dict[str, dict[str, Any]] = {
    "basic-sa": {"branches": ("long",), "gate": None},
    "basic-sa-mr": {"gate": None},
    "basic-sa-rlr": {"branches": ("long",)},
    "mr": {"branches": ("middle",)},
    "ordnet": {},
}
# Blocks without settings of their own, called with the number of feature channels.
OTHER_BLOCKS: dict[str, Callable[[int], Block]] = {
    "dilated-fcn": NoBlock,
    "interlaced": Interlaced,
    "danet": DANet,
    "nonlocal": NonLocal,
    "aspp": ASPP,
    "ppm": PyramidPooling,
}
# Backbones by name, called with an output stride (None: the usual one) and, for ResNets, the layer that strides.
BACKBONES: dict[str, Callable[[int | None, str], Backbone]] = {
    **{
        name: lambda stride, stride_on, parts=parts: ResNet(*parts, stride or 8, stride_on)  # type: ignore[misc, call-arg]
        for name, parts in RESNETS.items()
    },
    "mobilenet_v2": lambda stride, _: MobileNetV2(stride or 8),
    "mobilenet_v2_full": lambda stride, _: MobileNetV2(stride or 8, top=True),
    "mobilenet_v2_short": lambda stride, _: MobileNetV2(stride or 8, MobileNetV2.SHORT),
    "tiny": lambda _, __: Tiny(),
}


def _plain(block: Block, _: Backbone, stride: int) -> Decoder:
    return PlainDecoder(block.out_channels, stride, block.ends_in_convolution)


def _fine(block: Block, backbone: Backbone, stride: int, dense: bool = False) -> Decoder:
    fine = FineDecoder(block.out_channels, backbone, stride, dense=dense)
    return (
        fine if fine.levels else _plain(block, backbone, stride)
    )  # a backbone of one stride has no finer maps to go through


# Decoders by name, called with the block and the backbone they connect to.
DECODERS: dict[str, Callable[[Block, Backbone, int], Decoder]] = {
    "plain": _plain,
    "fine": _fine,
    "dense": lambda block, backbone, stride: _fine(block, backbone, stride, dense=True),
}


@dataclass(frozen=True)
class Source:
    """A file on the hub."""

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
"""Backbones so small that they are trained from scratch; there are no ImageNet weights for them."""


def variants() -> tuple[str, ...]:
    """The names `build` takes."""
    return ("dilated-fcn", *BLOCKS, *(name for name in OTHER_BLOCKS if name != "dilated-fcn"))


def backbones() -> tuple[str, ...]:
    """The backbones `build` takes, besides timm:NAME for any timm model that gives feature maps (extra `timm`)."""
    return tuple(BACKBONES)


def build(variant: str = "ordnet", *, classes: int, backbone: str = "resnet50s", **settings: Any) -> Network:
    """A network by name: `net(image)` → scores (B, classes, H, W).

    `settings` are the fields of the model section (weights, output_stride, …) and the block's own (patches, gate, …).
    """
    if settings.get("gate", "") is None:
        settings["gate"] = "none"  # in settings files an absent gate means the variant's own
    return build_from(parse_model({"variant": variant, "backbone": backbone, **settings}, "build"), classes)


def build_from(config: ModelConfig, classes: int, say: Callable[[str], object] = lambda _: None) -> Network:
    """The network of a model section, with its backbone's weights; `say` is told where they came from."""
    if config.variant not in variants():
        raise OrdnetError(f"there is no variant {config.variant!r}; there are {', '.join(variants())}")
    if config.decoder not in DECODERS:
        raise OrdnetError(f"there is no decoder {config.decoder!r}; there are {', '.join(DECODERS)}")
    if classes < 1:
        raise OrdnetError(f"a network needs at least one class, got {classes}")
    # read first: the file may say which layer its network strides on
    file, origin = chosen_weights(config.weights, config.backbone)
    if origin:
        say(origin)
    stride_on = config.stride_on
    if stride_on == "auto":
        stride_on = file.stride_on if file else "conv2"  # type: ignore[assignment]
    backbone = make_backbone(config.backbone, config.output_stride, stride_on)
    if file:
        weight_files.load(backbone, file, config.backbone)

    third, width = backbone.channels[-2:]
    stride = min(config.block_stride or backbone.output_stride, backbone.output_stride)
    neck: nn.Module = nn.Identity()
    if stride != backbone.output_stride:
        if not config.neck:
            raise OrdnetError(f"model.block_stride={stride} joins maps of several widths: give model.neck one for all")
        neck, width = Join(backbone, stride, config.neck), config.neck
    elif config.neck:
        neck = nn.Sequential(*conv_norm(width, config.neck, 1), nn.ReLU(inplace=True))
        width = config.neck
    block = _block(config, width)
    decoder = DECODERS[config.decoder](block, backbone, stride)
    head = Classifier if decoder.ends_in_convolution else FCNHead
    return Network(
        backbone,
        neck,
        block,
        decoder,
        head(decoder.out_channels, classes, config.dropout),
        FCNHead(third, classes, config.dropout) if config.auxiliary else None,
        config.align_corners,
        # Keep what "auto" and None became. The weights are in: loading a checkpoint must not look for their file.
        config.model_copy(update={"stride_on": stride_on, "output_stride": backbone.output_stride, "weights": None}),
        classes,
    )


def make_backbone(name: str, output_stride: int | None = None, stride_on: str = "conv2") -> Backbone:
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), output_stride)
    _refuse_unknown(name)
    backbone = BACKBONES[name](output_stride, stride_on)
    if output_stride not in (None, backbone.output_stride):
        raise OrdnetError(f"the {name} backbone has output stride {backbone.output_stride}, not {output_stride}")
    return backbone


def _refuse_unknown(backbone: str) -> None:
    if backbone not in BACKBONES:
        known = f"{', '.join(BACKBONES)}, and timm:NAME for timm's"
        raise OrdnetError(f"there is no backbone {backbone!r}; there are {known}")


def _block(config: ModelConfig, width: int) -> Block:
    if config.variant in OTHER_BLOCKS:
        _refuse_block_settings(config)
        return OTHER_BLOCKS[config.variant](width)
    given = {name: getattr(config, name) for name in BLOCK_SETTINGS if getattr(config, name) is not None}
    if given.get("gate") == "none":
        given["gate"] = None
    return OmniRange(width, **{**BLOCKS[config.variant], **given})


def _refuse_block_settings(config: ModelConfig) -> None:
    """A setting without effect is a mistake that would otherwise pass unnoticed."""
    given = [name for name in BLOCK_SETTINGS if getattr(config, name) is not None]
    if given:
        raise OrdnetError(f"{config.variant} has no omni-range block: {', '.join(given)} would have no effect")


def source_of(backbone: str) -> Source:
    """Where a backbone's ImageNet weights are kept; for timm's models, where timm keeps them."""
    if backbone in SOURCES:
        return SOURCES[backbone]
    if not backbone.startswith(TIMM):
        _refuse_unknown(backbone)
        raise OrdnetError(
            f"there are no ImageNet weights for the {backbone} backbone; model.weights: none starts at random"
        )
    repository = pretrained_repository(backbone.removeprefix(TIMM))
    if repository is None:
        raise OrdnetError(f"timm has no pretrained weights for {backbone}; model.weights: none starts at random")
    return Source(repository)


def chosen_weights(setting: str | None, backbone: str) -> tuple[WeightFile | None, str]:
    """The weights that `model.weights` names, and, for ImageNet weights, a line that says where they came from."""
    if setting == "imagenet" and backbone in SCRATCH:
        return None, f"there are no ImageNet weights for the {backbone} backbone: it starts at random"
    if setting == "imagenet":
        return imagenet_weights(backbone)
    if setting and hub.is_address(setting):
        repository, file, revision = hub.split(setting)
        path, where = _fetched(Source(repository, file, revision))
        return weight_files.read(path), f"weights: {where}, sha256 {_sha256(path)[:12]}"
    return (weight_files.read(setting) if setting and setting != "none" else None), ""


def imagenet_weights(backbone: str) -> tuple[WeightFile, str]:
    """The weights of a backbone, and a line that says where they came from."""
    source, flat = source_of(backbone), f"{_whole_network(backbone)}_imagenet.safetensors"
    mirror = hub.mirror()  # one that is no folder is a mistake: nothing stands in for it
    try:
        path, where = _find_weights(backbone, source)
    except OrdnetError as error:
        reason = (
            f"ORDNET_HUB={mirror} holds neither {flat} nor {source.repository}/{source.file}" if mirror else str(error)
        )
        stand_in = _shipped_backbone(backbone)
        if stand_in is None:
            raise OrdnetError(
                f"the ImageNet weights of {backbone} are {source}, which cannot be had: {reason}. Fetch that file "
                f"elsewhere and name it with --set model.weights=FILE, or put it into a folder as "
                f"{flat} and name the folder with ORDNET_HUB; --set model.weights=none starts at random"
            ) from None
        file, name = stand_in
        taught = read_card(file.path).about.get("data", "pictures of its own")
        why, _, _ = reason.partition(";")  # what can be done about it comes last
        return file, (
            f"{source} cannot be had ({why}): the backbone of the shipped model `{name}` stands in. It was trained on "
            f"{taught}: scores on those pictures are too high. For ImageNet's own weights put {flat} into a folder and "
            f"name that with ORDNET_HUB, or give --set model.weights=FILE"
        )
    return weight_files.read(path), f"ImageNet weights: {where}, sha256 {_sha256(path)[:12]}"


def _find_weights(backbone: str, source: Source) -> tuple[Path, str]:
    """The file, and where it came from."""
    if mirror := hub.mirror():
        flat = mirror / f"{_whole_network(backbone)}_imagenet.safetensors"
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


def _shipped_backbone(backbone: str) -> tuple[WeightFile, str] | None:
    """The backbone of a shipped model, if it is the same network or a longer or shorter form of it. With a shorter one
    the last layers start at random, and loading warns of that."""
    network = _whole_network(backbone)
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


def _whole_network(backbone: str) -> str:
    """The name of the network that a backbone is all of, or the first part of."""
    return backbone.removeprefix(TIMM).removesuffix("_short").removesuffix("_full")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
