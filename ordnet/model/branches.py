"""The block's two branches and the four ways of fusing them.

`MiddleRange`: self-attention inside each of p x p patches (the paper's Fig. 3).

`LongRange`: self-attention over the whole map, its output gated by what each position contributes to all others
(Fig. 5, Eq. 5–6). The paper's gate is the sigmoid of an unbounded sum, which high learning rates push far into
saturation: the gate closes over the whole map, and a closed gate gets no gradient. `gate_logits="standard"` takes the
sum's deviation from the map's mean in standard deviations instead, with a learnt gain and bias. The gate then stays
open in some places and closed in others whatever the features' scale. Mean and deviation over the map derive from sums
that the factored form has anyway.

Shapes: B batch · C channels · D key channels · N positions.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.attention import SelfAttention, Sums, bias_of, full_precision, matrix, wide

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


EPSILON = 1e-6
"""Added to the variance of the gate's logits over the map, which is 0 on a constant map."""


class LongRange(nn.Module):
    def __init__(
        self,
        attention: SelfAttention,
        gate: str | None,
        gate_norm: str = "sigmoid",
        gate_sum: str = "mean",
        gate_logits: str = "plain",
    ) -> None:
        super().__init__()
        self.attention = attention
        self.gate = gate
        self.gate_norm = gate_norm
        # softmax rows sum to one, so its column sums are of size one already
        self.gate_sum = "sum" if attention.similarity == "softmax" else gate_sum
        self.standard = gate is not None and gate_logits == "standard"
        if self.standard:
            self.gate_gain = nn.Parameter(torch.ones(1))
            self.gate_bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, literal: bool) -> Tensor:
        """Features (B, C, H, W) → Z_l, with the map built (`literal`) or the fused softmax kernel."""
        if not literal:
            y = self.attention.softmax_streamed(x)
            return y if self.gate is None else y * self.gate_map(x)
        y, attn = self.attention.literal(x)
        if self.gate is None:
            return y
        # attention-out: the column of position i holds what i contributes to each query (Eq. 5); attention-in: its row
        sums = attn.sum(dim=1 if self.gate == "out" else 2)
        return y * self._normalised(self._logits(sums)).unflatten(1, x.shape[2:]).unsqueeze(1)

    def gate_map(self, x: Tensor) -> Tensor:
        """Attn_g of softmax similarity (B, 1, H, W), without the map."""
        sums = self.attention.softmax_column_sums(x)
        return self._normalised(self._logits(sums)).unflatten(1, x.shape[2:]).unsqueeze(1)

    def _logits(self, sums: Tensor) -> Tensor:
        """The row or column sums of a map (B, N) → the logits that sigmoid or softmax turns into the gate."""
        if not self.standard:
            return self._scaled(sums, sums.shape[1])
        if self.attention.similarity == "dot":
            sums = sums / (sums.shape[1] * self.attention.scale)  # Eq. 5 as a mean, of plain products
        mean = sums.mean(dim=1, keepdim=True)
        variance = sums.var(dim=1, correction=0, keepdim=True)
        return (sums - mean) * (variance + EPSILON).rsqrt() * wide(self.gate_gain) + wide(self.gate_bias)

    def _probe(self, sums: Sums, columns: slice) -> tuple[Tensor, Tensor]:
        """Vector u (B, C) and number c (B, 1) with u · x_i + c = the gate's logit at position i.

        Column sums are Σ_j q_j · k_i = k_i · s with s = Σ q, and k_i = Wk x_i + bk: so u = Wkᵀ s and c = bk · s, and
        Σ q = Wq Σ x + N bq needs no pass of its own. For row sums, queries and keys swap roles.
        """
        query, key = self.attention.query, self.attention.key
        if self.gate == "out":
            s = sums.inputs @ matrix(query).T + sums.count * wide(bias_of(query))
            layer = key
        else:
            s = sums.keys[:, columns]
            layer = query
        if self.standard:
            return self._standard_probe(s / sums.count, sums, columns)
        s = self._scaled(s * self.attention.scale, sums.count)
        return s @ matrix(layer), (s @ wide(bias_of(layer))).unsqueeze(1)

    def _standard_probe(self, s: Tensor, sums: Sums, columns: slice) -> tuple[Tensor, Tensor]:
        """The same for standardised logits, from the mean query s (B, D).

        Over the map, k_i · s has the mean u · Σ x / N + bk · s and the variance sᵀ Cov(k) s, where
        Cov(k) = Wk (Σ x kᵀ − Σ x Σ kᵀ / N) / N. The key's bias moves no deviation from the mean, and drops out.
        """
        key = matrix(self.attention.key)  # (D, C)
        u = s @ key  # (B, C)
        outer, keys = sums.outer[..., columns], sums.keys[..., columns]  # (B, C, D), (B, D)
        covariance = (outer - sums.inputs[:, :, None] * (keys / sums.count)[:, None]) / sums.count  # Cov(x, k)
        variance = torch.einsum("bc,bcd,bd->b", u, covariance, s).clamp_min(0)[:, None]  # (B, 1)
        u = u * (variance + EPSILON).rsqrt() * wide(self.gate_gain)
        return u, wide(self.gate_bias) - (u * sums.inputs).sum(dim=1, keepdim=True) / sums.count

    def factored_gate(self, x: Tensor, sums: Sums, columns: slice, log_total: Tensor | None = None) -> Tensor:
        """Attn_g (B, 1, H, W) of dot-product similarity at the positions of x (B, C, H, W).

        `sums` are those of the whole map. Where x is a part of it, a softmax gate needs the whole map's `log_total`
        (B, 1) = log Σ exp(logit) as well.
        """
        logits = self.gate_logits(x, sums, columns)
        return self._normalised(logits, log_total).unflatten(1, x.shape[2:]).unsqueeze(1)

    def gate_logits(self, x: Tensor, sums: Sums, columns: slice) -> Tensor:
        """The logits (B, N) that sigmoid or softmax turns into the gate, at the positions of x (B, C, H, W): the whole
        map or a part of it. `sums` are those of the whole map."""
        with full_precision(x):
            u, c = self._probe(sums, columns)
            return torch.baddbmm(c[:, None], u[:, None], wide(x).flatten(2)).squeeze(1)

    def _scaled(self, sums: Tensor, count: int) -> Tensor:
        """Eq. 5 with the sum as it is, or divided by the map's N as Eq. 1 divides."""
        return sums / count if self.gate_sum == "mean" else sums

    def _normalised(self, logits: Tensor, log_total: Tensor | None = None) -> Tensor:
        if self.gate_norm == "sigmoid":
            return logits.sigmoid()
        return logits.softmax(dim=1) if log_total is None else (logits - log_total).exp()


class Concat(nn.Conv2d):
    """Concatenation and a 1x1 convolution back to C channels (the paper's choice)."""

    def __init__(self, branch_channels: int, branches: int, channels: int) -> None:
        super().__init__(branch_channels * branches, channels, 1)

    def forward(self, *z: Tensor) -> Tensor:  # one map per branch
        return super().forward(torch.cat(z, dim=1))


class Sum(nn.Module):
    """Element-wise summation; a single branch is returned as it is."""

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
