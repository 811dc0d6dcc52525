"""The reweighed long-range branch: self-attention over the whole map, its output gated by what each position
contributes to all others (the paper's Fig. 5, Eq. 5–6).

The paper's gate is the sigmoid of an unbounded sum, which fast steps push far into saturation: the whole map shuts, and
a shut gate gets no gradient. `gate_logits="standard"` takes its deviation from the map's mean in standard deviations
instead, with a learnt gain and bias. The gate then stays open somewhere and closed elsewhere whatever the features'
scale. Mean and deviation over the map derive from sums that the factored form has anyway.

Shapes: B batch · C channels · D key channels · N positions.
"""

import torch
from torch import Tensor, nn

from ordnet.model.attention import SelfAttention, Sums, bias_of, full_precision, matrix, wide

EPSILON = 1e-6
"""Added to the variance of the gate's logits over the map, which is 0 on a map of one colour."""


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
        """All row or column sums of a map (B, N) → what sigmoid or softmax makes the gate of."""
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
        Σ q = Wq Σ x + N bq needs no pass of its own. Row sums the other way round.
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
        """What sigmoid or softmax makes the gate of (B, N), at the positions of x (B, C, H, W): the whole map or a
        part of it. `sums` are those of the whole map."""
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
