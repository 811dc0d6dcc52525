"""The omni-range block: middle- and long-range context for every position, added to the features (the paper's Fig. 2).

`literal` follows the figure: each branch computes its output, the fusion joins them, X is added. `factored`
computes the same without any N x N map (`factored.py`).

Shapes: B batch · C channels · D query/key channels · E value channels · H x W map.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.attention import SelfAttention
from ordnet.model.branches import AttentionToScale, ChannelSelection, Concat, LongRange, MiddleRange, Sum
from ordnet.model.factored import Factored, PiecewiseBlock
from ordnet.model.parts import Block, Explanation, NoBlock, Piecewise, Rows, receptive_field

CHOICES: dict[str, tuple[Any, ...]] = {
    "branches": (("middle", "long"), ("middle",), ("long",)),
    "gate": ("out", "in", None),
    "gate_norm": ("sigmoid", "softmax"),
    "gate_sum": ("mean", "sum"),
    "fusion": ("concat", "sum", "scale", "channel"),
    "similarity": ("dot", "softmax"),
    "form": ("factored", "literal"),
    "gate_logits": ("plain", "standard"),
    "logit_scale": ("one", "root"),
    "start": ("random", "identity"),
}


PARTS = ("middle", "long", "gate", "block")
"""What `OmniRange.without` can switch off."""


class OmniRange(Block):
    """(B, C, H, W) → same shape, X added inside; any H and W of at least `patches`.

    For inference in a network of your own, call `prepare()` once the weights are final: it multiplies them out once.

    Args:
        key_channels: width of queries and keys; by default C/8 (256 of 2048 in the paper).
        value_channels: width of values; by default C/4 (512 of 2048 in the paper).
        patches: the middle-range branch attends inside patches x patches parts of the map.
        branches: both, or one of them. ("long",) without a gate is plain self-attention.
        gate: what reweighs the long range: each position's contribution to all others ("out", Eq. 5), what it
            receives ("in"), or None.
        gate_sum: "mean" divides the gate's sums by N as Eq. 1 does; "sum" is Eq. 5 to the letter, which saturates.
        similarity: "dot" is the paper's; "softmax" is scaled dot-product attention, linear in memory only.
        gate_logits: "plain" is Eq. 5; "standard" is each position's deviation from the map's mean, in standard
            deviations, which no training step can drive into saturation (branches.py).
        logit_scale: "one" is the paper's; "root" multiplies products of queries and keys by 1/√D.
        start: "identity" begins with a block that adds nothing, as non-local networks do: its last layer is zero.
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
        gate_logits: str = "plain",
        logit_scale: str = "one",
        start: str = "random",
    ) -> None:
        super().__init__()
        branches = tuple(branches)
        for name, value in {
            "branches": branches, "gate": gate, "gate_norm": gate_norm, "gate_sum": gate_sum,
            "fusion": fusion, "similarity": similarity, "form": form,
            "gate_logits": gate_logits, "logit_scale": logit_scale, "start": start,
        }.items():  # fmt: skip
            if value not in CHOICES[name]:
                raise OrdnetError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, CHOICES[name]))}")
        if min(channels, patches, key_channels or 1, value_channels or 1) < 1:
            raise OrdnetError("channels, key_channels, value_channels and patches must be at least 1")
        if similarity == "softmax" and gate == "in" and "long" in branches:
            raise OrdnetError('gate="in" with softmax similarity would be constant: its rows sum to 1; use gate="out"')
        if gate_logits == "standard" and gate == "in" and "long" in branches:
            raise OrdnetError(
                'gate_logits="standard" needs gate="out": the spread of what positions receive is no sum over positions'
            )
        if not project and fusion != "concat":
            raise OrdnetError(
                f'fusion="{fusion}" adds branch outputs to C channels, but without the projection they have '
                f'value_channels; use project=True or fusion="concat"'
            )
        self.channels = self.out_channels = channels
        self.form = form
        self.similarity = similarity
        self.key_channels = key_channels or max(channels // 8, 1)
        value_channels = value_channels or max(channels // 4, 1)

        def attention() -> SelfAttention:
            return SelfAttention(channels, self.key_channels, value_channels, project, similarity, logit_scale)

        self.middle = MiddleRange(attention(), patches) if "middle" in branches else None
        self.long = LongRange(attention(), gate, gate_norm, gate_sum, gate_logits) if "long" in branches else None
        self.fuse = _fusion(fusion, channels, channels if project else value_channels, len(branches), project)
        if start == "identity":
            self._add_nothing()
        self.factored = Factored(self.middle, self.long, self.fuse)
        """The two passes of the linear form, for dot-product similarity."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise OrdnetError(f"expected features (B, {self.channels}, H, W), got {tuple(x.shape)}")
        if self.similarity == "dot" and self.form == "factored":
            return self.factored(x)
        literal = self.form == "literal"
        outputs = [branch(x, literal) for branch in self._branches()]
        return x + self.fuse(*outputs)

    def gate_map(self, x: Tensor) -> Tensor | None:
        """Attn_g (B, 1, H, W), the factor on the long range; None for a block without a gate."""
        if self.long is None or not self.has_gate:
            return None
        if self.similarity == "softmax":
            return self.long.gate_map(x)
        return self.factored.gate_at(x, self.factored.collect(x.flatten(2)))

    def _add_nothing(self) -> None:
        """Zero the last layer; its gradient is not zero, so the first step already moves it."""
        last = (
            [self.fuse] if isinstance(self.fuse, Concat) else [branch.attention.project for branch in self._branches()]
        )
        for layer in last:
            assert isinstance(layer, nn.Conv2d) and layer.bias is not None  # without a projection there is a Concat
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def _branches(self) -> list[MiddleRange | LongRange]:
        return [branch for branch in (self.middle, self.long) if branch is not None]

    # ---- answers for others (parts.Block) -----------------------------------------------------------------------

    unexplained = None
    adds_context = True

    @property
    def patches(self) -> int:  # type: ignore[override]
        return self.middle.patches if self.middle is not None else 1

    @property
    def has_gate(self) -> bool:  # type: ignore[override]
        return self.long is not None and self.long.gate is not None

    @property
    def builds_maps(self) -> bool:  # type: ignore[override]
        return self.similarity == "softmax"

    @property
    def whole_only(self) -> str | None:  # type: ignore[override]
        return "it attends with a softmax, which cannot be added up tile by tile" if self.builds_maps else None

    @property
    def reach(self) -> int:
        """The `scale` fusion has a 3x3 convolution."""
        return receptive_field(self.fuse)

    def prepare(self) -> None:
        if self.similarity == "dot":
            self.factored.prepare()

    def query_and_key_parameters(self) -> list[nn.Parameter]:
        attentions = [branch.attention for branch in self._branches()]
        return [p for attention in attentions for layer in (attention.query, attention.key) for p in layer.parameters()]

    def without(self, part: str) -> Block:
        if part not in PARTS:
            raise OrdnetError(f"there is no part {part!r:.80} to be switched off; expected {', '.join(PARTS)}")
        if part == "block":
            return NoBlock(self.channels)
        if part == "gate" and not self.has_gate:
            raise OrdnetError("the model's block has no gate to be switched off")
        branch = {"middle": self.middle, "long": self.long, "gate": self.long}.get(part)
        if branch is None:
            raise OrdnetError(f"the model's block has no {part} range to be switched off")
        less = copy.deepcopy(self)
        if part == "gate":
            assert less.long is not None
            less.long.gate = None
            return less
        attention = (less.middle if part == "middle" else less.long).attention  # type: ignore[union-attr]
        for parameter in (attention.project or attention.value).parameters():
            nn.init.zeros_(parameter)
        less.factored.forget()
        return less

    def exportable(self) -> nn.Module:
        from ordnet.model.exported import exported

        return exported(self)

    def piecewise(self, height: int, width: int) -> Piecewise:
        return PiecewiseBlock(self.factored, height, width)

    def explain(self, x: Tensor) -> Explanation:
        def rows(attention: SelfAttention, patches: int = 1) -> Rows:
            return Rows(attention.query(x), attention.key(x), attention.scale, self.similarity == "softmax", patches)

        gate = self.gate_map(x)
        return Explanation(
            None if self.long is None else rows(self.long.attention),
            None if self.middle is None else rows(self.middle.attention, self.patches),
            gate,
            self.long.gate_norm if gate is not None and self.long is not None else None,
        )


def _fusion(name: str, channels: int, branch_channels: int, branches: int, project: bool) -> nn.Module:
    if branches == 1 and project:
        return Sum()  # the projection already gives C channels
    if name == "concat":
        return Concat(branch_channels, branches, channels)
    if name == "sum":
        return Sum()
    return (AttentionToScale if name == "scale" else ChannelSelection)(channels, branches)
