"""The omni-range block inside a network that knows nothing of ordnet: one line in, one line in forward().

The task needs long range: a marker in one corner tells which of two classes all grey pixels have. A plain network sees
a few pixels around each position and can only guess; with the block it knows.

    python examples/plug_into_your_net.py --steps 150
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ordnet import OmniRange


class YourNet(nn.Module):
    def __init__(self, block: nn.Module, classes: int = 2, width: int = 32) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        )  # fmt: skip
        self.context = block  # ← the block: (B, width, H, W) in, the same shape out
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        features = self.context(self.encoder(image))
        return F.interpolate(self.classifier(features), size=image.shape[2:], mode="bilinear")


def batch(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Noisy grey pictures (B, 3, size, size) with a red or a green corner, and their labels (B, size, size)."""
    colour = torch.randint(0, 2, (count,), generator=generator)
    image = 0.3 * torch.randn(count, 3, size, size, generator=generator)
    image[torch.arange(count), colour, : size // 4, : size // 4] += 3
    return image, colour[:, None, None].expand(count, size, size)


def train(net: nn.Module, steps: int, size: int) -> float:
    """The share of pixels that are right, on pictures the network has not seen."""
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(steps):
        image, label = batch(8, size, generator)
        loss = F.cross_entropy(net(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    image, label = batch(64, size, generator)
    with torch.no_grad():
        return float((net.eval()(image).argmax(dim=1) == label).float().mean())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--size", type=int, default=48)
    given = arguments.parse_args()
    for name, block in (("without the block", nn.Identity()), ("with the block", OmniRange(32))):
        torch.manual_seed(0)
        net = YourNet(block)
        print(f"{name}: {train(net, given.steps, given.size):.1%} of the pixels are right")


if __name__ == "__main__":
    main()
