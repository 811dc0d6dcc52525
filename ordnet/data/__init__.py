"""Data sets: files on disk → pictures and labels."""

from ordnet import submodules

__getattr__ = submodules(__name__)
