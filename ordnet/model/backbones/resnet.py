"""Dilated ResNets. Key names are torchvision's, so its weights load.

Dilation replaces the strides of the last stages: the first block of a stage keeps its predecessor's dilation, the rest
have the stage's own (2 and 4 at output stride 8; 2 at output stride 16), as in EncNet.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from ordnet.model.parts import Backbone, check_output_stride, conv_norm, initialise


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, stride_on: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv_norm(inputs, width, 3, stride, dilation)
        self.conv2, self.bn2 = conv_norm(width, width, 3, 1, dilation)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, dilation: int, stride_on: str) -> None:
        super().__init__()
        # "caffe style" weights stride on the first 1x1 convolution, torchvision's and EncNet's on the 3x3
        first, second = (stride, 1) if stride_on == "conv1" else (1, stride)
        self.conv1, self.bn1 = conv_norm(inputs, width, 1, first)
        self.conv2, self.bn2 = conv_norm(width, width, 3, second, dilation)
        self.conv3, self.bn3 = conv_norm(width, width * self.expansion, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(inputs, width * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(*conv_norm(inputs, outputs, 1, stride))


class ResNet(Backbone):
    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        deep_stem: bool = False,
        output_stride: int = 8,
        stride_on: str = "conv2",
    ) -> None:
        super().__init__()
        check_output_stride(output_stride)
        stem = 128 if deep_stem else 64
        if deep_stem:
            self.conv1: nn.Module = nn.Sequential(
                *conv_norm(3, 64, 3, stride=2), nn.ReLU(inplace=True),
                *conv_norm(64, 64, 3), nn.ReLU(inplace=True),
                conv_norm(64, 128, 3)[0],
            )  # fmt: skip
        else:
            self.conv1 = conv_norm(3, 64, 7, stride=2)[0]
        self.bn1 = nn.BatchNorm2d(stem)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)

        width, dilation, reached = stem, 1, 4
        stages, strides = [], []
        for stage, (planes, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), start=1):
            stride, before = (1 if stage == 1 else 2), dilation
            if reached * stride > output_stride:
                stride, dilation = 1, dilation * 2
            reached *= stride
            strides.append(reached)
            blocks = [block(width, planes, stride, before, stride_on)]
            width = planes * block.expansion
            blocks += [block(width, planes, 1, dilation, stride_on) for _ in range(depth - 1)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.strides = tuple(strides)
        self.channels = tuple(planes * block.expansion for planes in (64, 128, 256, 512))
        initialise(self)

    def stages(self) -> Sequence[Callable[[Tensor], Tensor]]:
        # the stem and the first stage, to 1/4 of the picture's size
        first = nn.Sequential(self.conv1, self.bn1, self.relu, self.maxpool, self.layer1)
        return first, self.layer2, self.layer3, self.layer4


RESNETS: dict[str, tuple[type[BasicBlock | Bottleneck], tuple[int, ...], bool]] = {
    "resnet18": (BasicBlock, (2, 2, 2, 2), False),
    "resnet34": (BasicBlock, (3, 4, 6, 3), False),
    "resnet50": (Bottleneck, (3, 4, 6, 3), False),
    "resnet101": (Bottleneck, (3, 4, 23, 3), False),
    "resnet152": (Bottleneck, (3, 8, 36, 3), False),
    # with EncNet's stem of three 3x3 convolutions (64, 64, 128), the paper's choice
    "resnet50s": (Bottleneck, (3, 4, 6, 3), True),
    "resnet101s": (Bottleneck, (3, 4, 23, 3), True),
    "resnet152s": (Bottleneck, (3, 8, 36, 3), True),
}
