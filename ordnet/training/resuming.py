"""What a run's state consists of, and whether it may be continued with the settings given."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from ordnet.config import Settings
from ordnet.errors import OrdnetError
from ordnet.training.start import Averaged

if TYPE_CHECKING:
    from ordnet.training.loop import Progress

HARMLESS = {"data.workers", "training.save_minutes", "training.tensorboard"}
"""Settings that may change between two halves of a run: the steps stay the same."""


def snapshot(
    settings: Settings, net: nn.Module, optimizer: Any, averaged: Averaged | None, progress: "Progress", log_size: int
) -> dict[str, Any]:
    """Plain values and tensors only, so that it can be read back without running any code."""
    return {
        "settings": settings.model_dump(mode="json"),
        "net": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "averaged": averaged.net.state_dict() if averaged else None,
        "progress": asdict(progress),
        "log_size": log_size,
    }


def restore(state: dict[str, Any], net: nn.Module, optimizer: Any, averaged: Averaged | None) -> dict[str, Any]:
    """Put everything back; returns the progress."""
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    if averaged:
        averaged.net.load_state_dict(state["averaged"])
    progress: dict[str, Any] = state["progress"]
    return progress


def check_settings(before: dict[str, Any], now: Settings) -> None:
    """A run resumed with other settings would be neither the one nor the other."""
    asked = now.model_dump(mode="json")
    changed = [
        f"{section}.{key}: was {before.get(section, {}).get(key)!r}, now {value!r}"
        for section, values in asked.items()
        for key, value in values.items()
        if f"{section}.{key}" not in HARMLESS and before.get(section, {}).get(key) != value
    ]
    if changed:
        raise OrdnetError("the run was started with other settings:\n  " + "\n  ".join(changed))
