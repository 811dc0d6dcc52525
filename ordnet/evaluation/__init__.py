"""5: label maps → numbers."""

from ordnet import submodules

__getattr__ = submodules(__name__)
