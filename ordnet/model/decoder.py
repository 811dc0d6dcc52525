"""What stands between block and head: nothing, as in the paper."""

from collections.abc import Sequence

from torch import Tensor, nn


class Decoder(nn.Module):
    """The block's map and finer ones of the backbone → the map that the head reads."""

    levels: tuple[int, ...]
    """Which maps of the pyramid it takes beside the last one, fine to coarse."""
    stride: int
    """How much smaller than the picture its output is."""
    out_channels: int
    reach: int
    """How many positions of the block's map to each side an output depends on."""

    def forward(self, x: Tensor, finer: Sequence[Tensor]) -> Tensor:
        raise NotImplementedError


class PlainDecoder(Decoder):
    """The paper's network: the head reads the block's map itself."""

    levels = ()
    reach = 0

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.out_channels = channels
        self.stride = stride

    def forward(self, x: Tensor, finer: Sequence[Tensor]) -> Tensor:
        return x
