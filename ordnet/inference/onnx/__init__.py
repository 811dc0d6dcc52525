"""Networks as ONNX files: written, checked, and run."""

from ordnet import submodules

__getattr__ = submodules(__name__)
