"""Drawing: labels and figures → pictures, charts and pages."""

from ordnet import submodules

__getattr__ = submodules(__name__)
