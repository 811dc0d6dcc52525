"""Benchmarks: time, memory and operations, contestants side by side in one run."""

from ordnet import submodules

__getattr__ = submodules(__name__)
