"""How the branches become one: the paper's four fusing methods."""

import torch
from torch import Tensor, nn


class Concat(nn.Conv2d):
    """Concatenation and a 1x1 convolution back to C channels (the paper's choice)."""

    def __init__(self, branch_channels: int, branches: int, channels: int) -> None:
        super().__init__(branch_channels * branches, channels, 1)

    def forward(self, *z: Tensor) -> Tensor:  # one map per branch
        return super().forward(torch.cat(z, dim=1))


class Sum(nn.Module):
    """Element-wise summation; with a single branch, that branch."""

    def forward(self, *z: Tensor) -> Tensor:
        return torch.stack(z).sum(dim=0) if len(z) > 1 else z[0]


class AttentionToScale(nn.Module):
    """One weight map per branch, from the concatenated branches; softmax over the branches at every position."""

    def __init__(self, channels: int, branches: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.Conv2d(branches * channels, max(channels // 4, 1), 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(max(channels // 4, 1), branches, 1),
        )

    def forward(self, *z: Tensor) -> Tensor:
        weights = self.weigh(torch.cat(z, dim=1)).softmax(dim=1)  # (B, branches, H, W)
        return sum((weights[:, i : i + 1] * branch for i, branch in enumerate(z)), torch.zeros_like(z[0]))


class ChannelSelection(nn.Module):
    """One weight vector per branch, from the global mean of their sum; softmax over the branches in every channel."""

    def __init__(self, channels: int, branches: int) -> None:
        super().__init__()
        hidden = max(channels // 16, 32)
        self.squeeze = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU())
        self.select = nn.ModuleList(nn.Linear(hidden, channels) for _ in range(branches))

    def forward(self, *z: Tensor) -> Tensor:
        return self.weighed(self.weights(torch.stack([branch.mean(dim=(2, 3)) for branch in z]).sum(dim=0)), *z)

    def weights(self, mean: Tensor) -> Tensor:
        """The global mean of the branches' sum (B, C) → one weight per branch and channel (branches, B, C)."""
        hidden = self.squeeze(mean)
        return torch.stack([select(hidden) for select in self.select]).softmax(dim=0)

    def weighed(self, weights: Tensor, *z: Tensor) -> Tensor:
        return sum((weights[i, :, :, None, None] * branch for i, branch in enumerate(z)), torch.zeros_like(z[0]))
