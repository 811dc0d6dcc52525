"""The FCN head: features → class scores at the features' size."""

from torch import nn

from ordnet.model.parts import conv_norm


class FCNHead(nn.Sequential):
    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        inner = max(channels // 4, 1)
        super().__init__(
            *conv_norm(channels, inner, 3),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Conv2d(inner, classes, 1),
        )


class Classifier(nn.Sequential):
    """For blocks that end in their own 3x3 convolution or fusion: dropout and the last 1x1."""

    def __init__(self, channels: int, classes: int, dropout: float) -> None:
        super().__init__(nn.Dropout(dropout), nn.Conv2d(channels, classes, 1))
