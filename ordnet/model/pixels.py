"""The one way in for pixels: RGB as it stands in picture files → what a network takes."""

import numpy as np
import torch
from torch import Tensor, nn

# of ImageNet, which public backbones were trained with
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """RGB 0..255 (B, 3, H, W) → the network's input, as a module for graphs that begin with a picture."""

    mean: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1) * 255, persistent=False)
        self.register_buffer("scale", torch.tensor(STD).view(3, 1, 1) * 255, persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        return (image - self.mean) / self.scale


def normalise(images: Tensor) -> Tensor:
    """uint8 RGB (B, 3, H, W) → what the network takes, float32 of the same shape."""
    mean = torch.tensor(MEAN, device=images.device).view(3, 1, 1) * 255
    scale = torch.tensor(STD, device=images.device).view(3, 1, 1) * 255
    return images.float().sub_(mean).div_(scale)


def to_input(pixels: np.ndarray, net: nn.Module) -> Tensor:
    """RGB (h, w, 3) uint8 → what the network takes (1, 3, h, w), where it is and as precise as it is."""
    parameter = next(net.parameters())
    image = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))[None]
    return normalise(image.to(parameter.device)).to(parameter.dtype)


def black(like: Tensor, height: int, width: int) -> Tensor:
    """A black picture (1, 3, height, width), normalised."""
    values = [-mean / std for mean, std in zip(MEAN, STD, strict=True)]
    return like.new_tensor(values).view(1, 3, 1, 1).repeat(1, 1, height, width)


def padded(pixels: np.ndarray, side: int) -> np.ndarray:
    """A picture (H, W, 3) with at least `side` pixels each way, continued with its last row and column; the same array
    where it has them already."""
    height, width = pixels.shape[:2]
    missing = [(0, max(0, side - height)), (0, max(0, side - width)), (0, 0)]
    return np.pad(pixels, missing, mode="edge") if any(after for _, after in missing) else pixels
