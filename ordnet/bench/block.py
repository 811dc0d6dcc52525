"""The paper's overhead comparison: our block in both forms beside its rivals, on one feature map."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ordnet.bench.measure import Row, interleaved, peak_megabytes
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


def run(channels: int, height: int, width: int, repeats: int, train: bool) -> list[Row]:
    """One row per method; ours first. `train` measures forward and backward instead of inference."""
    size = (channels, height, width)
    if min(height, width) < 2 or channels < 8:
        raise OrdnetError(
            f"the methods need at least 8 channels and 2x2 positions, got {channels} and {height}x{width}"
        )
    timings = interleaved({name: prepare(name, *size, train, warm_up=False) for name in METHODS}, repeats)
    ours = timings["ORDNet factored"].seconds
    rows = []
    for name, make in METHODS.items():
        with torch.device("meta"):
            module = make(channels)
        extra: dict[str, object] = {"params_M": sum(p.numel() for p in module.parameters()) / 1e6}
        if size == PAPER_SIZE and not train:
            paper = PAPER.get(name, (None, None, None))
            extra |= {"paper_GFLOPs": paper[0], "paper_MB": paper[1], "paper_ms": paper[2]}
        rows.append(
            Row(
                name,
                seconds=timings[name].seconds,
                ratio=timings[name].seconds / ours,
                spread=timings[name].spread,
                gflops=gflops(module, 1, *size),
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
