"""Annotations made with other tools, converted to the layout of `folder:`."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
