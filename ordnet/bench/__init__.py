"""Contestants side by side in one run: time, memory, operations."""

from ordnet import submodules

__getattr__ = submodules(__name__)
