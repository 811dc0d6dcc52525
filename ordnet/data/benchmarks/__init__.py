"""The public benchmarks, read from the layouts in which their downloads unpack."""

from ordnet import submodules

__getattr__ = submodules(__name__)
