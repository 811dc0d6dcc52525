"""Annotations of other tools → the folder layout."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
