"""The paper's figure: picture → dilated backbone → omni-range block → FCN head → upsampling → scores.

`for_inference` returns a copy that gives the same scores faster and in less memory. It is not for training or saving.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ordnet.config import ModelConfig
from ordnet.model.decoder import Decoder, Join
from ordnet.model.parts import Backbone, Block


class Network(nn.Module):
    """Receives finished parts; `net(image)` returns class scores (B, K, H, W) for pictures of any size."""

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        block: Block,
        decoder: Decoder,
        head: nn.Module,
        auxiliary: nn.Module | None,
        align_corners: bool,
        config: ModelConfig,
        classes: int,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.neck = neck
        self.block = block
        self.decoder = decoder
        self.head = head
        self.auxiliary = auxiliary
        self.align_corners = align_corners
        self.config = config
        self.classes = classes

    def forward(self, image: Tensor) -> Tensor:
        """Normalised pictures (B, 3, H, W) → scores (B, K, H, W)."""
        return self.upsampled(self.small_scores(image), image.shape[2:])

    def small_scores(self, image: Tensor, look: Callable[[Tensor], object] | None = None) -> Tensor:
        """Scores before upsampling (B, K, h, w), `stride` times smaller; `look` is called with the block's input."""
        maps = self.backbone(image, (*self.decoder.levels, *self.neck_levels))
        finer, features = maps[: len(self.decoder.levels)], self.joined(maps[len(self.decoder.levels) :])
        if look:
            look(features)
        return self.decoded(self.block(features), finer)

    def block_input(self, image: Tensor) -> Tensor:
        """The features (B, C, h, w) that the block attends to."""
        return self.joined(self.backbone(image, self.neck_levels))

    def joined(self, maps: Sequence[Tensor]) -> Tensor:
        """The maps of `neck_levels`, fine to coarse → the block's input."""
        *finer, last = maps
        return self.neck(last, finer) if finer else self.neck(last)

    def decoded(self, context: Tensor, finer: Sequence[Tensor]) -> Tensor:
        """The block's output and the decoder's finer maps → small scores."""
        return self.head(self.decoder(context, finer))

    def training_scores(self, image: Tensor, small: bool = False) -> tuple[Tensor, Tensor | None]:
        """Scores at the picture's size, and the auxiliary head's (from the last map but one), or None without one.

        With `small`, both are as small as they come: the auxiliary scores have the size of the map they are made from.
        """
        if self.auxiliary is None:
            return self.small_scores(image) if small else self(image), None
        count = len(self.backbone.strides)
        levels = sorted({*self.decoder.levels, *self.neck_levels, count - 2})
        maps = dict(zip(levels, self.backbone(image, levels), strict=True))
        context = self.block(self.joined([maps[level] for level in self.neck_levels]))
        scores = self.decoded(context, [maps[level] for level in self.decoder.levels])
        auxiliary = self.auxiliary(maps[count - 2])
        if small:
            return scores, auxiliary
        size = image.shape[2:]
        return self.upsampled(scores, size), self.upsampled(auxiliary, size)

    def first_stages(self, count: int) -> list[nn.Module]:
        """The backbone's, which training may leave as they are."""
        return self.backbone.first_stages(count)

    def labels_at_scores(self, labels: Tensor) -> Tensor:
        """Class ids (B, H, W) → (B, h, w): those of the pixels on which the small scores lie when upsampled."""
        return labels_at(labels, self.stride, self.align_corners)

    def upsampled(self, scores: Tensor, size: Sequence[int]) -> Tensor:
        return F.interpolate(scores, size=tuple(size), mode="bilinear", align_corners=self.align_corners)

    @property
    def stride(self) -> int:
        """How much smaller than the picture the small scores are: they have ceil(side / stride) positions."""
        return self.decoder.stride

    @property
    def neck_levels(self) -> tuple[int, ...]:
        """The maps of the backbone that make the block's input, fine to coarse."""
        finer = self.neck.levels if isinstance(self.neck, Join) else ()
        return *finer, len(self.backbone.strides) - 1

    @property
    def block_stride(self) -> int:
        """How much smaller than the picture the block's map is."""
        return self.neck.stride if isinstance(self.neck, Join) else self.backbone.output_stride

    @property
    def least_side(self) -> int:
        """The shortest side in pixels that gives every patch of the block a position."""
        return (self.block.patches - 1) * self.block_stride + 1


def labels_at(labels: Tensor, stride: int, align_corners: bool) -> Tensor:
    """Class ids (B, H, W) → (B, h, w): those of the pixels on which scores `stride` times smaller lie if upsampled."""
    for side, length in enumerate(labels.shape[1:], start=1):
        count = -(-length // stride)
        place = torch.arange(count, device=labels.device)
        if align_corners:
            place = (place * (length - 1) + max(count - 1, 1) // 2) // max(count - 1, 1)
        else:
            place = ((2 * place + 1) * length // (2 * count)).clamp(max=length - 1)
        labels = labels.index_select(side, place)
    return labels


AnyModule = TypeVar("AnyModule", bound=nn.Module)
Slot = tuple[nn.Module, str]
"""A module and the name of one of its children."""


def for_inference(net: Network, device: torch.device | None = None) -> Network:
    """A copy on the device, in evaluation mode: batch norms are folded into the convolutions before them, products of
    weights are computed once, and channels come last in memory.

    The scores are the same up to rounding. Folded weights no longer fit the settings: keep the original for saving.
    """
    ready = folded(net, device)
    ready.block.prepare()
    return ready


def folded(net: AnyModule, device: torch.device | None = None) -> AnyModule:
    """`for_inference` without `prepare`, for any module whose children register their layers in the order they run."""
    ready = copy.deepcopy(net).eval().requires_grad_(False).to(device)
    parts = [part for part in ready.children() if not getattr(part, "keeps_norms", False)]
    for conv, norm in [pair for part in parts for pair in _pairs(part)]:
        setattr(*conv, fuse_conv_bn_eval(getattr(*conv), getattr(*norm)))
        setattr(*norm, nn.Identity())
    return ready.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _pairs(part: nn.Module) -> Iterator[tuple[Slot, Slot]]:
    """Convolutions, each with the batch norm that comes right after it."""
    for module in part.modules():
        if isinstance(module, nn.Sequential):
            neighbours = list(pairwise(name for name, _ in module.named_children()))
        else:  # torchvision's names, which the stems and blocks of all ResNets have
            neighbours = [(f"conv{i}", f"bn{i}") for i in (1, 2, 3)]
        for before, after in neighbours:
            if isinstance(getattr(module, after, None), nn.BatchNorm2d):
                conv = _last(module, before)
                if isinstance(getattr(*conv), nn.Conv2d):
                    yield conv, (module, after)


def _last(module: nn.Module, name: str) -> Slot:
    """Where the layer is kept: a deep stem is a sequence, whose last layer comes before the batch norm."""
    child = getattr(module, name)
    return (child, str(len(child) - 1)) if isinstance(child, nn.Sequential) else (module, name)
