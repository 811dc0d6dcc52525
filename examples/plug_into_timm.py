"""Features of any timm model, and the omni-range block on top of them.

`ordnet.build(…, backbone="timm:NAME")` does this and more: any size of pictures, and a result that can be trained,
saved and loaded like any other. Here it is done by hand, to see that nothing else is needed.

    python examples/plug_into_timm.py --model resnet18 --size 128
"""

import argparse
import sys

import torch
from torch import Tensor, nn

import ordnet


class TimmParser(nn.Module):
    def __init__(self, features: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.context = ordnet.OmniRange(channels)
        self.classifier = nn.Conv2d(channels, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        last = self.features(image)[-1]
        scores = self.classifier(self.context(last))
        return nn.functional.interpolate(scores, size=image.shape[2:], mode="bilinear")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="resnet18")
    arguments.add_argument("--size", type=int, default=128)
    given = arguments.parse_args()
    try:
        import timm
    except Exception as error:  # torchvision, which timm imports, fails in its own ways
        sys.exit(f"timm cannot be imported here ({error}); pip install 'ordnet[timm]'")

    features = timm.create_model(given.model, pretrained=False, features_only=True, output_stride=16)
    by_hand = TimmParser(features, features.feature_info.channels()[-1], classes=5).eval()
    built = ordnet.build("ordnet", classes=5, backbone=f"timm:{given.model}", output_stride=16).eval()
    image = torch.randn(1, 3, given.size, given.size)
    with torch.no_grad():
        for name, net in (("by hand", by_hand), (f"ordnet.build, timm:{given.model}", built)):
            parameters = sum(p.numel() for p in net.parameters())
            print(f"{name}: {tuple(image.shape)} → {tuple(net(image).shape)}, {parameters / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
