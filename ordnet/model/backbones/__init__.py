"""Backbones: picture → a pyramid of feature maps, from fine to coarse."""

from ordnet import submodules

__getattr__ = submodules(__name__)
