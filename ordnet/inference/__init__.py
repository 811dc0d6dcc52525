"""Parsing: picture → label map."""

from ordnet import submodules

__getattr__ = submodules(__name__)
