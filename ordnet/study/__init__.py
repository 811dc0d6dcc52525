"""Many runs, one table."""

from ordnet.lazy import submodules

__getattr__ = submodules(__name__)
