"""The page that a run leaves behind: report.html."""

from ordnet import submodules

__getattr__ = submodules(__name__)
