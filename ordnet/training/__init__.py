"""3: scores → loss → weights."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
