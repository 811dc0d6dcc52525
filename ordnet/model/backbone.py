"""Dilated backbones: picture → features at 1/8 or 1/16 of its size. Key names are torchvision's, so its weights load.

Every backbone returns (third-stage features, last features); `channels` gives the width of both.
Dilation replaces the strides of the last stages: the first block of a stage keeps its predecessor's dilation, the
rest have the stage's own (2 and 4 at output stride 8; 2 at output stride 16), as in EncNet.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.backbones.timm import PREFIX as TIMM
from ordnet.model.backbones.timm import TimmBackbone


def conv_norm(
    inputs: int, outputs: int, size: int, stride: int = 1, dilation: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution without bias that keeps the map's size (but for the stride), and its batch norm."""
    padding = dilation * (size // 2)
    return [
        nn.Conv2d(inputs, outputs, size, stride, padding, dilation, groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]


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


class ResNet(nn.Module):
    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        depths: Sequence[int],
        deep_stem: bool = False,
        output_stride: int = 8,
        stride_on: str = "conv2",
    ) -> None:
        super().__init__()
        self.output_stride = output_stride
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
        stages = []
        for stage, (planes, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), start=1):
            stride, before = (1 if stage == 1 else 2), dilation
            if reached * stride > output_stride:
                stride, dilation = 1, dilation * 2
            reached *= stride
            blocks = [block(width, planes, stride, before, stride_on)]
            width = planes * block.expansion
            blocks += [block(width, planes, 1, dilation, stride_on) for _ in range(depth - 1)]
            stages.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.channels = (256 * block.expansion, 512 * block.expansion)
        initialise(self)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))  # 1/4
        x = self.layer2(self.layer1(x))  # 1/8
        third = self.layer3(x)
        return third, self.layer4(third)


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


class MobileNetV2(nn.Module):
    """Up to its last residual block (320 channels); the 1280-channel layer after it serves classification only.

    `stages` cuts it short: what fewer stages cannot see, only the block can tell them.
    """

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    """Expansion, channels, blocks, stride."""
    SHORT = 3
    """Stages of the short one, which ends at 1/8 with 32 channels."""

    def __init__(self, output_stride: int = 8, stages: int = len(STAGES)) -> None:
        super().__init__()
        self.output_stride = output_stride
        features: list[nn.Module] = [nn.Sequential(*conv_norm(3, 32, 3, stride=2), nn.ReLU6(inplace=True))]
        width, dilation, reached = 32, 1, 2
        for expand, channels, depth, stride in self.STAGES[:stages]:
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
        self.features = nn.Sequential(*features)
        # the features for an auxiliary head: of the 96-channel stage, or those before the short one's last stage
        third = stages - 2 if stages == len(self.STAGES) else stages - 1
        self.third = 1 + sum(depth for _, _, depth, _ in self.STAGES[:third])
        self.channels = self.STAGES[third - 1][1], self.STAGES[stages - 1][1]
        initialise(self)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        third = self.features[: self.third](image)
        return third, self.features[self.third :](third)


class Tiny(nn.Module):
    """A small dilated residual network that sees 23 px (31 with the FCN head), for generated scenes and tests.

    Its field of view is the point: what it cannot see, only the block can tell it.
    """

    channels = (64, 64)
    output_stride = 4

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

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        third = self.stem(image)
        return third, self.relu(third + self.residual(third))


def initialise(module: nn.Module) -> None:
    """He's initialisation for convolutions in front of ReLUs; batch norms start as the identity."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


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
NAMES = (*RESNETS, "mobilenet_v2", "mobilenet_v2_short", "tiny")

Backbone = ResNet | MobileNetV2 | Tiny | TimmBackbone


def make_backbone(name: str, output_stride: int | None = None, stride_on: str = "conv2") -> Backbone:
    if name.startswith(TIMM):
        return TimmBackbone(name.removeprefix(TIMM), output_stride)
    if name not in NAMES:
        raise OrdnetError(f"there is no backbone {name!r}; there are {', '.join(NAMES)}, and timm:NAME for timm's")
    if name == "tiny":
        if output_stride not in (None, Tiny.output_stride):
            raise OrdnetError(f"the tiny backbone has output stride {Tiny.output_stride}, not {output_stride}")
        return Tiny()
    if output_stride not in (None, 8, 16):
        raise OrdnetError(f"{name} has output stride 8 or 16, not {output_stride}")
    if name == "mobilenet_v2":
        return MobileNetV2(output_stride or 8)
    if name == "mobilenet_v2_short":
        if output_stride not in (None, 8):
            raise OrdnetError(f"the short MobileNetV2 ends at output stride 8, not {output_stride}")
        return MobileNetV2(8, MobileNetV2.SHORT)
    block, depths, deep_stem = RESNETS[name]
    return ResNet(block, depths, deep_stem, output_stride or 8, stride_on)
