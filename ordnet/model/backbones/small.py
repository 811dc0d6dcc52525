"""Small backbones: MobileNetV2, dilated, and a tiny one for generated scenes and tests.

MobileNetV2's key names are torchvision's, so its weights load.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ordnet.model.parts import Backbone, check_output_stride, conv_norm, initialise


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, dilation: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(nn.Sequential(*conv_norm(inputs, hidden, 1), nn.ReLU6(inplace=True)))
        depthwise = conv_norm(hidden, hidden, 3, stride, dilation, groups=hidden)
        layers.append(nn.Sequential(*depthwise, nn.ReLU6(inplace=True)))
        self.conv = nn.Sequential(*layers, *conv_norm(hidden, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


class MobileNetV2(Backbone):
    """Up to its last residual block (320 channels), as dilated networks take it.

    `stages` cuts it short: fewer stages see less, and the block has to provide the rest. `top` adds the layer of 1280
    channels that the classifier reads. It is pretrained on ImageNet as well; without it, a new neck would have to learn
    the same from few pictures. At output stride 32, where the map is small, it costs little.
    """

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    """Expansion, channels, blocks, stride."""
    LEVELS = (1, 2, 4, 6)
    """The stages whose maps make the pyramid."""
    SHORT = 3
    """Stages of the short form, which ends at 1/8 with 32 channels."""
    TOP = 1280

    def __init__(self, output_stride: int = 8, stages: int = len(STAGES), top: bool = False) -> None:
        super().__init__()
        check_output_stride(output_stride)
        features: list[nn.Module] = [nn.Sequential(*conv_norm(3, 32, 3, stride=2), nn.ReLU6(inplace=True))]
        width, dilation, reached = 32, 1, 2
        ends: dict[int, tuple[int, int, int]] = {}
        for number, (expand, channels, depth, stride) in enumerate(self.STAGES[:stages]):
            before = dilation
            if reached * stride > output_stride:
                stride, dilation = 1, dilation * 2
            reached *= stride
            for i in range(depth):
                first = i == 0
                features.append(
                    InvertedResidual(width, channels, stride if first else 1, before if first else dilation, expand)
                )
                width = channels
            ends[number] = (len(features), reached, channels)
        if top:
            features.append(nn.Sequential(*conv_norm(width, self.TOP, 1), nn.ReLU6(inplace=True)))
            ends[number] = (len(features), reached, self.TOP)
        self.features = nn.Sequential(*features)
        # the last stage before each halving, and the last of all: 24, 32, 96 and 320 channels, or the top's 1280
        levels = [ends[number] for number in self.LEVELS if number < stages]
        self._ends, self.strides, self.channels = (tuple(column) for column in zip(*levels, strict=True))
        initialise(self)

    def stages(self) -> Sequence[Callable[[Tensor], Tensor]]:
        starts = (0, *self._ends[:-1])
        return [self.features[start:end] for start, end in zip(starts, self._ends, strict=True)]


class Tiny(Backbone):
    """A small dilated residual network that sees 23 px (31 with the FCN head), for generated scenes and tests.

    Its field of view is small on purpose: everything beyond it has to come from the block.
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
