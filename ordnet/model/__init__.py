"""2: image → class scores."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
