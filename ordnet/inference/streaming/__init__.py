"""Pictures of any size, in bounded memory."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
