"""Checkpoints: one self-contained safetensors file with weights, settings, class names and colours."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from ordnet.config import ModelConfig, parse_model
from ordnet.errors import OrdnetError, repeated
from ordnet.files import write_atomically
from ordnet.model.build import build_from
from ordnet.model.card import FORMAT, Colour, read_facts, read_settings
from ordnet.model.network import Network

CHECKSUM = "sha256"
"""The name of the checksum in the file's metadata; files written by earlier versions have none."""
_USUAL = 2048
"""Channels of the widest backbone."""


@dataclass(frozen=True)
class Checkpoint:
    net: Network
    classes: tuple[str, ...]
    colours: tuple[Colour, ...]
    about: dict[str, Any] = field(default_factory=dict)
    """Whatever the writer wanted to say: data set, scores, epoch."""


def save(
    path: str | Path,
    net: Network,
    classes: Sequence[str],
    colours: Sequence[Colour],
    about: dict[str, Any] | None = None,
    half: bool = False,
) -> None:
    """Write the network with all that prediction needs. A reader sees the old file or the new one, never a part of it.

    `half` stores float16, half the size, for models that are passed on; loading gives float32 again.
    """
    if not len(classes) == len(colours) == net.classes:
        raise OrdnetError(f"the network has {net.classes} classes, got {len(classes)} names, {len(colours)} colours")
    if twice := repeated(classes):
        raise OrdnetError(f"two classes are called {twice!r:.80}: give them names that differ")
    settings = {
        "model": net.config.model_dump(mode="json", exclude_none=True),
        "classes": list(classes),
        "colours": [list(colour) for colour in colours],
        "about": about or {},
    }
    # safetensors stores dense row-major tensors only
    tensors = {key: tensor.detach().cpu().contiguous() for key, tensor in net.state_dict().items()}
    if half:
        tensors = {key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
    words = json.dumps(settings, ensure_ascii=False)
    metadata = {"format": FORMAT, "ordnet": words, CHECKSUM: checksum(words, tensors)}
    write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata))


def checksum(settings: str, tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the settings and of all tensors with their names: one flipped bit makes another."""
    found = hashlib.sha256(settings.encode())
    for key in sorted(tensors):
        tensor = tensors[key]
        found.update(f"\0{key} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def save_file(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file with its metadata sorted by name: the library's own order differs from call to call.

    A file is the length of its header (8 bytes), the header (JSON, padded with blanks), and the tensors.
    """
    content = serialise(tensors, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    words = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    words += b" " * (-len(words) % 8)
    with path.open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        file.write(memoryview(content)[end:])


def load(path: str | Path) -> Checkpoint:
    """Read what `save` wrote; the network comes in evaluation mode, on the CPU, in float32."""
    path = Path(path)
    if not path.is_file():
        raise OrdnetError(f"no checkpoint at {path}")
    settings, tensors, sound = _read(path)
    classes, colours, about = read_facts(settings, path)
    # a checkpoint needs nothing else: whatever its settings say, no other file is read and nothing is downloaded
    config = parse_model({**settings.get("model", {}), "weights": None}, str(path))
    _check_widths(path, config, len(classes), tensors)
    usual = _is_usual(config)
    # on the meta device a network takes no memory, however large its settings; building it there takes a second more
    with torch.device("cpu" if usual else "meta"):
        net = build_from(config, len(classes))
    own = net.state_dict()
    wrong = [key for key in own if key not in tensors or not _fits(tensors[key], own[key])]
    wrong += [key for key in tensors if key not in own]
    if wrong:
        raise OrdnetError(f"{path}: its weights do not fit its settings ({', '.join(wrong[:5])}, {len(wrong)} in all)")
    if not sound:
        raise OrdnetError(f"{path} is damaged: its content does not fit its checksum; fetch or copy it again")
    wild = [key for key, tensor in tensors.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if wild:
        raise OrdnetError(
            f"{path}: {len(wild)} of its tensors hold values that are not finite, such as {wild[0]}; "
            f"the training that wrote it went wrong: use an earlier checkpoint"
        )
    if not usual:
        net = build_from(config, len(classes))
    net.load_state_dict({key: tensor.to(own[key].dtype) for key, tensor in tensors.items()})
    return Checkpoint(net.eval(), classes, colours, about)


def _is_usual(config: ModelConfig) -> bool:
    """Whether the network is small enough to be built before its tensors are known to be there."""
    widths = (config.neck, config.key_channels, config.value_channels)
    return not config.backbone.startswith("timm:") and max(width or 0 for width in widths) <= _USUAL


def _fits(given: Tensor, own: Tensor) -> bool:
    stored = (torch.float16, torch.bfloat16, torch.float32, torch.float64) if own.is_floating_point() else (own.dtype,)
    return given.shape == own.shape and given.dtype in stored


def _check_widths(path: Path, config: ModelConfig, classes: int, tensors: dict[str, Tensor]) -> None:
    """Settings of a file from elsewhere may ask for any amount of memory: a width that no tensor has is refused before
    anything is built."""
    there = {side for tensor in tensors.values() for side in tensor.shape}
    widths = {"model.neck": config.neck, "model.key_channels": config.key_channels}
    widths |= {"model.value_channels": config.value_channels, "the number of classes": classes}
    for name, width in widths.items():
        if width is not None and width not in there:
            raise OrdnetError(f"{path}: its weights do not fit its settings: {name} is {width}, and no tensor has that")


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor], bool]:
    """The settings, the tensors, and whether they fit the checksum, where there is one."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            settings = read_settings(metadata, path)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise OrdnetError(f"{path} is no ordnet checkpoint, or was cut short ({error})") from None
    sound = CHECKSUM not in metadata or metadata[CHECKSUM] == checksum(metadata["ordnet"], tensors)
    return settings, tensors, sound
