"""timm on machines where torchvision was built for another torch than the one that is installed."""

import importlib

import pytest
import torch

DEFINE = """
import torch
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""Defines the two operators whose absence keeps such a torchvision, and timm with it, from being imported."""


def mend_torchvision():
    """Make it possible to import; libraries that find it installed, such as torchmetrics, import it too."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        exec(DEFINE, {"torch": torch})
    except ImportError:
        pass  # not installed: nobody will import it


def import_timm():
    """timm, or a skipped test module with the reason. Nothing that uses boxes will work, which no backbone does."""
    mend_torchvision()
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        pytest.skip(f"the extra timm is not installed ({error})", allow_module_level=True)
    except Exception as error:
        pytest.skip(f"timm cannot be imported here ({error})", allow_module_level=True)
