"""4: image → label map."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
