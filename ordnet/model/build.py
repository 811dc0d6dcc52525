"""Names → networks. The only reader of ModelConfig."""

from collections.abc import Callable
from typing import Any

from torch import nn

from ordnet.config import BLOCK_SETTINGS, ModelConfig, parse_model
from ordnet.errors import OrdnetError
from ordnet.model import pretrained
from ordnet.model import weights as weight_files
from ordnet.model.backbones.resnet import RESNETS, ResNet
from ordnet.model.backbones.small import MobileNetV2, Tiny
from ordnet.model.backbones.timm import PREFIX as TIMM
from ordnet.model.backbones.timm import TimmBackbone
from ordnet.model.baselines import ASPP, DANet, Interlaced, NonLocal, PyramidPooling
from ordnet.model.decoder import Classifier, Decoder, FCNHead, FineDecoder, PlainDecoder
from ordnet.model.network import Network
from ordnet.model.omni_range import OmniRange
from ordnet.model.parts import Backbone, Block, NoBlock, conv_norm

# What each variant of the paper sets of the omni-range block; everything else is OmniRange's default.
BLOCKS: dict[str, dict[str, Any]] = {
    "basic-sa": {"branches": ("long",), "gate": None},
    "basic-sa-mr": {"gate": None},
    "basic-sa-rlr": {"branches": ("long",)},
    "mr": {"branches": ("middle",)},
    "ordnet": {},
}
# Blocks without settings of their own: made for features of so many channels.
OTHER_BLOCKS: dict[str, Callable[[int], Block]] = {
    "dilated-fcn": NoBlock,
    "interlaced": Interlaced,
    "danet": DANet,
    "nonlocal": NonLocal,
    "aspp": ASPP,
    "ppm": PyramidPooling,
}
# Backbones by name: made for an output stride (None: their usual one) and a place of the strides (ResNets).
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


def variants() -> tuple[str, ...]:
    """The names `build` takes."""
    return ("dilated-fcn", *BLOCKS, *(name for name in OTHER_BLOCKS if name != "dilated-fcn"))


def backbones() -> tuple[str, ...]:
    """The backbones `build` takes, beside timm:NAME for any timm model that gives feature maps (extra `timm`)."""
    return tuple(BACKBONES)


def build(variant: str = "ordnet", *, classes: int, backbone: str = "resnet50s", **settings: Any) -> Network:
    """A network by name: `net(image)` → scores (B, classes, H, W).

    `settings` are the fields of the model section (weights, output_stride, …) and the block's own (patches, gate, …).
    """
    if settings.get("gate", "") is None:
        settings["gate"] = "none"  # in settings files an absent gate means the variant's own
    return build_from(parse_model({"variant": variant, "backbone": backbone, **settings}, "build"), classes)


def build_from(config: ModelConfig, classes: int, say: Callable[[str], object] = lambda _: None) -> Network:
    """The network of a model section, with its backbone's weights; `say` hears where they came from."""
    if config.variant not in variants():
        raise OrdnetError(f"there is no variant {config.variant!r}; there are {', '.join(variants())}")
    if classes < 1:
        raise OrdnetError(f"a network needs at least one class, got {classes}")
    # read first: the file knows where its network takes its strides
    file, origin = pretrained.chosen(config.weights, config.backbone)
    if origin:
        say(origin)
    stride_on = config.stride_on
    if stride_on == "auto":
        stride_on = file.stride_on if file else "conv2"  # type: ignore[assignment]
    backbone = make_backbone(config.backbone, config.output_stride, stride_on)
    if file:
        weight_files.load(backbone, file, config.backbone)

    third, width = backbone.channels[-2:]
    neck: nn.Module = nn.Identity()
    if config.neck:
        neck = nn.Sequential(*conv_norm(width, config.neck, 1), nn.ReLU(inplace=True))
        width = config.neck
    block = _block(config, width)
    decoder = _decoder(config, block, backbone)
    head = Classifier if decoder.ends_in_convolution else FCNHead
    return Network(
        backbone,
        neck,
        block,
        decoder,
        head(decoder.out_channels, classes, config.dropout),
        FCNHead(third, classes, config.dropout) if config.auxiliary else None,
        config.align_corners,
        # What was found out is kept. The file has been read: a checkpoint that is loaded later must not look for it.
        config.model_copy(update={"stride_on": stride_on, "output_stride": backbone.output_stride, "weights": None}),
        classes,
    )


def make_backbone(name: str, output_stride: int | None = None, stride_on: str = "conv2") -> Backbone:
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), output_stride)
    if name not in BACKBONES:
        raise OrdnetError(f"there is no backbone {name!r}; there are {', '.join(BACKBONES)}, and timm:NAME for timm's")
    backbone = BACKBONES[name](output_stride, stride_on)
    if output_stride not in (None, backbone.output_stride):
        raise OrdnetError(f"the {name} backbone has output stride {backbone.output_stride}, not {output_stride}")
    return backbone


def _block(config: ModelConfig, width: int) -> Block:
    if config.variant in OTHER_BLOCKS:
        _refuse_block_settings(config)
        return OTHER_BLOCKS[config.variant](width)
    given = {name: getattr(config, name) for name in BLOCK_SETTINGS if getattr(config, name) is not None}
    if given.get("gate") == "none":
        given["gate"] = None
    return OmniRange(width, **{**BLOCKS[config.variant], **given})


def _decoder(config: ModelConfig, block: Block, backbone: Backbone) -> Decoder:
    if config.decoder == "fine":
        fine = FineDecoder(block.out_channels, backbone)
        if fine.levels:  # a backbone that keeps one stride has no finer maps to go through
            return fine
    return PlainDecoder(block.out_channels, backbone.output_stride, block.ends_in_convolution)


def _refuse_block_settings(config: ModelConfig) -> None:
    """A setting without effect is a mistake that would otherwise pass unnoticed."""
    given = [name for name in BLOCK_SETTINGS if getattr(config, name) is not None]
    if given:
        raise OrdnetError(f"{config.variant} has no omni-range block: {', '.join(given)} would have no effect")
