"""The public benchmarks, read from the layouts in which their downloads unpack."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
