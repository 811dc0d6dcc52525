"""The factored form of the omni-range block: its output without any N x N map, in two passes over the positions.

  1. add up what the small matrices need (`collect`), patch by patch: the long range's sums are their total;
  2. fold value, projection and fusion into one small matrix per patch (`contexts`), and apply it to the queries
     (`read_out`).

`Factored` runs both over a map in memory, `PiecewiseBlock` over one that comes in pieces. The result is that of the
literal form: the same sums in another order.

Shapes: B batch · C channels · D query/key channels · E value channels · n positions of one patch, as columns.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ordnet.model.attention import (
    SelfAttention,
    Sums,
    bias_of,
    full_precision,
    matrix,
    pointwise,
    small_matrix,
    sums_of,
    wide,
)
from ordnet.model.branches import ChannelSelection, Concat, LongRange, MiddleRange, Sum, join, patch_grid
from ordnet.model.parts import Area, Pieces, inside, overlap

STRIP = 1024
"""Positions that inference handles at once: enough for matrix products to run at full speed."""


@dataclass(frozen=True)
class Fold:
    """Turns one branch's small matrix M into the branch's share of the output: `weight` @ M, and `bias`.

    `weight` includes the attention's scale. Where it is applied to few columns, multiplying projection and fusion out
    does not pay: `weight` is then the projection's alone, and `fuse` follows.
    """

    weight: Tensor  # (C, E)
    bias: Tensor  # (C,)
    fuse: Tensor | None = None  # (C, C)

    def __call__(self, small: Tensor) -> Tensor:
        """M (B, E, D) → (B, C, D + 1), the bias its last column."""
        folded = self.weight @ small
        return _with_column(folded if self.fuse is None else self.fuse @ folded, self.bias)


class Factored:
    """The two passes of one block. It refers to the block's own layers and has no parameters itself."""

    def __init__(self, middle: MiddleRange | None, long: LongRange | None, fuse: nn.Module) -> None:
        self.middle, self.long, self.fuse = middle, long, fuse
        self.branches = [branch for branch in (middle, long) if branch is not None]
        self.attentions: list[SelfAttention] = [branch.attention for branch in self.branches]
        self.patches = middle.patches if middle is not None else 1
        width = self.attentions[0].query.out_channels
        # where each branch's queries and keys are when all are computed side by side
        self.columns = [slice(i * width, (i + 1) * width) for i in range(len(self.branches))]
        self.folds_fusion = isinstance(fuse, Concat | Sum)
        """Linear fusions become part of the small matrices; the other two need the branch outputs."""
        self._prepared: list[Fold] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Features (B, C, H, W) → the block's output, X added."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            outputs = self._patch_by_patch(x)
        else:
            outputs = self._strip_by_strip(x)
        return outputs[0] if self.folds_fusion else x + self.fuse(*outputs)

    def _patch_by_patch(self, x: Tensor) -> list[Tensor]:
        """The plain way, for training: autograd keeps keys and queries anyway, so one product gives both."""
        grid = patch_grid(x.shape[2], x.shape[3], self.patches)
        columns = _in_patch_order(x, grid, self.patches)  # (B, C, N)
        layers = [a.key for a in self.attentions] + [a.query for a in self.attentions]
        k, q = pointwise(columns, layers).chunk(2, dim=1)  # (B, ΣD, N) each
        sizes = [(rows.stop - rows.start, cols.stop - cols.start) for rows, cols in grid]
        counts = [height * width for height, width in sizes]
        xs, ks, qs = (z.split(counts, dim=2) for z in (columns, k, q))
        sums = [sums_of(*pair) for pair in zip(xs, ks, strict=True)]
        whole = added_up(sums)
        gate = self.gate_at(columns.unsqueeze(2), whole)  # (B, 1, 1, N)
        gates = [None] * len(grid) if gate is None else gate.squeeze(2).split(counts, dim=2)
        parts = zip(xs, qs, self.contexts(sums, whole), gates, sizes, strict=True)
        made = [[z.unflatten(2, size) for z in self.read_out(*part)] for *part, size in parts]
        return [join(z, self.patches) for z in zip(*made, strict=True)]

    def _strip_by_strip(self, x: Tensor) -> list[Tensor]:
        """The same for inference: a few rows of a patch at a time, written straight into the output.

        Apart from input and output, memory holds one strip, the gate and the small matrices.
        """
        grid = patch_grid(x.shape[2], x.shape[3], self.patches)
        sums = [
            added_up([self.collect(_positions(x[:, :, strip, columns])) for strip in _strips(rows, columns)])
            for rows, columns in grid
        ]
        whole = added_up(sums)
        gate = self.gate_at(x, whole)
        contexts = self.contexts(sums, whole)
        del sums, whole
        outputs = [torch.empty_like(x) for _ in contexts[0]]
        for context, (rows, columns) in zip(contexts, grid, strict=True):
            for strip in _strips(rows, columns):
                gate_piece = None if gate is None else gate[:, :, strip, columns].flatten(2)
                piece = _positions(x[:, :, strip, columns])
                made = self.read_out(piece, self.queries(piece), context, gate_piece)
                for output, z in zip(outputs, made, strict=True):
                    output[:, :, strip, columns] = z.unflatten(2, (strip.stop - strip.start, -1))
        return outputs

    # ---- the passes --------------------------------------------------------------------------------------------

    def collect(self, x: Tensor) -> Sums:
        """Pass 1: the sums over some positions (B, C, n), for all branches at once."""
        return sums_of(x, pointwise(x, [attention.key for attention in self.attentions]))

    def queries(self, x: Tensor) -> Tensor:
        """The queries (B, ΣD, n) of all branches at some positions (B, C, n), for `read_out`."""
        return pointwise(x, [attention.query for attention in self.attentions])

    def gate_at(self, x: Tensor, whole: Sums, log_total: Tensor | None = None) -> Tensor | None:
        """The gate (B, 1, H, W) at some positions x (B, C, H, W) of a map whose sums are given; None without a gate.

        A softmax gate also needs the map's `log_total` (LongRange.factored_gate).
        """
        if self.long is None or self.long.gate is None:
            return None
        return self.long.factored_gate(x, whole, self.columns[-1], log_total)

    def gate_log_total(self, x: Tensor, whole: Sums) -> Tensor:
        """log Σ exp(gate logit) (B, 1) over some positions x (B, C, H, W); torch.logaddexp joins parts of a map."""
        assert self.long is not None  # asked only of a softmax gate
        return self.long.gate_logits(x, whole, self.columns[-1]).logsumexp(dim=1, keepdim=True)

    def contexts(self, patch_sums: Sequence[Sums], whole: Sums) -> list[list[Tensor]]:
        """Between the passes: for each patch, the matrices that turn queries into output.

        One matrix (B, C, ΣD + branches + 1) where the fusion can be folded in, else one (B, C, D + 1) per branch.
        """
        with full_precision(whole.outer):
            shares = []  # per branch: one (B, C, D + 1) per patch, or one for all
            regions = [patch_sums if branch is self.middle else [whole] for branch in self.branches]
            folds = self.folds([len(r) * len(whole.outer) for r in regions])
            for region, attention, fold, columns in zip(regions, self.attentions, folds, self.columns, strict=True):
                shares.append([fold(small_matrix(attention, sums, columns)) for sums in region])
            per_patch = [[share[i % len(share)] for share in shares] for i in range(len(patch_sums))]
            if not self.folds_fusion:
                return per_patch
            bias = wide(bias_of(self.fuse)) if isinstance(self.fuse, Concat) else torch.zeros_like(whole.inputs[0])
            return [[_with_column(torch.cat(matrices, dim=2), bias)] for matrices in per_patch]

    def read_out(self, x: Tensor, q: Tensor, contexts: Sequence[Tensor], gate: Tensor | None) -> list[Tensor]:
        """Pass 2: positions (B, C, n) of one patch and their queries → the block's output there, or each branch's where
        the fusion cannot be folded in."""
        one = torch.ones_like(q[:, :1])
        # the gate scales queries and the row that carries the projection's bias: (A q + b) g = A (q g) + b g
        rows = []
        for branch, columns in zip(self.branches, self.columns, strict=True):
            share = [q[:, columns], one]
            if branch is self.long and gate is not None:
                share = [part * gate.to(q.dtype) for part in share]
            rows.append(share)
        if self.folds_fusion:
            stacked = torch.cat([part for share in rows for part in share] + [one], dim=1)
            context = contexts[0].to(x.dtype)
            if x.stride(1) == 1:  # channels last, and so is the product when it is taken the other way round
                return [torch.baddbmm(x.mT, stacked.mT, context.mT).mT]
            return [torch.baddbmm(x, context, stacked)]
        return [a.to(x.dtype) @ torch.cat(share, dim=1) for a, share in zip(contexts, rows, strict=True)]

    # ---- constants of the weights ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Multiply projection and fusion out once. The weights must not change afterwards."""
        with torch.no_grad():
            self._prepared = None
            self._prepared = self.folds()

    def forget(self) -> None:
        """Drop what `prepare` computed, because the weights have changed."""
        self._prepared = None

    def folds(self, uses: Sequence[int] | None = None) -> list[Fold]:
        """Projection and fusion of each branch as one matrix; or as two, where they are applied to so few
        small matrices (`uses`, per branch) that one after the other takes fewer operations."""
        weight = self.attentions[0].query.weight
        if self._prepared is not None and self._prepared[0].weight.device == weight.device:
            return self._prepared
        folds = []
        # one split, whose gradient is a concatenation; slices would each add a full matrix of zeros
        parts = matrix(self.fuse).chunk(len(self.attentions), dim=1) if isinstance(self.fuse, Concat) else None
        for index, attention in enumerate(self.attentions):
            project = attention.project
            if parts is None:
                assert project is not None  # the block's constructor saw to it
                folds.append(Fold(matrix(project) * attention.scale, wide(bias_of(project))))
                continue
            fuse = parts[index]  # (C, C) or (C, E)
            if project is None:
                folds.append(Fold(fuse * attention.scale, torch.zeros_like(fuse[:, 0])))
                continue
            bias = fuse @ wide(bias_of(project))
            # operations, both over C: fuse @ weight is C · E, fuse @ (weight @ M) is C · D for each M
            if uses and uses[index] * attention.query.out_channels < project.in_channels:
                folds.append(Fold(matrix(project) * attention.scale, bias, fuse))
            else:
                folds.append(Fold(fuse @ matrix(project) * attention.scale, bias))
        return folds


class PiecewiseBlock:
    """The block on a map that is never held as a whole: `learn` first, then call it with any area and its features.

    All that the block needs from the whole map are sums over positions, which can be added up piece by piece. Any area
    can then be computed on its own. The result is the block's own, not an approximation.
    """

    def __init__(self, block: Factored, height: int, width: int) -> None:
        self.block = block
        self.grid = patch_grid(height, width, block.patches)
        self.softmax_gate = block.long is not None and bool(block.long.gate) and block.long.gate_norm == "softmax"
        self.log_total: Tensor | None = None
        self.fusion_weights: Tensor | None = None

    @property
    def turns(self) -> int:
        """How often `learn` goes over the map."""
        return 1 + self.softmax_gate + isinstance(self.block.fuse, ChannelSelection)

    def learn(self, pieces: Pieces) -> None:
        sums: dict[int, Sums] = {}
        for area, x in pieces():
            for patch, (rows, columns) in self._parts(area):
                more = self.block.collect(x[:, :, rows, columns].flatten(2))
                sums[patch] = sums[patch] + more if patch in sums else more
        by_patch = [sums[patch] for patch in range(len(self.grid))]
        self.whole = added_up(by_patch)
        self.contexts = self.block.contexts(by_patch, self.whole)
        if self.softmax_gate:
            for _, x in pieces():
                part = self.block.gate_log_total(x, self.whole)
                self.log_total = part if self.log_total is None else torch.logaddexp(self.log_total, part)
        if isinstance(self.block.fuse, ChannelSelection):
            total = torch.zeros_like(self.whole.inputs)  # (1, C)
            for area, x in pieces():
                total += torch.stack(self._branches(x, area)).sum(dim=(0, 3, 4))
            self.fusion_weights = self.block.fuse.weights(total / self.whole.count)

    def __call__(self, x: Tensor, area: Area) -> Tensor:
        """Features (1, C, h, w) of an area → the block's output there.

        With the `scale` fusion, which looks at neighbours, the outermost positions are right only at the map's edge.
        """
        outputs = self._branches(x, area)
        if self.block.folds_fusion:
            return outputs[0]
        if self.fusion_weights is not None:
            assert isinstance(self.block.fuse, ChannelSelection)
            return x + self.block.fuse.weighed(self.fusion_weights, *outputs)
        return x + self.block.fuse(*outputs)

    def _branches(self, x: Tensor, area: Area) -> list[Tensor]:
        """What `Factored.read_out` gives for the area, each part read out with the context of its own patch."""
        gate = self.block.gate_at(x, self.whole, self.log_total)
        outputs = [torch.empty_like(x) for _ in self.contexts[0]]
        for patch, (rows, columns) in self._parts(area):
            part = x[:, :, rows, columns]
            part_gate = None if gate is None else gate[:, :, rows, columns].flatten(2)
            positions = part.flatten(2)
            made = self.block.read_out(positions, self.block.queries(positions), self.contexts[patch], part_gate)
            for output, z in zip(outputs, made, strict=True):
                output[:, :, rows, columns] = z.unflatten(2, part.shape[2:])
        return outputs

    def _parts(self, area: Area) -> Iterator[tuple[int, Area]]:
        """The patches that the area touches, and where in the area they lie."""
        for index, patch in enumerate(self.grid):
            common = overlap(area, patch)
            if common:
                yield index, inside(common, area)


def added_up(sums: Sequence[Sums]) -> Sums:
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total


def _in_patch_order(x: Tensor, grid: Sequence[Area], patches: int) -> Tensor:
    """A map (B, C, H, W) → its positions (B, C, N), patch after patch, each by rows; the memory layout stays.

    The map is split, not sliced: in the backward pass the parts of a split are concatenated, while each slice would
    give a whole map of zeros to add up.
    """
    heights = [rows.stop - rows.start for rows, _ in grid[::patches]]
    widths = [columns.stop - columns.start for _, columns in grid[:patches]]
    pieces = [_positions(piece) for strip in x.split(heights, dim=2) for piece in strip.split(widths, dim=3)]
    if len(pieces) == 1:
        return pieces[0]
    if x.stride(1) == 1:  # channels last
        return torch.cat([piece.mT for piece in pieces], dim=1).mT
    return torch.cat(pieces, dim=2)


def _positions(patch: Tensor) -> Tensor:
    """(B, C, h, w) → (B, C, n): a copy that keeps its layout, since matrix products take either."""
    if patch.stride(1) == 1:  # channels last; changing the layout would take a tenth of the time
        return patch.permute(0, 2, 3, 1).flatten(1, 2).mT
    return patch.flatten(2)


def _strips(rows: slice, columns: slice) -> list[slice]:
    """Rows of a patch, a few at a time."""
    height = max(1, STRIP // (columns.stop - columns.start))
    return [slice(top, min(top + height, rows.stop)) for top in range(rows.start, rows.stop, height)]


def _with_column(a: Tensor, column: Tensor) -> Tensor:
    """(B, C, D) and (C,) → (B, C, D + 1)."""
    return torch.cat([a, column.expand(a.shape[0], -1).unsqueeze(2)], dim=2)
