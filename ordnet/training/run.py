"""`ordnet.train`: training by the name of a recipe, with a data set and a few changes to the settings."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ordnet.config import Settings, override
from ordnet.errors import OrdnetError
from ordnet.recipes import settings_of
from ordnet.training.loop import Run, train_with
from ordnet.training.start import widths_of


def train(
    recipe: str = "folder-default",
    data: str | None = None,
    out: str | Path | None = None,
    changes: Sequence[str] | Mapping[str, Any] = (),
    *,
    resume: bool = False,
    force: bool = False,
    init: str | Path | None = None,
    skip_broken: bool = False,
    device: str | None = None,
    force_data: bool = False,
) -> Run:
    """Train a parser; what is left are the run folder's files and the last evaluation's figures.

    `recipe` is a name from `ordnet recipes` or a settings file; `data` what stands after --data; `changes` either
    {"training.epochs": 5} or ["training.epochs=5"]. The run folder is runs/RECIPE unless `out` says otherwise.
    `device` is cpu, cuda, cuda:1, mps; without it a GPU where there is one.
    `force_data` resumes a run although its data has changed.
    """
    settings = settings_of(recipe)
    given = {key: value for key, value in {"name": data, "skip_broken": skip_broken or None}.items() if value}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=given)})
    words = [f"{key}={_word(value)}" for key, value in changes.items()] if isinstance(changes, Mapping) else changes
    settings = override(settings, list(words))
    if settings.data.name == "folder:PATH":  # as the recipe has it
        raise OrdnetError(f"{recipe} needs your pictures: --data folder:PATH, with the folder they are in as PATH")
    if init:
        settings = _fitted(settings, Path(init), words)
    return train_with(
        settings,
        Path(out) if out else Path("runs") / Path(recipe).stem,
        resume=resume,
        force=force,
        init=Path(init) if init else None,
        device=device,
        force_data=force_data,
    )


def _fitted(settings: Settings, init: Path, words: Iterable[str]) -> Settings:
    """The settings with the widths of the checkpoint to start from, where --set does not say otherwise."""
    fixed = {word.partition("=")[0].strip().removeprefix("model.") for word in words}
    widths = widths_of(init, settings.model, fixed)
    if widths and int(os.environ.get("RANK", "0")) == 0:
        told = ", ".join(f"model.{name}={value}" for name, value in widths.items())
        print(f"as in {init}: {told}", file=sys.stderr)
    return settings.model_copy(update={"model": settings.model.model_copy(update=widths)})


def _word(value: Any) -> str:
    """The value as YAML writes it, on one line."""
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
