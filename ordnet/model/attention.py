"""The paper's self-attention (Eq. 1–2), literal and factored.

Shapes: B batch · C channels · D query/key channels · E value channels · N positions of one region, as columns.

    literal    attn[i, j] = q_i · k_j ;  y_i = 1/N Σ_j attn[i, j] v_j        builds the N x N map
    factored   y_i = M q_i  with  M = 1/N Σ_j v_j k_jᵀ                       the same sum in another order

The factored form needs neither the map nor v: Σ v kᵀ = Wv (Σ x kᵀ) + bv (Σ k)ᵀ. All it takes from the positions are
three sums, which can be added up piece by piece. Both forms use the same parameters and give the same result.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

QUERY_BLOCK = 1024
"""Queries whose softmax rows are held at once while column sums are computed."""


class SelfAttention(nn.Module):
    """Parameters of one attention, and its literal computation."""

    def __init__(
        self,
        channels: int,
        key_channels: int,
        value_channels: int,
        project: bool,
        similarity: str,
        logit_scale: str = "one",
    ) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, key_channels, 1)
        self.key = nn.Conv2d(channels, key_channels, 1)
        self.value = nn.Conv2d(channels, value_channels, 1)
        # Y has C channels in the paper, v has E: the projection is our reading (None leaves E channels)
        self.project = nn.Conv2d(value_channels, channels, 1) if project else None
        self.similarity = similarity
        self.logit_scale = logit_scale

    @property
    def scale(self) -> float:
        """The factor on the products of queries and keys: 1/√D for softmax similarity and with `logit_scale="root"`,
        otherwise 1 as in the paper."""
        return self.query.out_channels**-0.5 if self.similarity == "softmax" or self.logit_scale == "root" else 1.0

    def map(self, x: Tensor) -> Tensor:
        """The attention map (B, N, N), rows are queries: Eq. 2, or its softmax over each row."""
        q = self.query(x).flatten(2)  # (B, D, N)
        k = self.key(x).flatten(2)
        attn = q.transpose(1, 2) @ k
        attn = attn * self.scale if self.scale != 1 else attn
        return attn.softmax(dim=2) if self.similarity == "softmax" else attn

    def literal(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Eq. 1 as it stands: features (B, C, H, W) → attended features and the map they came from."""
        attn = self.map(x)  # (B, N, N)
        v = self.value(x).flatten(2)  # (B, E, N)
        y = v @ attn.transpose(1, 2)
        if self.similarity == "dot":
            y = y / attn.shape[1]  # softmax rows sum to one already
        return self.projected(y.unflatten(2, x.shape[2:])), attn

    def softmax_streamed(self, x: Tensor) -> Tensor:
        """Softmax attention through torch's fused kernels, which never hold the map."""
        q, k, v = (layer(x).flatten(2).transpose(1, 2).unsqueeze(1) for layer in (self.query, self.key, self.value))
        # The fused CPU kernel wants rows of one width for q, k and v, else torch quietly builds the map after all.
        # Zeros change neither the products nor the first E outputs.
        width = max(q.shape[-1], v.shape[-1])
        padded_q, padded_k, padded_v = (F.pad(t, (0, width - t.shape[-1])).contiguous() for t in (q, k, v))
        y = F.scaled_dot_product_attention(padded_q, padded_k, padded_v, scale=self.scale)
        y = y[..., : v.shape[-1]]  # (B, 1, N, E)
        return self.projected(y.squeeze(1).transpose(1, 2).unflatten(2, x.shape[2:]))

    def softmax_column_sums(self, x: Tensor) -> Tensor:
        """What each position contributes to all others (B, N), a block of queries at a time."""
        q = self.query(x).flatten(2).transpose(1, 2) * self.scale  # (B, N, D)
        k = self.key(x).flatten(2)  # (B, D, N)

        def block_sums(queries: Tensor) -> Tensor:
            return wide(queries @ k).softmax(dim=2).sum(dim=1)

        total = torch.zeros_like(wide(k[:, 0]))  # (B, N)
        for queries in q.split(QUERY_BLOCK, dim=1):
            # recomputed in the backward pass: otherwise the blocks together are the whole map
            total = total + checkpoint(block_sums, queries, use_reentrant=False)
        return total

    def projected(self, y: Tensor) -> Tensor:
        return y if self.project is None else self.project(y)


@dataclass(frozen=True)
class Sums:
    """All that factored attention takes from the positions of a region, for one or several attentions side by side."""

    outer: Tensor  # (B, C, ΣD)  Σ x kᵀ
    keys: Tensor  # (B, ΣD)     Σ k
    inputs: Tensor  # (B, C)     Σ x
    count: int

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(
            self.outer + other.outer, self.keys + other.keys, self.inputs + other.inputs, self.count + other.count
        )


def sums_of(x: Tensor, k: Tensor) -> Sums:
    """The sums over positions x (B, C, N) and their keys (B, ΣD, N), in float32 or wider whatever their precision."""
    with full_precision(x):
        x, k = wide(x), wide(k)
        return Sums(x @ k.transpose(1, 2), k.sum(dim=2), x.sum(dim=2), x.shape[2])


def small_matrix(attention: SelfAttention, sums: Sums, columns: slice) -> Tensor:
    """M = 1/N Σ v kᵀ (B, E, D) of the attention whose keys are in `columns` of the sums."""
    value, bias = matrix(attention.value), wide(bias_of(attention.value))
    outer, keys = sums.outer[..., columns], sums.keys[..., columns]
    return (value @ outer + bias[:, None] * keys[:, None]) / sums.count


def pointwise(x: Tensor, layers: Sequence[nn.Conv2d]) -> Tensor:
    """Several 1x1 convolutions of the same positions, as columns, in one product: (B, C, N) → (B, ΣO, N)."""
    weight = torch.cat([layer.weight.flatten(1) for layer in layers])
    bias = torch.cat([bias_of(layer) for layer in layers])
    return torch.baddbmm(bias[None, :, None], weight.expand(x.shape[0], -1, -1), x)


def matrix(layer: nn.Conv2d) -> Tensor:
    """A 1x1 convolution's weight as a matrix (out, in), in float32 or wider."""
    return wide(layer.weight.flatten(1))


def bias_of(layer: nn.Conv2d) -> Tensor:
    assert layer.bias is not None  # every layer of the block has one
    return layer.bias


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Switch mixed precision off on the device of x, if that device has it."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def wide(x: Tensor) -> Tensor:
    """The tensor in float32 or wider: sums over thousands of positions overflow half precision."""
    return x if x.dtype == torch.float64 else x.float()
