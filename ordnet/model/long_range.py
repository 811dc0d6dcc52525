"""The reweighed long-range branch: self-attention over the whole map, its output gated by what each position
contributes to all others (the paper's Fig. 5, Eq. 5–6)."""

import torch
from torch import Tensor, nn

from ordnet.model.attention import SelfAttention, Sums, bias_of, full_precision, matrix, wide


class LongRange(nn.Module):
    def __init__(
        self, attention: SelfAttention, gate: str | None, gate_norm: str = "sigmoid", gate_sum: str = "mean"
    ) -> None:
        super().__init__()
        self.attention = attention
        self.gate = gate
        self.gate_norm = gate_norm
        # softmax rows sum to one, so its column sums are of size one already
        self.gate_sum = "sum" if attention.similarity == "softmax" else gate_sum

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
        return y * self._normalised(self._scaled(sums, sums.shape[1])).unflatten(1, x.shape[2:]).unsqueeze(1)

    def gate_map(self, x: Tensor) -> Tensor:
        """Attn_g of softmax similarity (B, 1, H, W), without the map."""
        sums = self.attention.softmax_column_sums(x)
        return self._normalised(self._scaled(sums, sums.shape[1])).unflatten(1, x.shape[2:]).unsqueeze(1)

    def _probe(self, sums: Sums, columns: slice) -> tuple[Tensor, Tensor]:
        """Vector u (B, C) and number c (B, 1) with u · x_i + c = the row or column sum at position i.

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
        return s @ matrix(layer), (s @ wide(bias_of(layer))).unsqueeze(1)

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
            row_or_column_sums = torch.baddbmm(c[:, None], u[:, None], wide(x).flatten(2)).squeeze(1)
            return self._scaled(row_or_column_sums, sums.count)

    def _scaled(self, sums: Tensor, count: int) -> Tensor:
        """Eq. 5 with the sum as it is, or divided by the map's N as Eq. 1 divides."""
        return sums / count if self.gate_sum == "mean" else sums

    def _normalised(self, logits: Tensor, log_total: Tensor | None = None) -> Tensor:
        if self.gate_norm == "sigmoid":
            return logits.sigmoid()
        return logits.softmax(dim=1) if log_total is None else (logits - log_total).exp()
