"""5: label maps → numbers."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
