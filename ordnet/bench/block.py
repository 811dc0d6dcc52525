"""The attention block by itself: the paper's compute table, and how the block's time grows with the map.

`compare` puts our block in both forms beside the baselines on one feature map. `compare_sizes` times the two forms on
maps of several sizes; `exponents` fits a power of the number of positions to each.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ordnet.bench.measure import Measurement, interleaved, peak_megabytes
from ordnet.errors import OrdnetError
from ordnet.model.baselines import DANet, Interlaced, NonLocal
from ordnet.model.flops import gflops
from ordnet.model.omni_range import OmniRange
from ordnet.model.parts import Block
from ordnet.paper import COMPUTE

METHODS: dict[str, Callable[[int], nn.Module]] = {
    "ORDNet factored": OmniRange,
    "ORDNet literal": lambda channels: OmniRange(channels, form="literal"),
    "InterlacedSSA": Interlaced,
    "Basic SA": NonLocal,
    "DANet": DANet,
}
# GFLOPs, MB and ms of the paper's table, at 2048x128x128 on a TITAN XP
PAPER = {name: (row["gflops"], row["peak_mb"], row["ms"]) for name, row in COMPUTE.items()}
PAPER_SIZE = (2048, 128, 128)
PRODUCT = 2048
"""The side of two square matrices whose product, in the same run, shows what this machine can do at most."""
FORMS = ("ORDNet factored", "ORDNet literal")
LITERAL_BYTES = 4 * 2**30
"""The literal form's attention map may take this much; larger maps are measured in factored form only."""


def compare(channels: int, height: int, width: int, repeats: int, train: bool) -> list[Measurement]:
    """One row per method; ours first. `train` measures forward and backward instead of inference."""
    size = (channels, height, width)
    if min(height, width) < 2 or channels < 8:
        raise OrdnetError(
            f"the methods need at least 8 channels and 2x2 positions, got {channels} and {height}x{width}"
        )
    contestants = {name: prepare(name, *size, train, warm_up=False) for name in METHODS}
    left, right = torch.randn(2, PRODUCT, PRODUCT)
    timings = interleaved({"matrix product": lambda: left @ right, **contestants}, repeats)
    limit = 2 * PRODUCT**3 / 1e9 / timings["matrix product"].seconds
    ours = timings["ORDNet factored"].seconds
    rows = []
    for name, make in METHODS.items():
        with torch.device("meta"):
            module = make(channels)
        operations = gflops(module, 1, *size)
        # a backward pass takes two products where the forward pass takes one
        rate = operations * (3 if train else 1) / timings[name].seconds
        extra: dict[str, object] = {
            "params_M": sum(p.numel() for p in module.parameters()) / 1e6,
            "of_this_machine's_limit": f"{rate / limit:.0%}",
        }
        if size == PAPER_SIZE and not train:
            paper = PAPER.get(name, (None, None, None))
            extra |= {"paper_GFLOPs": paper[0], "paper_MB": paper[1], "paper_ms": paper[2]}
        rows.append(
            Measurement(
                name,
                seconds=timings[name].seconds,
                ratio=timings[name].seconds / ours,
                spread=timings[name].spread,
                gflops=operations,
                peak_mb=peak_megabytes(
                    "ordnet.bench.block:prepare",
                    name=name, channels=channels, height=height, width=width, train=train,
                ),
                extra=extra,
            )
        )  # fmt: skip
    return rows


def prepare(
    name: str, channels: int, height: int, width: int, train: bool, warm_up: bool = True
) -> Callable[[], Tensor | None]:
    """One pass of a method on random features, ready to be called."""
    torch.manual_seed(0)
    module = METHODS[name](channels).train(train)
    if not train and isinstance(module, Block):
        module.prepare()  # as everything that parses pictures does
    x = torch.randn(1, channels, height, width)

    def infer(features: Tensor = x) -> Tensor:
        with torch.inference_mode():
            return module(features)

    def step(features: Tensor = x) -> None:
        module.zero_grad(set_to_none=True)
        y = module(features.detach().requires_grad_())
        y.backward(torch.ones_like(y))

    call = step if train else infer
    if warm_up:  # kernels choose their code and reserve their own buffers on first use
        call(torch.randn(2, channels, 16, 16))
    return call


def compare_sizes(channels: int, sides: list[int], repeats: int, train: bool) -> list[Measurement]:
    """One row for each form and each side of a square map."""
    if len(sides) < 2 or min(sides) < 2:
        raise OrdnetError(f"a growth needs at least two sides of two or more positions, got {sides}")
    contestants = {
        f"{form} {side}x{side}": prepare(form, channels, side, side, train, warm_up=False)
        for side in sorted(set(sides))
        for form in FORMS
        if form == FORMS[0] or 4 * side**4 <= LITERAL_BYTES
    }
    timings = interleaved(contestants, repeats)
    rows = []
    for name, timing in timings.items():
        form, size = name.rsplit(" ", 1)
        ours = timings[f"{FORMS[0]} {size}"].seconds
        side = int(size.split("x")[0])
        extra = {"form": form, "positions": side * side}
        rows.append(Measurement(name, timing.seconds, timing.seconds / ours, timing.spread, extra=extra))
    return rows


def exponents(rows: list[Measurement]) -> dict[str, float]:
    """The slope of log time over log positions for each form that has two sizes or more."""
    fitted = {}
    for form in FORMS:
        points = [
            (math.log(row.extra["positions"]), math.log(row.seconds))
            for row in rows
            if row.extra["form"] == form and row.seconds
        ]
        if len(points) > 1:
            fitted[form] = _slope(points)
    return fitted


def _slope(points: list[tuple[float, float]]) -> float:
    """The slope of the least-squares line through the points."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)
