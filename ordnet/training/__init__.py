"""Training: scores → loss → weights."""

from ordnet import submodules

__getattr__ = submodules(__name__)
