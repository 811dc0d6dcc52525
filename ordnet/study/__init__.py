"""Studies: many runs, one table."""

from ordnet import submodules

__getattr__ = submodules(__name__)
