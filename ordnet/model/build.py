"""Names → networks. The only reader of ModelConfig."""

from collections.abc import Callable
from typing import Any

from torch import nn

from ordnet.config import BLOCK_SETTINGS, ModelConfig, parse_model
from ordnet.errors import OrdnetError
from ordnet.model import weights as weight_files
from ordnet.model.backbone import NAMES as BACKBONES
from ordnet.model.backbone import conv_norm, make_backbone
from ordnet.model.baselines import DANet, Interlaced, NonLocal
from ordnet.model.head import Classifier, FCNHead
from ordnet.model.network import Network
from ordnet.model.omni_range import OmniRange

# What each variant of the paper sets of the block; everything else is OmniRange's default.
BLOCKS: dict[str, dict[str, Any]] = {
    "basic-sa": {"branches": ("long",), "gate": None},
    "basic-sa-mr": {"gate": None},
    "basic-sa-rlr": {"branches": ("long",)},
    "mr": {"branches": ("middle",)},
    "ordnet": {},
}
RIVALS: dict[str, Callable[[int], Interlaced | DANet | NonLocal]] = {
    "interlaced": Interlaced,
    "danet": DANet,
    "nonlocal": NonLocal,
}
VARIANTS = ("dilated-fcn", *BLOCKS, *RIVALS)


def variants() -> tuple[str, ...]:
    """The names `build` takes."""
    return VARIANTS


def backbones() -> tuple[str, ...]:
    """The backbones `build` takes, beside timm:NAME for any timm model that gives feature maps (extra `timm`)."""
    return BACKBONES


def build(variant: str = "ordnet", *, classes: int, backbone: str = "resnet50s", **settings: Any) -> Network:
    """A network by name: `net(image)` → scores (B, classes, H, W).

    `settings` are the fields of the model section (weights, output_stride, …) and the block's own (patches, gate, …).
    """
    if settings.get("gate", "") is None:
        settings["gate"] = "none"  # in settings files an absent gate means the variant's own
    return build_from(parse_model({"variant": variant, "backbone": backbone, **settings}, "build"), classes)


def build_from(config: ModelConfig, classes: int) -> Network:
    if config.variant not in VARIANTS:
        raise OrdnetError(f"there is no variant {config.variant!r}; there are {', '.join(VARIANTS)}")
    if classes < 1:
        raise OrdnetError(f"a network needs at least one class, got {classes}")
    # read first: the file knows where its network takes its strides
    file = weight_files.read(config.weights) if config.weights else None
    stride_on = config.stride_on
    if stride_on == "auto":
        stride_on = file.stride_on if file else "conv2"  # type: ignore[assignment]
    backbone = make_backbone(config.backbone, config.output_stride, stride_on)
    if file:
        weight_files.load(backbone, file, config.backbone)

    third, width = backbone.channels
    neck: nn.Module = nn.Identity()
    if config.neck:
        neck = nn.Sequential(*conv_norm(width, config.neck, 1), nn.ReLU(inplace=True))
        width = config.neck
    head: nn.Module
    if config.variant in RIVALS:
        _refuse_block_settings(config)
        rival = RIVALS[config.variant](width)
        block: nn.Module = rival
        head = Classifier(rival.channels, classes, config.dropout)
    else:
        block = _block(config, width)
        head = FCNHead(width, classes, config.dropout)
    return Network(
        backbone,
        neck,
        block,
        head,
        FCNHead(third, classes, config.dropout) if config.auxiliary else None,
        config.align_corners,
        # What was found out is kept. The file has been read: a checkpoint that is loaded later must not look for it.
        config.model_copy(update={"stride_on": stride_on, "output_stride": backbone.output_stride, "weights": None}),
        classes,
    )


def _block(config: ModelConfig, width: int) -> nn.Module:
    if config.variant == "dilated-fcn":
        _refuse_block_settings(config)
        return nn.Identity()
    given = {name: getattr(config, name) for name in BLOCK_SETTINGS if getattr(config, name) is not None}
    if given.get("gate") == "none":
        given["gate"] = None
    return OmniRange(width, **{**BLOCKS[config.variant], **given})


def _refuse_block_settings(config: ModelConfig) -> None:
    """A setting without effect is a mistake that would otherwise pass unnoticed."""
    given = [name for name in BLOCK_SETTINGS if getattr(config, name) is not None]
    if given:
        raise OrdnetError(f"{config.variant} has no omni-range block: {', '.join(given)} would have no effect")
