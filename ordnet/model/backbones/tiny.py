"""The tiny backbone, for generated scenes and tests."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ordnet.model.parts import Backbone, conv_norm, initialise


class Tiny(Backbone):
    """A small dilated residual network that sees 23 px (31 with the FCN head), for generated scenes and tests.

    Its field of view is the point: what it cannot see, only the block can tell it.
    """

    strides = (4, 4)
    channels = (64, 64)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *conv_norm(3, 32, 3, stride=2), nn.ReLU(inplace=True),  # sees 3 px
            *conv_norm(32, 64, 3, stride=2), nn.ReLU(inplace=True),  # sees 7 px, 1/4
        )  # fmt: skip
        self.residual = nn.Sequential(
            *conv_norm(64, 64, 1), nn.ReLU(inplace=True),
            *conv_norm(64, 64, 3, dilation=2), nn.ReLU(inplace=True),  # sees 7 + 2 · 2 · 4 = 23 px
            *conv_norm(64, 64, 1),
        )  # fmt: skip
        self.relu = nn.ReLU(inplace=True)
        initialise(self)

    def stages(self) -> Sequence[Callable[[Tensor], Tensor]]:
        return self.stem, self._second

    def _second(self, x: Tensor) -> Tensor:
        return self.relu(x + self.residual(x))
