"""Operations of a network or block: 2 x multiply-adds of its convolutions and matrix products."""

import copy

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


def gflops(module: nn.Module, *shape: int) -> float:
    """Operations of one forward pass on an input of this shape, in 10⁹. Nothing is computed: shapes are enough."""
    shadow = copy.deepcopy(module).to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        shadow(torch.empty(shape, device="meta"))
    return counter.get_total_flops() / 1e9
