"""The omni-range block: middle- and long-range context for every position, added to the features (the paper's Fig. 2).

`literal` follows the figure: each branch makes its output, the fusion joins them, X is added. `factored` computes the
same without any N x N map (`factored.py`).

Shapes: B batch · C channels · D query/key channels · E value channels · H x W map.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.attention import SelfAttention
from ordnet.model.factored import Factored
from ordnet.model.fusion import AttentionToScale, ChannelSelection, Concat, Sum
from ordnet.model.long_range import LongRange
from ordnet.model.middle_range import MiddleRange
from ordnet.model.parts import Block, Explanation, Piecewise, Rows, receptive_field

CHOICES: dict[str, tuple[Any, ...]] = {
    "branches": (("middle", "long"), ("middle",), ("long",)),
    "gate": ("out", "in", None),
    "gate_norm": ("sigmoid", "softmax"),
    "gate_sum": ("mean", "sum"),
    "fusion": ("concat", "sum", "scale", "channel"),
    "similarity": ("dot", "softmax"),
    "form": ("factored", "literal"),
}


class OmniRange(Block):
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
        self.channels = self.out_channels = channels
        self.form = form
        self.similarity = similarity
        self.key_channels = key_channels or max(channels // 8, 1)
        value_channels = value_channels or max(channels // 4, 1)

        def attention() -> SelfAttention:
            return SelfAttention(channels, self.key_channels, value_channels, project, similarity)

        self.middle = MiddleRange(attention(), patches) if "middle" in branches else None
        self.long = LongRange(attention(), gate, gate_norm, gate_sum) if "long" in branches else None
        self.fuse = _fusion(fusion, channels, channels if project else value_channels, len(branches), project)
        self.factored = Factored(self.middle, self.long, self.fuse)
        """The two passes of the linear form, for dot-product similarity."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or x.shape[1] != self.channels:
            raise OrdnetError(f"expected features (B, {self.channels}, H, W), got {tuple(x.shape)}")
        if self.similarity == "dot" and self.form == "factored":
            return self.factored(x)
        literal = self.form == "literal"
        outputs = [branch(x, literal) for branch in (self.middle, self.long) if branch is not None]
        return x + self.fuse(*outputs)

    def gate_map(self, x: Tensor) -> Tensor | None:
        """Attn_g (B, 1, H, W), what the long range is multiplied with; None for a block without a gate."""
        if self.long is None or not self.has_gate:
            return None
        if self.similarity == "softmax":
            return self.long.gate_map(x)
        return self.factored.gate_at(x, self.factored.collect(x.flatten(2)))

    # ---- what others ask (parts.Block) -------------------------------------------------------------------------

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

    def exportable(self) -> nn.Module:
        from ordnet.model.exported import exported

        return exported(self)

    def piecewise(self, height: int, width: int) -> Piecewise:
        from ordnet.model.piecewise import PiecewiseBlock

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
