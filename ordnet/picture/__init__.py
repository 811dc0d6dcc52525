"""6: numbers → something to look at."""

from ordnet import submodules

__getattr__ = submodules(__name__)
