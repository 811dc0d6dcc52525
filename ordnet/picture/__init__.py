"""6: numbers → something to look at."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
