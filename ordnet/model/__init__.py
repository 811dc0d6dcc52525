"""Networks: picture → class scores."""

from ordnet import submodules

__getattr__ = submodules(__name__)
