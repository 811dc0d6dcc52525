"""What one position of a picture attends to, and how much it gives to all others (the paper's Fig. 1 and Attn_g).

A row of an attention map is q_i · K: it is computed on demand, and the N x N map is never built.

Shapes: D query/key channels · h x w map of N positions · H x W picture.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ordnet.errors import OrdnetError
from ordnet.inference.upsample import Places
from ordnet.model.branches import Patch, patch_grid
from ordnet.model.network import Network
from ordnet.model.parts import Rows
from ordnet.model.pixels import KnownSize, fitted, padded, to_input
from ordnet.picture.attention_map import (
    LIGHT,
    SHARES,
    SIGNED,
    AttentionRow,
    Box,
    HeatMap,
    Scale,
    attention_figure,
    number,
)
from ordnet.picture.overlay import Colour

_LEAST_GATE = 0.2
"""A sigmoid gate's colours cover at least this much of 0 to 1: a closed gate must not look like a half open one."""
CLOSED = 0.01
"""A gate that lets through less than this share is called closed. Shares of a softmax gate are relative to 1 / N."""
CLOSED_WORDS = "closed: nothing of this passes"


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention of one position, as the block uses it: before gate and projection a branch gives Σ_j a_j v_j there.

    Dot-product attention is signed, each weight q_i · k_j / N (Eq. 1–2); softmax weights are positive and sum to 1.
    """

    x: int
    y: int
    """The pixel that was asked for."""
    long: np.ndarray | None
    """Weights (h, w) float32 over the whole map; None for a block without long range."""
    middle: np.ndarray | None
    """Weights (h, w) float32 within the position's patch, NaN outside it; None for a block without middle range."""
    gate: np.ndarray | None
    """Attn_g (h, w) float32, the factor on the long range; None for a block without a gate."""
    gate_here: float | None
    patch: Box | None
    """Left, top, right and bottom of the patch in pixels, the last two exclusive; None without middle range."""
    similarity: str
    """dot or softmax."""
    gate_norm: str | None
    """sigmoid or softmax; None without a gate."""
    scale: float
    """The copy that the network saw is this many times as large per side; 1 where it saw the picture itself."""
    places: Places = field(repr=False)
    pixels: np.ndarray = field(repr=False)
    labels: np.ndarray | None = field(default=None, repr=False)
    """The parse (H, W), where it is known."""
    classes: tuple[str, ...] = ()
    colours: tuple[Colour, ...] = field(default=(), repr=False)

    @property
    def class_here(self) -> str | None:
        return None if self.labels is None else self.classes[self.labels[self.y, self.x]]

    @property
    def closed(self) -> bool:
        """Whether the gate lets next to nothing of the long range through at this position."""
        if self.gate is None or self.gate_here is None:
            return False
        return self.gate_here * (1 if self.gate_norm == "sigmoid" else self.gate.size) < CLOSED

    def strongest(self, weights: np.ndarray) -> tuple[int, int, float]:
        """x and y of the pixel that gets the weight (h, w) of the largest magnitude, and that weight with its sign."""
        row, column = np.unravel_index(np.nanargmax(np.abs(weights)), weights.shape)
        return *self.places.pixel(int(row), int(column)), float(weights[row, column])

    def weight_range(self, weights: np.ndarray) -> tuple[float, float]:
        """The least and the largest number to draw; zero is always among them."""
        return min(0.0, float(np.nanmin(weights))), max(0.0, float(np.nanmax(weights)))

    def gate_range(self) -> tuple[float, float]:
        """The least and the largest number to draw of the gate.

        A sigmoid gate that hardly changes is drawn on a small part of 0 to 1, but never on less than _LEAST_GATE of it:
        closed stays dark, open stays bright.
        """
        assert self.gate is not None
        low, high = float(self.gate.min()), float(self.gate.max())
        if self.gate_norm != "sigmoid":
            return 0.0, high
        missing = max(0.0, _LEAST_GATE - (high - low))
        low = min(max(0.0, low - missing / 2), 1 - _LEAST_GATE)
        return low, max(high, low + _LEAST_GATE)

    def figures(self) -> dict[str, Any]:
        """Plain numbers, as JSON has them. `strongest` is the pixel whose `weight` has the largest magnitude."""
        height, width = self.pixels.shape[:2]
        return {
            "x": self.x,
            "y": self.y,
            "class": self.class_here,
            "width": width,
            "height": height,
            "positions": list(self.places.shape),
            "scale": self.scale,
            "similarity": self.similarity,
            "long": None if self.long is None else self._weights(self.long),
            "middle": None if self.middle is None else {"patch": list(self.patch or ()), **self._weights(self.middle)},
            "gate": None
            if self.gate is None
            else {"norm": self.gate_norm, "here": self.gate_here, "closed": self.closed, **_summary(self.gate)},
        }

    def draw(self, across: int | None = None) -> Image.Image:
        """The picture with the position marked, its long and middle range, the gate and the parse, `across` of them
        side by side (all by default)."""
        return attention_figure([self.row()], across)

    def row(self) -> AttentionRow:
        """What `attention_figure` draws for this position; it puts the rows of several positions below each other."""
        maps = []
        if self.long is not None:
            stamp = CLOSED_WORDS if self.closed else ""
            maps.append(self._heat(self.long, "long range", "attention over the whole map", stamp=stamp))
        if self.middle is not None:
            maps.append(self._heat(self.middle, "middle range", "attention within its patch", self.patch))
        if self.gate is not None:
            maps.append(self._gate_heat(self.gate))
        notes = [f"x {self.x}, y {self.y}"]
        if self.scale < 1:
            notes.append(f"seen at {self.scale:.0%} of its size")
        return AttentionRow(self.pixels, self.x, self.y, maps, notes, self.labels, self.classes, self.colours)

    def _weights(self, weights: np.ndarray) -> dict[str, Any]:
        low, mean, high = float(np.nanmin(weights)), float(np.nanmean(weights)), float(np.nanmax(weights))
        x, y, weight = self.strongest(weights)
        return {"min": low, "mean": mean, "max": high, "strongest": [x, y], "weight": weight}

    def _heat(self, weights: np.ndarray, title: str, subtitle: str, box: Box | None = None, stamp: str = "") -> HeatMap:
        low, high = self.weight_range(weights)
        x, y, weight = self.strongest(weights)
        if self.similarity == "dot":
            # zero is neutral, so the colours reach as far on both sides; the bar shows the part of them that occurs
            top = max(-low, high)
            scale, meaning = Scale(SIGNED, -top, top, low, high), "red adds, blue takes away"
        else:
            scale, meaning = Scale(SHARES, 0, high, 0, high), "shares that sum to 1"
        notes = [meaning, f"strongest {signed(weight, self.similarity)} at x {x}, y {y}"]
        return HeatMap(title, subtitle, partial(self.places.sample, weights), scale, notes, box, stamp)

    def _gate_heat(self, gate: np.ndarray) -> HeatMap:
        known = _summary(gate)
        low, high = self.gate_range()
        here = "closed here" if self.closed else "here"
        notes = [
            f"{here}: {number(self.gate_here or 0.0)}, mean {number(known['mean'])}",
            f"spread {number(known['spread'])}, from {number(known['min'])} to {number(known['max'])}",
        ]
        subtitle = "what the long range is multiplied with"
        scale = Scale(LIGHT, low, high, low, high)
        return HeatMap("gate", subtitle, partial(self.places.sample, gate), scale, notes)


class Explainer:
    """The attention of any position of one picture. The network runs once, a position then takes milliseconds.

    Kept are queries, keys and the gate, not the features or the network. Threads may share it.
    """

    def __init__(
        self,
        net: Network,
        pixels: np.ndarray,
        whole_up_to: int | None = None,
        known: KnownSize = KnownSize(),  # noqa: B008
        features: Tensor | None = None,
    ) -> None:
        """`pixels` are upright RGB (H, W, 3) uint8. A picture far from the `known` sizes is resized, and one of more
        than `whole_up_to` pixels is reduced. Positions are in the picture's own pixels all the same; `scale` says by
        how much it was resized.

        `features` (1, C, h, w) is the block's input, where the network has already run on the picture.
        """
        reason = why_not(net)
        if reason:
            raise OrdnetError(reason)
        self.pixels = pixels
        copy = _reduced(fitted(pixels, known), whole_up_to, net.least_side)
        self.scale = (copy[..., 0].size / pixels[..., 0].size) ** 0.5
        ready = padded(copy, net.least_side)
        with torch.inference_mode():
            x = net.block_input(to_input(ready, net)) if features is None else features
            shown = net.block.explain(x)
            self._long, self._middle = _branch(shown.long), _branch(shown.middle)
            self.gate = None if shown.gate is None else _array(shown.gate[0, 0])
            self._gate_norm = shown.gate_norm
        self.places = Places(pixels.shape[:2], copy.shape[:2], ready.shape[:2], tuple(x.shape[2:]), net.align_corners)

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps in memory, apart from the pixels."""
        branches = [branch for branch in (self._long, self._middle) if branch]
        kept = sum(branch.queries.nbytes + branch.keys.nbytes for branch in branches)
        return kept + (0 if self.gate is None else self.gate.nbytes)

    def at(self, x: int, y: int) -> Attention:
        """The attention of the position that pixel (x, y) belongs to, counted from the upper left corner."""
        height, width = self.pixels.shape[:2]
        check_inside(x, y, width, height)
        x, y = int(x), int(y)
        here = self.places.position(x, y)
        long = middle = patch = None
        if self._long:
            long = self._long.row(here, (slice(None), slice(None)))
        if self._middle:
            region = self._middle.patch_of(here)
            middle, patch = self._middle.row(here, region), self.places.box(region)
        similarity = "softmax" if any(branch and branch.softmax for branch in (self._long, self._middle)) else "dot"
        gate_here = None if self.gate is None else float(self.gate[here])
        return Attention(
            x, y, long, middle, self.gate, gate_here, patch, similarity, self._gate_norm, self.scale, self.places,
            self.pixels,
        )  # fmt: skip


def why_not(net: Network) -> str | None:
    """Why the network's attention cannot be shown; None where it can."""
    if net.block.unexplained is None:
        return None
    return f"{net.config.variant} {net.block.unexplained}; use a model of another variant, such as ordnet"


def check_inside(x: float, y: float, width: int, height: int) -> None:
    if not (0 <= x < width and 0 <= y < height):
        raise OrdnetError(
            f"position {x},{y} lies outside the picture of {width} x {height} pixels: "
            f"x goes from 0 to {width - 1}, y from 0 to {height - 1}"
        )


@dataclass(frozen=True)
class _Branch:
    """One attention's queries and keys at all positions."""

    queries: np.ndarray  # (h, w, D)
    keys: np.ndarray  # (h, w, D)
    softmax: bool
    factor: float
    """The factor on the products of queries and keys."""
    patches: int = 1

    def patch_of(self, position: tuple[int, int]) -> Patch:
        row, column = position
        grid = patch_grid(self.keys.shape[0], self.keys.shape[1], self.patches)
        return next(p for p in grid if p[0].start <= row < p[0].stop and p[1].start <= column < p[1].stop)

    def row(self, position: tuple[int, int], region: Patch) -> np.ndarray:
        """The weights (h, w) that a position gives to those of its region; NaN outside it."""
        products = self.keys[region] @ self.queries[position] * self.factor
        if self.softmax:
            products = np.exp(products - products.max())
        weights = np.full(self.keys.shape[:2], np.nan, dtype=np.float32)
        weights[region] = products / (products.sum() if self.softmax else products.size)
        return weights


def _branch(rows: Rows | None) -> _Branch | None:
    if rows is None:
        return None
    queries, keys = (_array(x[0].permute(1, 2, 0)) for x in (rows.queries, rows.keys))
    return _Branch(queries, keys, rows.softmax, rows.scale, rows.patches)


def _array(x: Tensor) -> np.ndarray:
    return x.float().contiguous().cpu().numpy()


def signed(weight: float, similarity: str) -> str:
    """A weight in short form; dot-product weights always show their sign."""
    return f"+{number(weight)}" if similarity == "dot" and weight > 0 else number(weight)


def _summary(gate: np.ndarray) -> dict[str, float]:
    figures = {"mean": gate.mean(), "spread": gate.std(), "min": gate.min(), "max": gate.max()}
    return {name: float(value) for name, value in figures.items()}


def _reduced(pixels: np.ndarray, up_to: int | None, least: int) -> np.ndarray:
    """A copy that has at most `up_to` pixels once its sides are padded to `least`; the picture itself if it fits."""
    height, width = pixels.shape[:2]
    if up_to is None or max(height, least) * max(width, least) <= up_to:
        return pixels
    scale = min(1.0, (up_to / (height * width)) ** 0.5)
    rows, columns = max(1, int(height * scale)), max(1, int(width * scale))
    # one side of a thin strip cannot shrink as much: the other has to make up for it
    rows, columns = min(rows, max(1, up_to // max(columns, least))), min(columns, max(1, up_to // max(rows, least)))
    return np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BOX))
