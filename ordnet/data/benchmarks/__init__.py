"""The benchmarks, read as their downloads unpack."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
