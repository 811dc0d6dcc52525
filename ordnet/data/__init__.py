"""Data sets: files on disk → pictures and labels."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
