"""The middle-range branch: self-attention inside each of p x p patches (the paper's Fig. 3)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.attention import SelfAttention

Patch = tuple[slice, slice]
"""Rows and columns of the feature map."""


def patch_grid(height: int, width: int, patches: int) -> list[Patch]:
    """p x p patches ordered by rows, as even as possible: every position in exactly one, none padded."""
    if height < patches or width < patches:
        raise OrdnetError(
            f"a feature map of {height}x{width} positions cannot be cut into {patches}x{patches} patches; "
            f"use a larger picture, a smaller output stride or fewer patches"
        )
    rows = [slice(i * height // patches, (i + 1) * height // patches) for i in range(patches)]
    columns = [slice(i * width // patches, (i + 1) * width // patches) for i in range(patches)]
    return [(row, column) for row in rows for column in columns]


def join(pieces: Sequence[Tensor], patches: int) -> Tensor:
    """Put the patches (B, C, h, w), ordered by rows, back into one map (B, C, H, W)."""
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([torch.cat(list(pieces[i : i + patches]), 3) for i in range(0, len(pieces), patches)], 2)


class MiddleRange(nn.Module):
    def __init__(self, attention: SelfAttention, patches: int) -> None:
        super().__init__()
        self.attention = attention
        self.patches = patches

    def forward(self, x: Tensor, literal: bool) -> Tensor:
        """Features (B, C, H, W) → Z_m, patch by patch, with the map built (`literal`) or the fused softmax kernel."""
        attend: Callable[[Tensor], Tensor] = (
            (lambda patch: self.attention.literal(patch)[0]) if literal else self.attention.softmax_streamed
        )
        grid = patch_grid(x.shape[2], x.shape[3], self.patches)
        return join([attend(x[:, :, rows, columns]) for rows, columns in grid], self.patches)
