"""Typed settings, one section per part of the product. Unknown keys are refused; each part gets its section only."""

from difflib import get_close_matches
from pathlib import Path
from reprlib import Repr
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ordnet.errors import OrdnetError

Branch = Literal["middle", "long"]
_LARGEST_SCALE = 16.0
"""Pictures are not enlarged beyond this: they would not fit into memory."""
LONGEST_SIDE = 100_000
"""Pixels; a checkpoint that says it knows larger pictures is taken for damaged."""
_WIDEST = 100_000_000
"""Channels: beyond that their products do not fit into 64 bits."""
_FASTEST = 1e30
"""Rates and their factors: beyond that they come near to what 32 bits can hold."""
_BITS = 63
"""The largest whole numbers that torch and numpy take."""
_LARGEST_FILE = 100_000
"""Bytes of a settings file; a full one has about 2,000."""
_SHORT = Repr()
"""Shows values of any size in a few words."""
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 2, 200, 200


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _fits(cls, value: Any) -> Any:
        if type(value) is int and value.bit_length() > _BITS:
            raise ValueError(f"a number of more than {_BITS} bits")
        return value


class DataConfig(Section):
    name: str = "scenes"
    """As after --data: folder:PATH, ade20k:PATH, scenes, … (docs/datasets.md)."""
    split: str = "train"
    val_split: str = "val"
    limit: int | None = Field(default=None, gt=0)
    """Use only the first N samples of the training split, for quick tries."""
    workers: int = Field(default=2, ge=0)
    skip_broken: bool = False
    long_side: int | None = Field(default=None, ge=16, le=LONGEST_SIDE)
    """Larger pictures are shrunk while loading, so that their long side has this many pixels. By default pictures keep
    their own size."""
    flip: bool = True
    scale: tuple[float, float] = (0.5, 2.0)
    base_size: int | None = Field(default=None, gt=0, le=LONGEST_SIDE)
    """EncNet's rule: the long side becomes `scale` times this. By default the picture's own size is scaled."""
    jitter: float = Field(default=0.0, ge=0, le=1)
    """Strength of brightness, contrast and saturation changes."""
    balance: float = Field(default=0.0, ge=0, le=1)
    """The share of pictures that a class should be seen in: those that hold a rarer one come more often, by the root of
    what is missing and at most three times as often as others. By default all come alike, once an epoch."""

    @field_validator("scale")
    @classmethod
    def _is_range(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] <= value[1] <= _LARGEST_SCALE:
            raise ValueError(f"expected two factors above 0, the smaller first, none above {_LARGEST_SCALE:g}")
        return value


class ModelConfig(Section):
    variant: str = "ordnet"
    backbone: str = "resnet50s"
    weights: str | None = None
    """`imagenet` fetches the backbone's usual weights (every recipe with a known backbone says so); a backbone file,
    .safetensors or .pth, or hf:user/name[@revision][/file] on the Hugging Face hub; `none`, or nothing, is random."""
    output_stride: int | None = Field(default=None, gt=0)
    """How much smaller the features are than the picture: 8, 16 or 32; 4 for tiny; what they can for timm models. The
    default is 8 where the backbone can, else its own."""
    stride_on: Literal["conv1", "conv2", "auto"] = "auto"
    neck: int | None = Field(default=None, gt=0, le=_WIDEST)
    """Channels of a 1x1 convolution + BN + ReLU between backbone and block; by default there is none."""
    block_stride: int | None = Field(default=None, gt=0)
    """The stride of the map that the block works on, where that is finer than the backbone's last one: the coarser maps
    are enlarged and added to it first, as wide as the neck. By default the backbone's output stride."""
    decoder: str = "plain"
    """Between block and head: `plain` is nothing, as in the paper; `fine` is a light path through the
    backbone's finer maps to a quarter of the picture's size; `dense` is the same with dense 3x3 convolutions."""
    auxiliary: bool = False
    dropout: float = Field(default=0.1, ge=0, lt=1)
    align_corners: bool = True
    # The block's settings; None leaves the variant's own (ordnet.OmniRange has the meanings and the defaults).
    key_channels: int | None = Field(default=None, gt=0, le=_WIDEST)
    value_channels: int | None = Field(default=None, gt=0, le=_WIDEST)
    patches: int | None = Field(default=None, ge=1, le=64)
    branches: tuple[Branch, ...] | None = None
    gate: Literal["out", "in", "none"] | None = None
    gate_norm: Literal["sigmoid", "softmax"] | None = None
    gate_sum: Literal["mean", "sum"] | None = None
    fusion: Literal["concat", "sum", "scale", "channel"] | None = None
    similarity: Literal["dot", "softmax"] | None = None
    form: Literal["factored", "literal"] | None = None
    project: bool | None = None
    gate_logits: Literal["plain", "standard"] | None = None
    logit_scale: Literal["one", "root"] | None = None
    start: Literal["random", "identity"] | None = None


BLOCK_SETTINGS = (
    "key_channels", "value_channels", "patches", "branches", "gate", "gate_norm", "gate_sum",
    "fusion", "similarity", "form", "project", "gate_logits", "logit_scale", "start",
)  # fmt: skip
OMNI_RANGE = ("basic-sa", "basic-sa-mr", "basic-sa-rlr", "mr", "ordnet")
"""The variants made of the omni-range block; all others take none of its settings."""


class TrainingConfig(Section):
    epochs: int = Field(default=50, gt=0)
    batch_size: int = Field(default=16, gt=0)
    """Over all processes and accumulation steps."""
    least_steps: int = Field(default=0, ge=0)
    """An epoch has at least so many steps where batches of 4 allow it: of few pictures a batch takes fewer. The rate
    stays that of `batch_size`."""
    micro_batch: int | None = Field(default=None, gt=0)
    """Samples per process that go through the network at once; by default the process's whole share of the batch."""
    crop: int = Field(default=480, gt=0, le=LONGEST_SIDE)
    rate: float = Field(default=0.001, gt=0, le=_FASTEST)
    """Base rate at batch 16; scaled by batch/16."""
    rate_steps: int = Field(default=0, ge=0)
    """The steps of the run that the rate is meant for; 0 for a run of any length. A longer run learns more slowly, a
    shorter one faster, by the root of their ratio, at most twice as fast and at least half as fast."""
    head_rate: float = Field(default=10.0, gt=0, le=_FASTEST)
    """Everything but the backbone learns this many times faster."""
    block_rate: float = Field(default=1.0, gt=0, le=_FASTEST)
    """The omni-range block learns this many times as fast as the rest of the head. Nothing normalises what it adds, a
    product of four learnt layers: at the head's rate it can outgrow its input a thousandfold."""
    qk_rate: float = Field(default=1.0, gt=0, le=_FASTEST)
    """The block's queries and keys learn this many times as fast as the rest of the block: their products are
    unbounded, and large steps close the gate for good."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    power: float = Field(default=0.9, gt=0)
    cross_entropy: float = Field(default=1.0, ge=0)
    lovasz: float = Field(default=1.0, ge=0)
    lovasz_per_image: bool = False
    auxiliary: float = Field(default=0.2, ge=0)
    loss_at: Literal["picture", "scores", "sample"] = "picture"
    """Where the losses are taken: at the picture's size, as in EncNet; at the small scores' own positions, which is
    less work; or at as many pixels, others at each step, which is as little work and does not miss thin things."""
    class_weights: tuple[float, ...] | Literal["auto"] | None = None
    """The cross-entropy's weights, one number per class, or `auto`, which counts the training labels and makes rare
    classes weigh more. By default all classes weigh the same."""
    class_weights_fade: float = Field(default=0.0, ge=0, le=1)
    """How far the weights fade to 1 over the run, so that rare classes are found early but not predicted everywhere
    later: the weights' exponent falls from 1 at the first step to 1 minus this at the last."""
    clip: float | None = Field(default=None, gt=0)
    freeze_norm: bool = False
    freeze_stages: int = Field(default=0, ge=0)
    """How many of the backbone's first stages keep the weights and statistics that they came with. Their maps are the
    largest, so that their gradients are the dearest, and ImageNet has taught them edges and colours. A backbone that
    starts at random is trained whole."""
    mixed_precision: bool = True
    """On GPUs; a CPU always trains in float32."""
    channels_last: bool = True
    compile: bool = False
    ema: float | None = Field(default=None, gt=0, lt=1)
    patience: int | None = Field(default=None, gt=0)
    """Stop early once the best mIoU is this many epochs old."""
    seed: int = Field(default=0, ge=0)
    save_minutes: float = Field(default=5.0, gt=0)
    """A state to resume from is saved at least this often, and after every epoch."""
    tensorboard: bool = False
    """Curves for TensorBoard too (needs the extra `log`)."""

    @field_validator("class_weights", mode="before")
    @classmethod
    def _none(cls, value: Any) -> Any:
        """`none` is the default, spelt out."""
        return None if value == "none" else value


class EvaluationConfig(Section):
    protocol: Literal["whole", "multiscale", "encnet"] = "whole"
    every: int = Field(default=1, gt=0)
    """Epochs between two evaluations while training."""
    limit: int | None = Field(default=None, gt=0)
    """Evaluate on this many pictures only, spread evenly over the split."""


class Settings(Section):
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def parse(values: dict[str, Any], origin: str) -> Settings:
    """Settings from plain values; `origin` names where they came from in the message."""
    return _validated(Settings, values, origin)


def parse_model(values: dict[str, Any], origin: str) -> ModelConfig:
    return _validated(ModelConfig, values, origin)


class _Loader(yaml.SafeLoader):
    """Plain values only: aliases (*name) can turn a few lines into gigabytes, and no setting needs them."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers to other parts of itself (*name), which settings do not do: write them out")
        return super().compose_node(parent, index)


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    value = loader.construct_yaml_int(node)
    if value.bit_length() > _BITS:
        raise yaml.YAMLError(f"it has a number of more than {_BITS} bits, which no setting takes")
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)


def _plain(text: str) -> Any:
    """The values of a YAML text; ValueError with the reason where there are none."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # also impossible dates and numbers
        raise ValueError(str(error)) from None


def read(path: Path) -> Settings:
    try:
        if path.exists() and not path.is_file():  # a pipe may never end
            raise ValueError("it is a folder, a pipe, a socket or a device, not a file")
        if path.stat().st_size > _LARGEST_FILE:
            raise ValueError(f"it has more than the {_LARGEST_FILE:,} bytes that settings may take")
        values = _plain(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OrdnetError(f"no settings file at {path}") from None
    except (OSError, ValueError) as error:
        raise OrdnetError(f"{path} is not a readable YAML file: {error}") from None
    if not isinstance(values, dict):
        raise OrdnetError(f"{path} holds no settings: expected the sections {', '.join(Settings.model_fields)}")
    return parse(values, str(path))


def override(settings: Settings, assignments: list[str]) -> Settings:
    """Apply `section.key=value` words (values are read as YAML, so 1e-3, true, [1, 2] and null work).

    A variant without the omni-range block drops the recipe's settings of the block. One that is given together with the
    variant is kept, and refused when the network is built.
    """
    values = settings.model_dump(mode="json")
    given = set()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot) or section not in values:
            known = ", ".join(f"{section}.…" for section in values)
            raise OrdnetError(f"--set {assignment}: expected section.key=value; there are {known}")
        if name not in values[section]:
            close = "".join(f", perhaps {near}" for near in get_close_matches(name, values[section], 1))
            known = ", ".join(values[section])
            raise OrdnetError(f"--set {assignment}: {section} has no setting {name!r}{close}; there are {known}")
        values[section][name] = _scalar(text)
        given.add(f"{section}.{name}")
    if "model.variant" in given and values["model"]["variant"] not in OMNI_RANGE:
        left = [name for name in BLOCK_SETTINGS if f"model.{name}" not in given]
        values["model"] |= dict.fromkeys(left)
    return parse(values, "--set")


def _scalar(text: str) -> Any:
    try:
        value = _plain(text)
    except ValueError:
        return text
    if isinstance(value, str):
        try:  # YAML 1.1 takes 1e-3 for a word
            return float(value)
        except ValueError:
            return value
    return value


def _validated(kind: Any, values: dict[str, Any], origin: str) -> Any:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            where = ".".join(map(str, problem["loc"]))
            if problem["type"] == "extra_forbidden":
                lines.append(f"{where}: there is no such setting{_close(kind, problem['loc'])}")
            else:
                lines.append(f"{where}: {problem['msg']}, got {_SHORT.repr(problem['input'])}")
        raise OrdnetError(f"{origin}: " + "; ".join(lines)) from None


def _close(kind: Any, location: tuple[Any, ...]) -> str:
    """The known settings of the section that a mistyped one is in."""
    for step in location[:-1]:
        kind = kind.model_fields[step].annotation
    return f"; there are {', '.join(kind.model_fields)}"
