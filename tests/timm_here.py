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


def import_timm():
    """timm, or a skipped test module with the reason. Nothing that uses boxes will work, which no backbone does."""
    try:
        return importlib.import_module("timm")
    except RuntimeError:
        exec(DEFINE, {"torch": torch})
    except ImportError as error:
        pytest.skip(f"the extra timm is not installed ({error})", allow_module_level=True)
    try:
        return importlib.import_module("timm")
    except Exception as error:
        pytest.skip(f"timm cannot be imported here ({error})", allow_module_level=True)
