"""1: files → image and label."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
