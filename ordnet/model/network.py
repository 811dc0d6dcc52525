"""The paper's figure: picture → dilated backbone → omni-range block → FCN head → upsampling → scores."""

import torch.nn.functional as F
from torch import Tensor, nn

from ordnet.config import ModelConfig
from ordnet.model.backbone import Backbone


class Network(nn.Module):
    """Receives finished parts; `net(image)` returns class scores (B, K, H, W) for pictures of any size."""

    def __init__(
        self,
        backbone: Backbone,
        neck: nn.Module,
        block: nn.Module,
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
        self.head = head
        self.auxiliary = auxiliary
        self.align_corners = align_corners
        self.config = config
        self.classes = classes

    def forward(self, image: Tensor) -> Tensor:
        """Normalised pictures (B, 3, H, W) → scores (B, K, H, W)."""
        return self.upsampled(self.small_scores(image), image)

    def small_scores(self, image: Tensor) -> Tensor:
        """Scores at the features' size (B, K, h, w), for those who upsample themselves."""
        return self.head(self.block(self.block_input(image)))

    def block_input(self, image: Tensor) -> Tensor:
        """The features (B, C, h, w) that the block attends to."""
        _, features = self.backbone(image)
        return self.neck(features)

    def training_scores(self, image: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores and, where there is an auxiliary head, its scores from the third stage."""
        third, features = self.backbone(image)
        scores = self.head(self.block(self.neck(features)))
        auxiliary = None if self.auxiliary is None else self.upsampled(self.auxiliary(third), image)
        return self.upsampled(scores, image), auxiliary

    def upsampled(self, scores: Tensor, image: Tensor) -> Tensor:
        return F.interpolate(scores, size=image.shape[2:], mode="bilinear", align_corners=self.align_corners)
