"""A parser behind HTTP: a page to look at and an API, with a bound on everything that comes in."""

from ordnet import submodules

__getattr__ = submodules(__name__)
