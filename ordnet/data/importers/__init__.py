"""Annotations made with other tools, converted to the layout of `folder:`."""

from ordnet import submodules

__getattr__ = submodules(__name__)
