"""The omni-range block as it is exported: same weights, same result, and a graph that fits a map of any size.

Slices and loops elsewhere have to be one graph here, whatever H, W and the number of patches. So the patches are laid
side by side: `Patches` picks the positions of each by computed indices, and fills shorter ones up with repeated
positions that do not count. The small matrices of all patches are then one product.

Shapes: B batch · C channels · D query/key channels · E value channels · N positions of the map, as rows ·
P patches · n positions of the longest patch.
"""

import torch
from torch import Tensor, nn

from ordnet.model.attention import SelfAttention, Sums, bias_of, matrix
from ordnet.model.branches import Concat, MiddleRange
from ordnet.model.factored import Fold
from ordnet.model.omni_range import OmniRange


class Axis:
    """One side of the map cut into patches, as `patch_grid` cuts it."""

    def __init__(self, size: int, patches: int) -> None:
        edges = torch.arange(patches + 1) * size // patches
        start, end = edges[:-1, None], edges[1:, None]
        place = torch.arange((size + patches - 1) // patches)
        self.index = torch.minimum(start + place, end - 1)  # (patches, longest)
        self.counts = start + place < end  # False where a position is repeated
        self.longest = place.shape[0]
        position = torch.arange(size)
        self.patch = (position[:, None] >= edges[1:-1]).sum(dim=1)  # (size,)
        self.place = position - edges.index_select(0, self.patch)


class Patches:
    """Positions (B, N, C) of a map of height x width ⇄ patches side by side (B, P, n, C)."""

    def __init__(self, height: int, width: int, patches: int) -> None:
        rows, columns = Axis(height, patches), Axis(width, patches)
        self.shape = (patches * patches, rows.longest * columns.longest)
        self._index = (rows.index[:, None, :, None] * width + columns.index[:, None, :]).flatten()
        counts = rows.counts[:, None, :, None] & columns.counts[:, None, :]
        self.counts = counts.reshape(*self.shape, 1)  # (P, n, 1): False where a position is repeated
        patch = rows.patch[:, None] * patches + columns.patch
        self._back = ((patch * rows.longest + rows.place[:, None]) * columns.longest + columns.place).flatten()

    def cut(self, x: Tensor) -> Tensor:
        return x.index_select(1, self._index).unflatten(1, self.shape)

    def join(self, x: Tensor) -> Tensor:
        return x.flatten(1, 2).index_select(1, self._back)


class Factored(nn.Module):
    """One branch of a block that attends with dot products, without its map; constants are multiplied out."""

    value: Tensor
    value_bias: Tensor
    fold: Tensor
    bias: Tensor

    def __init__(self, attention: SelfAttention, fold: Fold) -> None:
        super().__init__()
        self.register_buffer("value", matrix(attention.value).T.contiguous())  # (C, E)
        self.register_buffer("value_bias", bias_of(attention.value))
        self.register_buffer("fold", fold.weight.T.contiguous())  # (E, C)
        self.register_buffer("bias", fold.bias)

    def forward(self, x: Tensor, keys: Tensor, queries: Tensor, count: Tensor | int) -> Tensor:
        """Positions (…, n, C), their keys and queries (…, n, D) → the branch's share of the output (…, n, C)."""
        outer = keys.transpose(-1, -2) @ x  # (…, D, C)
        small = outer @ self.value + keys.sum(dim=-2).unsqueeze(-1) * self.value_bias  # (…, D, E)
        return queries @ (small / count @ self.fold) + self.bias


class DotBlock(nn.Module):
    """Features (B, C, H, W) → same shape, X added inside: the factored form."""

    def __init__(self, block: OmniRange) -> None:
        super().__init__()
        self.block = block
        attentions = block.factored.attentions
        # all queries and keys in one convolution, which runtimes execute best
        layers = [layer for attention in attentions for layer in (attention.query, attention.key)]
        self.project = nn.Conv2d(block.channels, block.key_channels * len(layers), 1)
        self.project.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]))
        self.project.bias = nn.Parameter(torch.cat([bias_of(layer) for layer in layers]))
        self.branches = nn.ModuleList(
            Factored(a, fold) for a, fold in zip(attentions, block.factored.folds(), strict=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = _as_rows(x)
        projected = _as_rows(self.project(x)).split(self.block.key_channels, dim=2)
        outputs = []
        for i, branch in enumerate(self.branches):
            queries, keys = projected[2 * i : 2 * i + 2]
            attend = self._middle if i == 0 and self.block.middle is not None else self._long
            outputs.append(attend(x, rows, queries, keys, branch))
        if not self.block.factored.folds_fusion:
            return x + self.block.fuse(*outputs)
        for output in outputs:
            x = x + output
        return x + bias_of(self.block.fuse)[:, None, None] if isinstance(self.block.fuse, Concat) else x

    def _middle(self, x: Tensor, rows: Tensor, queries: Tensor, keys: Tensor, branch: nn.Module) -> Tensor:
        assert self.block.middle is not None
        patches = Patches(x.shape[2], x.shape[3], self.block.middle.patches)
        counts = patches.counts.to(x.dtype)
        y = branch(patches.cut(rows), patches.cut(keys) * counts, patches.cut(queries), counts.sum(dim=1, keepdim=True))
        return _as_map(patches.join(y), x)

    def _long(self, x: Tensor, rows: Tensor, queries: Tensor, keys: Tensor, branch: nn.Module) -> Tensor:
        assert self.block.long is not None
        count = x.shape[2] * x.shape[3]
        y = _as_map(branch(rows, keys, queries, count), x)
        if self.block.long.gate is None:
            return y
        # a plain gate needs Σ k and Σ x only
        outer = rows.transpose(1, 2) @ keys if self.block.long.standard else rows.new_empty(0)
        sums = Sums(outer, keys=keys.sum(dim=1), inputs=x.sum(dim=(2, 3)), count=count)
        return y * self.block.long.factored_gate(x, sums, slice(None))


class SoftmaxBlock(nn.Module):
    """Features (B, C, H, W) → same shape, X added inside, for softmax similarity, which has to build its maps."""

    def __init__(self, block: OmniRange) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        outputs = []
        if self.block.middle is not None:
            outputs.append(self._middle(x, self.block.middle))
        if self.block.long is not None:
            outputs.append(self.block.long(x, literal=True))
        return x + self.block.fuse(*outputs)

    def _middle(self, x: Tensor, middle: MiddleRange) -> Tensor:
        attention = middle.attention
        patches = Patches(x.shape[2], x.shape[3], middle.patches)
        layers = (attention.query, attention.key, attention.value)
        q, k, v = (patches.cut(_as_rows(layer(x))) for layer in layers)
        logits = (q @ k.transpose(2, 3) * attention.scale).masked_fill(~patches.counts.transpose(1, 2), -torch.inf)
        return attention.projected(_as_map(patches.join(logits.softmax(dim=3) @ v), x))


def exported(block: OmniRange) -> nn.Module:
    return SoftmaxBlock(block) if block.similarity == "softmax" else DotBlock(block)


def _as_rows(x: Tensor) -> Tensor:
    """(B, C, H, W) → (B, N, C)."""
    return x.flatten(2).transpose(1, 2)


def _as_map(rows: Tensor, x: Tensor) -> Tensor:
    """(B, N, C) → (B, C, H, W) with the sides of x."""
    return rows.transpose(1, 2).unflatten(2, x.shape[2:])
