"""The omni-range block: middle- and long-range context for every position, added to the features (the paper's Fig. 2).

Shapes: B batch · C channels · D query/key channels · E value channels · H x W map · n positions of one patch.

`literal` follows the figure: each branch makes its output, the fusion joins them, X is added.
`factored` computes the same without any N x N map, in two passes over the patches:
  1. add up what the small matrices need (`collect`);
  2. fold value, projection and fusion into one matrix per patch (`contexts`), and apply it to the queries (`read_out`).
The two passes are public because pictures too large for one pass are streamed through them tile by tile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.attention import (
    SelfAttention,
    Sums,
    bias_of,
    collect,
    full_precision,
    matrix,
    pointwise,
    small_matrix,
    wide,
)
from ordnet.model.fusion import AttentionToScale, ChannelSelection, Concat, Sum
from ordnet.model.long_range import LongRange
from ordnet.model.middle_range import MiddleRange, join, patch_grid

STRIP = 1024
"""Positions that inference handles at once: enough for matrix products to run at full speed."""

CHOICES: dict[str, tuple[Any, ...]] = {
    "branches": (("middle", "long"), ("middle",), ("long",)),
    "gate": ("out", "in", None),
    "gate_norm": ("sigmoid", "softmax"),
    "gate_sum": ("mean", "sum"),
    "fusion": ("concat", "sum", "scale", "channel"),
    "similarity": ("dot", "softmax"),
    "form": ("factored", "literal"),
}


@dataclass(frozen=True)
class Fold:
    """What turns one branch's small matrix M into its share of the output: `weight` @ M, and `bias`."""

    weight: Tensor  # (C, E)
    bias: Tensor  # (C,)


class OmniRange(nn.Module):
    """(B, C, H, W) → same shape, X added inside; any H and W of at least `patches`.

    Args:
        key_channels: width of queries and keys; C/8 without it (256 of 2048 in the paper).
        value_channels: width of values; C/4 without it (512 of 2048 in the paper).
        patches: the middle-range branch attends inside patches x patches parts of the map.
        branches: both, or one of them. ("long",) without a gate is plain self-attention.
        gate: what reweighs the long range: each position's contribution to all others ("out", Eq. 5), what it
            receives ("in"), or None.
        gate_sum: "mean" divides the gate's sums by N as Eq. 1 does; "sum" is Eq. 5 to the letter, which saturates.
        similarity: "dot" is the paper's; "softmax" is scaled dot-product attention, linear in memory only.
        form: "factored" or "literal": same parameters, same result.
        project: a 1x1 convolution from value width to C in each branch; without it only "concat" can fuse.
    """

    def __init__(
        self,
        channels: int,
        key_channels: int | None = None,
        value_channels: int | None = None,
        patches: int = 2,
        branches: Sequence[str] = ("middle", "long"),
        gate: str | None = "out",
        gate_norm: str = "sigmoid",
        gate_sum: str = "mean",
        fusion: str = "concat",
        similarity: str = "dot",
        form: str = "factored",
        project: bool = True,
    ) -> None:
        super().__init__()
        branches = tuple(branches)
        for name, value in {
            "branches": branches, "gate": gate, "gate_norm": gate_norm, "gate_sum": gate_sum,
            "fusion": fusion, "similarity": similarity, "form": form,
        }.items():  # fmt: skip
            if value not in CHOICES[name]:
                raise OrdnetError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, CHOICES[name]))}")
        if min(channels, patches, key_channels or 1, value_channels or 1) < 1:
            raise OrdnetError("channels, key_channels, value_channels and patches must be at least 1")
        if similarity == "softmax" and gate == "in" and "long" in branches:
            raise OrdnetError('gate="in" with softmax similarity would be constant: its rows sum to 1; use gate="out"')
        if not project and fusion != "concat":
            raise OrdnetError(
                f'fusion="{fusion}" adds branch outputs to C channels, but without the projection they have '
                f'value_channels; use project=True or fusion="concat"'
            )
        self.channels = channels
        self.form = form
        self.similarity = similarity
        self.key_channels = key_channels or max(channels // 8, 1)
        value_channels = value_channels or max(channels // 4, 1)

        def attention() -> SelfAttention:
            return SelfAttention(channels, self.key_channels, value_channels, project, similarity)

        self.middle = MiddleRange(attention(), patches) if "middle" in branches else None
        self.long = LongRange(attention(), gate, gate_norm, gate_sum) if "long" in branches else None
        self.fuse = _fusion(fusion, channels, channels if project else value_channels, len(branches), project)
        self._products: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise OrdnetError(f"expected features (B, {self.channels}, H, W), got {tuple(x.shape)}")
        if self.similarity == "dot" and self.form == "factored":
            return self._factored(x)
        literal = self.form == "literal"
        outputs = [branch(x, literal) for branch in (self.middle, self.long) if branch is not None]
        return x + self.fuse(*outputs)

    def gate_map(self, x: Tensor) -> Tensor | None:
        """Attn_g (B, 1, H, W), what the long range is multiplied with; None for a block without a gate."""
        if self.long is None or self.long.gate is None:
            return None
        if self.similarity == "softmax":
            return self.long.gate_map(x)
        return self.gate_at(x, self.collect(x.flatten(2)))

    # ---- the factored form -------------------------------------------------------------------------------------

    def _factored(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            outputs = self._patch_by_patch(x)
        else:
            outputs = self._strip_by_strip(x)
        return outputs[0] if self.folds_fusion else x + self.fuse(*outputs)

    def _patch_by_patch(self, x: Tensor) -> list[Tensor]:
        """The plain way. While gradients are recorded autograd keeps a copy of every patch anyway."""
        grid = patch_grid(x.shape[2], x.shape[3], self.patches)
        pieces = [_positions(x[:, :, rows, columns]) for rows, columns in grid]
        sums = [self.collect(piece) for piece in pieces]
        whole = _added_up(sums)
        gate = self.gate_at(x, whole)
        made: list[list[Tensor]] = []
        for piece, context, (rows, columns) in zip(pieces, self.contexts(sums, whole), grid, strict=True):
            gate_piece = None if gate is None else gate[:, :, rows, columns].flatten(2)
            size = (rows.stop - rows.start, columns.stop - columns.start)
            made.append([z.unflatten(2, size) for z in self.read_out(piece, context, gate_piece)])
        return [join(z, self.patches) for z in zip(*made, strict=True)]

    def _strip_by_strip(self, x: Tensor) -> list[Tensor]:
        """The same for inference: a few rows of a patch at a time, straight into place.

        Beside the output, memory holds one strip and the small matrices.
        """
        grid = patch_grid(x.shape[2], x.shape[3], self.patches)
        sums = [
            _added_up([self.collect(_positions(x[:, :, strip, columns])) for strip in _strips(rows, columns)])
            for rows, columns in grid
        ]
        whole = _added_up(sums)
        gate = self.gate_at(x, whole)
        contexts = self.contexts(sums, whole)
        del sums, whole
        outputs = [torch.empty_like(x) for _ in contexts[0]]
        for context, (rows, columns) in zip(contexts, grid, strict=True):
            for strip in _strips(rows, columns):
                gate_piece = None if gate is None else gate[:, :, strip, columns].flatten(2)
                made = self.read_out(_positions(x[:, :, strip, columns]), context, gate_piece)
                for output, z in zip(outputs, made, strict=True):
                    output[:, :, strip, columns] = z.unflatten(2, (strip.stop - strip.start, -1))
        return outputs

    @property
    def patches(self) -> int:
        return self.middle.patches if self.middle is not None else 1

    @property
    def folds_fusion(self) -> bool:
        """Linear fusions become part of the small matrices; the other two need the branch outputs."""
        return isinstance(self.fuse, Concat | Sum)

    def collect(self, x: Tensor) -> Sums:
        """Pass 1: the sums over some positions (B, C, n), for all branches at once."""
        keys = [branch.key for branch in self._attentions()]
        weight = torch.cat([key.weight.flatten(1) for key in keys])  # (ΣD, C)
        return collect(x, weight, torch.cat([bias_of(key) for key in keys]))

    def gate_at(self, x: Tensor, whole: Sums, log_total: Tensor | None = None) -> Tensor | None:
        """The gate (B, 1, H, W) at some positions x (B, C, H, W) of a map whose sums are given; None without a gate.

        A softmax gate also needs the map's `log_total` (LongRange.factored_gate).
        """
        if self.long is None or self.long.gate is None:
            return None
        return self.long.factored_gate(x, whole, self._columns()[-1], log_total)

    def gate_log_total(self, x: Tensor, whole: Sums) -> Tensor:
        """log Σ exp(gate logit) (B, 1) over some positions x (B, C, H, W); parts add up by torch.logaddexp."""
        assert self.long is not None  # asked only of a softmax gate
        return self.long.gate_logits(x, whole, self._columns()[-1]).logsumexp(dim=1, keepdim=True)

    def contexts(self, patch_sums: Sequence[Sums], whole: Sums) -> list[list[Tensor]]:
        """Between the passes: for each patch, the matrices that turn queries into output.

        One matrix (B, C, ΣD + branches + 1) where the fusion can be folded in, else one (B, C, D + 1) per branch.
        """
        with full_precision(whole.outer):
            shares = []  # per branch: one (B, C, D + 1) per patch, or one for all
            for branch, attention, fold, columns in zip(
                (b for b in (self.middle, self.long) if b is not None),
                self._attentions(), self.folds(), self._columns(), strict=True,
            ):  # fmt: skip
                regions = patch_sums if branch is self.middle else [whole]
                shares.append(
                    [_with_column(fold.weight @ small_matrix(attention, r, columns), fold.bias) for r in regions]
                )
            per_patch = [[share[i % len(share)] for share in shares] for i in range(len(patch_sums))]
            if not self.folds_fusion:
                return per_patch
            bias = wide(bias_of(self.fuse)) if isinstance(self.fuse, Concat) else torch.zeros_like(whole.inputs[0])
            return [[_with_column(torch.cat(matrices, dim=2), bias)] for matrices in per_patch]

    def read_out(self, x: Tensor, contexts: Sequence[Tensor], gate: Tensor | None) -> list[Tensor]:
        """Pass 2: positions (B, C, n) of one patch → the block's output there; each branch's if fusion cannot fold."""
        queries = [attention.query for attention in self._attentions()]
        weight = torch.cat([query.weight.flatten(1) for query in queries])
        q = pointwise(x, weight, torch.cat([bias_of(query) for query in queries]))  # (B, ΣD, n)
        one = torch.ones_like(q[:, :1])
        # the gate scales queries and the row that carries the projection's bias: (A q + b) g = A (q g) + b g
        rows = []
        for branch, columns in zip(
            (b for b in (self.middle, self.long) if b is not None), self._columns(), strict=True
        ):
            share = [q[:, columns], one]
            rows.append(
                [part * gate.to(q.dtype) for part in share] if branch is self.long and gate is not None else share
            )
        if self.folds_fusion:
            stacked = torch.cat([part for share in rows for part in share] + [one], dim=1)
            context = contexts[0].to(x.dtype)
            if x.stride(1) == 1:  # channels last, and so is the product when it is taken the other way round
                return [torch.baddbmm(x.mT, stacked.mT, context.mT).mT]
            return [torch.baddbmm(x, context, stacked)]
        return [a.to(x.dtype) @ torch.cat(share, dim=1) for a, share in zip(contexts, rows, strict=True)]

    def _attentions(self) -> list[SelfAttention]:
        return [branch.attention for branch in (self.middle, self.long) if branch is not None]

    def _columns(self) -> list[slice]:
        """Where each branch's queries and keys stand when all are computed side by side."""
        d = self.key_channels
        return [slice(i * d, (i + 1) * d) for i in range(len(self._attentions()))]

    def folds(self) -> list[Fold]:
        """Projection and fusion of each branch as one matrix."""
        folds = []
        for index, attention in enumerate(self._attentions()):
            project = attention.project
            if not isinstance(self.fuse, Concat):
                assert project is not None  # the constructor saw to it
                folds.append(Fold(matrix(project), wide(bias_of(project))))
                continue
            fuse = matrix(self.fuse).chunk(len(self._attentions()), dim=1)[index]  # (C, C) or (C, E)
            if project is None:
                folds.append(Fold(fuse, torch.zeros_like(fuse[:, 0])))
            else:
                merged = self._product(f"branch {index}", fuse, matrix(project))
                folds.append(Fold(merged, fuse @ wide(bias_of(project))))
        return folds

    def _product(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """left @ right, a constant of the weights, remembered while no gradients are recorded.

        Remembered together with its factors: comparing them costs a tenth of multiplying, and notices every way in
        which weights can change. Only on the CPU, where multiplying takes longer than looking.
        """
        if torch.is_grad_enabled() or left.device.type != "cpu" or torch.compiler.is_compiling():
            self._products.pop(name, None)
            return left @ right
        known = self._products.get(name)
        if (
            known is None
            or known[0].dtype != left.dtype
            or not (torch.equal(known[0], left) and torch.equal(known[1], right))
        ):
            known = (left.clone(), right.clone(), left @ right)
            self._products[name] = known
        return known[2]


def _positions(patch: Tensor) -> Tensor:
    """(B, C, h, w) → (B, C, n): a copy that keeps its layout, since matrix products take either."""
    if patch.stride(1) == 1:  # channels last; turning it into the other layout takes a tenth of all
        return patch.permute(0, 2, 3, 1).flatten(1, 2).mT
    return patch.flatten(2)


def _strips(rows: slice, columns: slice) -> list[slice]:
    """Rows of a patch, a few at a time."""
    height = max(1, STRIP // (columns.stop - columns.start))
    return [slice(top, min(top + height, rows.stop)) for top in range(rows.start, rows.stop, height)]


def _added_up(sums: Sequence[Sums]) -> Sums:
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total


def _fusion(name: str, channels: int, branch_channels: int, branches: int, project: bool) -> nn.Module:
    if branches == 1 and project:
        return Sum()  # the projection already gives C channels
    if name == "concat":
        return Concat(branch_channels, branches, channels)
    if name == "sum":
        return Sum()
    return (AttentionToScale if name == "scale" else ChannelSelection)(channels, branches)


def _with_column(a: Tensor, column: Tensor) -> Tensor:
    """(B, C, D) and (C,) → (B, C, D + 1)."""
    return torch.cat([a, column.expand(a.shape[0], -1).unsqueeze(2)], dim=2)
