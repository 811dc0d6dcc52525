"""Scene parsing with omni-range context, at linear cost.

The public names are the ones listed here. Each is imported on first use, so that `import ordnet` stays instant.
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ordnet.evaluation.evaluate import evaluate as evaluate
    from ordnet.inference.parser import Parser as Parser
    from ordnet.inference.parser import load as load
    from ordnet.model.build import backbones as backbones
    from ordnet.model.build import build as build
    from ordnet.model.build import variants as variants
    from ordnet.model.omni_range import OmniRange as OmniRange
    from ordnet.training.loop import train as train

_HOME = {
    "OmniRange": "ordnet.model.omni_range",
    "Parser": "ordnet.inference.parser",
    "backbones": "ordnet.model.build",
    "build": "ordnet.model.build",
    "evaluate": "ordnet.evaluation.evaluate",
    "load": "ordnet.inference.parser",
    "train": "ordnet.training.loop",
    "variants": "ordnet.model.build",
}
# `ordnet.training.lovasz.…` works without further imports
_PARTS = ("bench", "data", "evaluation", "inference", "model", "picture", "serve", "study", "training")

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _PARTS:
        return import_module(f"ordnet.{name}")
    raise AttributeError(f"module 'ordnet' has no attribute {name!r}; it offers {', '.join(sorted(_HOME))}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def submodules(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package whose submodules are imported when they are first named."""

    def load(name: str) -> ModuleType:
        if name.startswith("_") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return load
