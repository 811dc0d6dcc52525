"""Public backbone weights from a file, matched by key and shape, with a report of what was loaded."""

import pickletools
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model import hub
from ordnet.model.backbones.small import MobileNetV2
from ordnet.model.backbones.timm import TimmBackbone

# Unused: classification layers and the heads of other parsers (EncNet's, torchvision's, mmsegmentation's).
EXPECTED_LEFTOVERS = (
    *("fc.", "classifier.", "head.", "auxlayer.", "aux_classifier.", "decode_head.", "auxiliary_head.", "features.18."),
)
# What training code puts in front of a backbone's own key names.
WRAPPERS = ("module.", "backbone.", "pretrained.", "encoder.", "model.")
_PICKLED = (".pth", ".pt", ".bin", ".tar", ".ckpt")
"""Endings of torch's own files; training code writes model_best.pth.tar."""
_NUMPY = ("multiarray.scalar", "multiarray._reconstruct")
_DROPPED = (
    *(f"numpy.{core}.{name}" for core in ("core", "_core") for name in _NUMPY),
    *(f"numpy.dtypes.{kind}DType" for kind in ("Float64", "Float32", "Int64", "Int32", "Bool", "UInt8")),
    *("numpy.dtype", "numpy.ndarray", "argparse.Namespace"),
    *("mmengine.logging.history_buffer.HistoryBuffer", "builtins.getattr"),
)
"""What whole checkpoints hold besides tensors: PyTorch-Encoding a score (a numpy number), timm its command line,
mmsegmentation its log. `_Dropped`, which does nothing, takes their place: neither numpy nor getattr is called."""
ENOUGH = 0.98
"""A file that fills less of the backbone than this was made for another one."""
_MOST_OPERATIONS = 2_000_000
"""The longest pickle that is read: networks have some 50 operations for each tensor."""
_ARCHIVE = b"PK\x03\x04"
"""How files of torch from 1.6 on begin."""
_OLD_PICKLES = 4
"""Pickles that precede the tensors in files of torch before 1.6: a mark, a version, the machine, the dictionary."""
_DEEPEST = 4
"""How deeply a state_dict may be nested in dictionaries."""


@dataclass(frozen=True)
class WeightFile:
    path: Path
    tensors: dict[str, Tensor]
    stride_on: str = "conv2"


@dataclass
class LoadReport:
    """Key names by what became of them."""

    loaded: list[str] = field(default_factory=list)
    random: list[str] = field(default_factory=list)
    """In the backbone but not in the file: left at their random start."""
    misfit: list[str] = field(default_factory=list)
    """In both, with different shapes: left at random too."""
    leftover: list[str] = field(default_factory=list)
    """In the file but not in the backbone, beyond classification layers and heads."""
    classifier: list[str] = field(default_factory=list)
    """Classification layers and heads of the file, expected to be left over."""

    @property
    def complete(self) -> bool:
        return not (self.random or self.misfit)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        for name, keys in (("left at random", self.random), ("did not fit", self.misfit), ("not used", self.leftover)):
            if keys:
                parts.append(f"{len(keys)} {name} ({', '.join(keys[:3])}{', …' if len(keys) > 3 else ''})")
        return "; ".join(parts)


def read(path: str | Path) -> WeightFile:
    """Tensors of a .safetensors, .pth or .pt file, or of one at hf:user/name[@revision][/file]. No pickle is run."""
    path = hub.locate(path) if hub.is_address(path) else Path(path)
    if not path.is_file():
        raise OrdnetError(f"no weight file at {path}")
    if path.suffix == ".safetensors":
        tensors, metadata = _read_safetensors(path)
    elif path.suffix in _PICKLED:
        tensors, metadata = _read_pickle(path), {}
    else:
        raise OrdnetError(f"{path}: expected a .safetensors, .pth or .pt file, or a whole checkpoint (.pth.tar)")
    stride_on = metadata.get("stride_on", "conv2")
    if stride_on not in ("conv1", "conv2"):
        raise OrdnetError(f"{path}: its metadata says stride_on={stride_on!r}; expected conv1 or conv2")
    return WeightFile(path, {_unwrapped(key): tensor for key, tensor in tensors.items()}, stride_on)


def load(backbone: nn.Module, file: WeightFile, name: str = "backbone") -> LoadReport:
    """Fill the backbone; warn of what stayed random; refuse a file that was made for another network."""
    report = LoadReport()
    own = {key: tensor for key, tensor in backbone.state_dict().items() if not key.endswith("num_batches_tracked")}
    timm = isinstance(backbone, TimmBackbone)
    given = timm_names(file.tensors, own) if timm else torchvision_names(file.tensors)
    fitting = {}
    for key, tensor in own.items():
        if key not in given:
            report.random.append(key)
        elif given[key].shape != tensor.shape:
            shapes = f"{tuple(given[key].shape)} in the file, {tuple(tensor.shape)} in the backbone"
            report.misfit.append(f"{key}: {shapes}")
        else:
            report.loaded.append(key)
            fitting[key] = given[key].to(tensor.dtype)
    for key in given:
        if key not in own and not key.endswith("num_batches_tracked"):
            fate = report.classifier if key.startswith(EXPECTED_LEFTOVERS) else report.leftover
            fate.append(key)
    if len(report.loaded) < ENOUGH * len(own):
        raise OrdnetError(f"{file.path} does not hold the weights of {name}: {report}; check model.backbone")
    for key, tensor in fitting.items():
        if not torch.isfinite(tensor).all():
            raise OrdnetError(f"{file.path}: {key} holds values that are not finite")
    backbone.load_state_dict(fitting, strict=False)
    if not report.complete:
        warnings.warn(f"{file.path} into {name}: {report}", stacklevel=2)
    return report


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], Mapping[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise OrdnetError(f"{path} is not a readable safetensors file ({error}); it may be cut short") from None


def load_plain(path: Path) -> Any:
    """What torch.save wrote, if it holds tensors and plain values only. No code is run and nothing is decompressed.

    torch's own reader runs no code either, but it decompresses files (a few megabytes become gigabytes), and
    it makes byte arrays of any length that a file asks for.
    """
    with path.open("rb") as file:
        # as torch decides it: a file of the old form may have an archive at its end, which torch does not look at
        if file.read(len(_ARCHIVE)) == _ARCHIVE:
            with zipfile.ZipFile(file) as archive:
                refuse_packed(archive, path)
                for part in archive.infolist():
                    if part.filename.endswith("data.pkl"):
                        with archive.open(part) as pickled:
                            _check_pickle(pickled)
        else:
            file.seek(0)
            for _ in range(_OLD_PICKLES):
                _check_pickle(file)
    with torch.serialization.safe_globals([(_Dropped, name) for name in _DROPPED]):
        return torch.load(path, map_location="cpu", weights_only=True)


def refuse_packed(archive: zipfile.ZipFile, path: Path) -> None:
    """Raise ValueError where parts of the archive `path` would be more than the file itself when they are read."""
    parts = archive.infolist()
    if any(part.compress_type for part in parts) or sum(part.file_size for part in parts) > path.stat().st_size:
        raise ValueError("its parts are compressed, which torch never does")


def _check_pickle(file: Any) -> None:
    """Read one pickle; ValueError if it asks for byte arrays or lists more than any network has."""
    for count, (_, argument, _) in enumerate(pickletools.genops(file)):
        if count > _MOST_OPERATIONS:
            raise ValueError("it lists more than any network has")
        if isinstance(argument, str) and argument.endswith("bytearray"):
            raise ValueError("it holds a bytearray")


class _Dropped:
    """Replaces an object in a checkpoint that is not needed."""

    def __new__(cls, *_: object, **__: object) -> "_Dropped":
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, _: object) -> None:
        pass


def _read_pickle(path: Path) -> dict[str, Tensor]:
    try:
        content: Any = load_plain(path)
    except Exception as error:  # torch raises whatever the unpickler met
        reason = str(error).strip().splitlines()
        raise OrdnetError(
            f"{path} cannot be read as plain tensors ({reason[0] if reason else type(error).__name__}); "
            f"it is cut short, or holds pickled objects, which are never run: save its state_dict alone"
        ) from None
    for _ in range(_DEEPEST):
        if isinstance(content, dict):
            inner = next((content[key] for key in ("state_dict", "model") if isinstance(content.get(key), dict)), None)
            content = content if inner is None else inner
    if not isinstance(content, dict):
        raise OrdnetError(f"{path} holds no state_dict: expected a dictionary of tensors")
    tensors = {
        key: value
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Tensor) and _is_plain(value)
    }
    if not tensors:
        raise OrdnetError(f"{path} holds no state_dict: expected a dictionary of tensors")
    return tensors


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_complex() or tensor.is_quantized)


def torchvision_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under torchvision's key names: timm's and mmsegmentation's MobileNetV2 translated.

    timm's ResNets have these names already, and so have PyTorch-Encoding's (EncNet's): in its resnet50s, as in ours,
    conv1 is a sequence of three convolutions (0, 3, 6) with norms between them (1, 4), and bn1 comes after it.
    """
    if "conv_stem.weight" in tensors:
        layers = _timm_mobilenet_layers()
    elif "layer1.0.conv.0.conv.weight" in tensors:
        layers = _mmseg_mobilenet_layers()
    else:
        return dict(tensors)
    renamed = {}
    for key, tensor in tensors.items():
        layer, _, parameter = key.rpartition(".")
        renamed[f"{layers.get(layer, layer)}.{parameter}"] = tensor
    return renamed


def timm_names(tensors: Mapping[str, Tensor], own: Iterable[str]) -> dict[str, Tensor]:
    """The tensors of a whole timm model under the names of a TimmBackbone.

    Models that give feature maps hold their parts in one flat list: `stages.0.blocks` is `stages_0.blocks` there.
    """
    names = {_flat(_unwrapped(key.removeprefix("features."))): key for key in own}
    return {names.get(_flat(key), key): tensor for key, tensor in tensors.items()}


def _flat(key: str) -> str:
    return key.replace("_", ".")


def _unwrapped(key: str) -> str:
    while wrapper := next((w for w in WRAPPERS if key.startswith(w)), None):
        key = key.removeprefix(wrapper)
    return key


def _timm_mobilenet_layers() -> dict[str, str]:
    """timm numbers MobileNetV2's blocks per stage and names their layers; torchvision numbers everything."""
    names = {"conv_stem": "features.0.0", "bn1": "features.0.1", "conv_head": "features.18.0", "bn2": "features.18.1"}
    number = 0
    for stage, (expand, _, depth, _) in enumerate(MobileNetV2.STAGES):
        layers = (
            {"conv_dw": "0.0", "bn1": "0.1", "conv_pw": "1", "bn2": "2"}
            if expand == 1
            else {"conv_pw": "0.0", "bn1": "0.1", "conv_dw": "1.0", "bn2": "1.1", "conv_pwl": "2", "bn3": "3"}
        )
        for block in range(depth):
            number += 1
            for timm, torchvision in layers.items():
                names[f"blocks.{stage}.{block}.{timm}"] = f"features.{number}.conv.{torchvision}"
    return names


def _mmseg_mobilenet_layers() -> dict[str, str]:
    """mmsegmentation numbers MobileNetV2's blocks per layer, and keeps every convolution with its norm."""
    names = {"conv1.conv": "features.0.0", "conv1.bn": "features.0.1"}
    number = 0
    for layer, (expand, _, depth, _) in enumerate(MobileNetV2.STAGES, 1):
        last = 1 if expand == 1 else 2  # the convolution that projects, which torchvision does not wrap
        for block in range(depth):
            number += 1
            for place in range(last + 1):
                ours = (f"{place}.0", f"{place}.1") if place < last else (f"{place}", f"{place + 1}")
                for theirs, our in zip(("conv", "bn"), ours, strict=True):
                    names[f"layer{layer}.{block}.conv.{place}.{theirs}"] = f"features.{number}.conv.{our}"
    return names
