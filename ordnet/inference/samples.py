"""The picture that comes with the package, to try a model on."""

from importlib.resources import files
from pathlib import Path

CREDIT = "Photo by danielbuechele, CC BY 2.0"
"""The licence asks that the author be named where the picture is shown."""


def sample_picture() -> Path:
    """An outdoor photograph, 640 x 427 JPEG (ordnet/samples/README.md has its origin and licence)."""
    return Path(str(files("ordnet"))) / "samples" / "china.jpg"
