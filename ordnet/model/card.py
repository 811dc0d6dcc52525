"""Finding a checkpoint, and its model card: what it says about itself before it is loaded. Nothing here needs torch.

A text kept beside the checkpoint (outdoor.md beside outdoor.safetensors) is added: data, licence, limits. The scores
are always the checkpoint's own.
"""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from ordnet.config import LONGEST_SIDE
from ordnet.errors import OrdnetError, is_printable, repeated, shown
from ordnet.files import write_atomically, write_text
from ordnet.model import hub

_USUAL = "outdoor"
"""The shipped model that fits most pictures, and whose backbone stands in for ImageNet's."""
FORMAT = "ordnet-1"
"""The format's name, in the metadata of every checkpoint."""
Colour = tuple[int, int, int]
_MOST_CLASSES = 256
"""Labels are bytes: more classes could not be told apart."""
_LONGEST_NAME = 300
"""Characters of a class name; lines of classes.txt are as long."""
_README = "README.md"
"""What the hub calls a card."""
_TABLES = ("per_class_iou", "miou_by_range")
_RANGES = {
    **dict.fromkeys(("long_side", "least_long_side", "base_size", "crop"), (1, LONGEST_SIDE)),
    **dict.fromkeys(("miou", "pixel_accuracy", *_TABLES), (0, 1)),
    "images": (0, 1e12),
}
"""Numbers that a model may state about itself, each with the range in which it makes sense."""


def find(name_or_path: str | Path) -> Path:
    """A shipped model's name, hf:user/name[@revision][/file] (fetched if need be) or a path → the checkpoint file."""
    shipped = shipped_models()
    if not isinstance(name_or_path, str | Path):
        given = type(name_or_path).__name__
        raise OrdnetError(f"a model is a checkpoint's file or a shipped name ({', '.join(shipped)}), not {given!r}")
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)]
    if hub.is_address(name_or_path):
        return hub.locate(name_or_path)
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise OrdnetError(f"{path} is a folder; give a checkpoint file, such as {path / 'best.safetensors'}")
    if near := get_close_matches(str(name_or_path), shipped, 1):
        raise OrdnetError(f"no model {str(name_or_path)!r}: perhaps {near[0]}; shipped are {', '.join(shipped)}")
    names = f"shipped models are {', '.join(shipped)}" if shipped else "there are no shipped models yet"
    raise OrdnetError(f"no model {str(name_or_path)!r}: there is no such checkpoint file, and {names}")


def shipped_models() -> dict[str, Path]:
    """Name → checkpoint file of the models that come with the package; the first one is taken where none is named."""
    folder = Path(str(files("ordnet"))) / "models"
    found = sorted(folder.glob("*.safetensors"), key=lambda path: (path.stem != _USUAL, path.stem))
    return {path.stem: path for path in found}


@dataclass(frozen=True)
class Card:
    name: str
    classes: tuple[str, ...]
    settings: dict[str, Any]
    """All of the checkpoint's metadata: model, classes, colours, about."""
    about: dict[str, Any]
    size: int
    """The size of the file in bytes."""
    parameters: int
    text: str
    """The Markdown file beside the checkpoint; empty without one."""

    @property
    def what(self) -> str:
        """What the model is, in a sentence or two."""
        return str(self.about.get("about") or f"{len(self.classes)} classes: {', '.join(self.classes)}")

    @property
    def network(self) -> str:
        model = self.settings.get("model", {})
        return f"{model.get('variant', 'ordnet')} with {model.get('backbone', 'resnet50s')}"

    @property
    def scores(self) -> str:
        """The scores with their data, split and protocol; empty where the checkpoint was never evaluated."""
        named = {"mIoU": self.about.get("miou"), "pixel accuracy": self.about.get("pixel_accuracy")}
        found = [f"{name} {value:.4f}" for name, value in named.items() if value is not None]
        if not found:
            return ""
        where = [f"{self.about.get('data', 'unknown data')} {self.about.get('split', '')}".strip()]
        where += [f"{self.about['images']:,} pictures"] if self.about.get("images") is not None else []
        where += [f"protocol {self.about.get('protocol', 'unknown')}"]
        return f"{', '.join(found)} ({', '.join(where)})"

    def markdown(self) -> str:
        """The card: what it is, how large, its scores, and the text beside it. Nothing in it can harm a terminal."""
        facts = [
            f"- network: {self.network}, {self.parameters / 1e6:.1f} million parameters, {self.size / 1e6:.1f} MB",
            f"- classes ({len(self.classes)}): {', '.join(self.classes)}",
            f"- scores: {self.scores or 'never measured'}",
        ]
        if "recipe" in self.about:
            facts.append(f"- recipe: {self.about['recipe']}")
        if "licence" in self.about:
            facts.append(f"- licence note: {self.about['licence']}")
        parts = [f"# {self.name}", self.what, "\n".join(facts)]
        for title, figures in (
            ("IoU by class", self.about.get("per_class_iou")),
            ("mIoU by range of context", self.about.get("miou_by_range")),
        ):
            if figures:
                rows = [f"| {name} | {'–' if value is None else f'{value:.4f}'} |" for name, value in figures.items()]
                parts.append("\n".join([f"| {title} | |", "| --- | ---: |", *rows]))
        text = "\n\n".join([*parts, *([self.text.strip()] if self.text else [])])
        return shown(text.expandtabs(4)) + "\n"


def read_card(path: Path, name: str | None = None) -> Card:
    """The card of a checkpoint, named after its file unless `name` is given."""
    try:
        with safe_open(path, framework="np") as file:
            settings = read_settings(file.metadata(), path)
            parameters = sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise OrdnetError(f"{path} is no ordnet checkpoint, or was cut short ({error})") from None
    classes, _, about = read_facts(settings, path)
    beside = path.with_suffix(".md")
    text = beside.read_text(encoding="utf-8", errors="replace") if beside.is_file() else ""
    return Card(name or path.stem, classes, settings, about, path.stat().st_size, parameters, text)


def read_facts(settings: Mapping[str, Any], path: Path) -> tuple[tuple[str, ...], tuple[Colour, ...], dict[str, Any]]:
    """The classes, the colours and what the model says about itself, checked before any of it is used.

    A file from elsewhere may hold anything there; values that make no sense are refused with the file's name.
    """
    names: Any
    colours: Any
    names, colours, about = settings.get("classes"), settings.get("colours"), settings.get("about", {})
    for sound, what in (
        (isinstance(names, list) and all(isinstance(name, str) for name in names), "its classes are no list of names"),
        (isinstance(colours, list) and all(_is_colour(colour) for colour in colours), "its colours are no list of RGB"),
        (isinstance(about, dict), "what it says about itself is no object"),
        (isinstance(settings.get("model", {}), dict), "its model is no object"),
    ):
        if not sound:
            raise OrdnetError(f"{path}: its settings are damaged: {what}")
    if len(names) != len(colours) or not 0 < len(names) <= _MOST_CLASSES:
        raise OrdnetError(
            f"{path}: its settings are damaged: {len(names):,} classes, {len(colours):,} colours; expected as many of "
            f"the one as of the other, 1 to {_MOST_CLASSES}"
        )
    for name in names:
        if not is_printable(name) or len(name) > _LONGEST_NAME:
            raise OrdnetError(f"{path}: the class name {name!r:.80} is too long or has characters that cannot be shown")
    if twice := repeated(names):
        raise OrdnetError(
            f"{path}: two of its classes are called {twice!r:.80}: their areas and scores could not be told apart; "
            f"train it with names that differ"
        )
    for key in _TABLES:
        if not isinstance(about.get(key) or {}, dict):
            raise OrdnetError(f"{path}: its settings are damaged: {key} is {about[key]!r:.80}")
    for key, (least, most) in _RANGES.items():
        for value in (about.get(key) or {}).values() if key in _TABLES else [about.get(key)]:
            if value is not None and not (isinstance(value, int | float) and least <= value <= most):  # NaN neither
                raise OrdnetError(f"{path}: its settings are damaged: {key} is {value!r:.80}")
    return tuple(names), tuple((r, g, b) for r, g, b in colours), dict(about)


def _is_colour(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(type(part) is int and 0 <= part < 256 for part in value)


def read_settings(metadata: Mapping[str, str] | None, path: Path) -> dict[str, Any]:
    """The settings that `checkpoint.save` wrote besides the tensors."""
    if not metadata or metadata.get("format") != FORMAT:
        raise OrdnetError(
            f"{path} is a safetensors file, but no ordnet checkpoint; "
            f"a file of backbone weights goes into model.weights for training"
        )
    try:
        found = json.loads(metadata["ordnet"])
    except (KeyError, ValueError, RecursionError) as error:
        raise OrdnetError(f"{path} is no ordnet checkpoint, or was cut short ({error})") from None
    if not isinstance(found, dict):
        raise OrdnetError(f"{path}: its settings are damaged: they are no object")
    return found


def write_for_hub(path: Path, folder: Path, repo: str, licence: str | None = None) -> None:
    """Write checkpoint, settings and card as the hub wants them: model.safetensors, config.json, README.md."""
    card = read_card(path, repo.partition("/")[2])
    there = [folder / name for name in (_README, "config.json", hub.FILE) if (folder / name).exists()]
    if there and not _is_card(folder / _README):
        raise OrdnetError(f"{there[0]} is in the way: no earlier call wrote it; name a new folder")
    write_atomically(folder / hub.FILE, lambda temporary: shutil.copyfile(path, temporary))
    write_text(folder / "config.json", json.dumps(card.settings, indent=1, ensure_ascii=False) + "\n")
    use = f'```python\nimport ordnet\n\nparse = ordnet.load("{hub.PREFIX}{repo}")("photo.jpg")\nparse.overlay()\n```\n'
    write_text(
        folder / _README, f"---\n{_front_matter(card, licence).strip()}\n---\n\n{card.markdown()}\n## Use\n\n{use}"
    )


def _is_card(file: Path) -> bool:
    """Whether an earlier call wrote it."""
    words = file.read_text(encoding="utf-8", errors="replace")[:10_000] if file.is_file() else ""
    return words.startswith("---\n") and "\nlibrary_name: ordnet\n" in words


def _front_matter(card: Card, licence: str | None) -> str:
    """The metadata by which the hub sorts models, as YAML. The licence is the one that was given, never a guess."""
    from huggingface_hub import EvalResult, ModelCardData  # comes with accelerate

    about = {key: str(card.about.get(key, "unknown")) for key in ("data", "split", "protocol")}
    results = [
        EvalResult(
            task_type="image-segmentation",
            dataset_type=about["data"],
            dataset_name=about["data"],
            dataset_split=about["split"],
            metric_type=kind,
            metric_value=card.about[key],
            metric_name=f"{kind}, protocol {about['protocol']}",
        )
        for kind, key in (("mean_iou", "miou"), ("accuracy", "pixel_accuracy"))
        if card.about.get(key) is not None
    ]
    return ModelCardData(
        library_name="ordnet",
        pipeline_tag="image-segmentation",
        tags=["image-segmentation", "semantic-segmentation", "scene-parsing"],
        license=licence,
        metrics=[result.metric_type for result in results] or None,
        model_name=card.name if results else None,
        eval_results=results or None,
    ).to_yaml()
