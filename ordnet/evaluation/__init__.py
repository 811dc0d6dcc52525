"""Evaluation: label maps → scores."""

from ordnet import submodules

__getattr__ = submodules(__name__)
