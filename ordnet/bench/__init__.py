"""Contestants side by side in one run: time, memory, operations."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
