"""The networks of segmentation_models_pytorch (extra `smp`), trained and tested as ours are: `ordnet bench accuracy`.

Each has the library's own layers and defaults; encoder weights come from the file that our backbones take.
"""

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.network import labels_at
from ordnet.model.weights import WeightFile, torchvision_names

PREFIX = "smp-"
NETWORKS = {"smp-fpn": "FPN", "smp-deeplabv3plus": "DeepLabV3Plus", "smp-unet": "Unet", "smp-upernet": "UPerNet"}
"""The contestants' names, and the library's."""
ENCODER = "mobilenet_v2"
"""The backbone that both sides have, layer by layer."""
_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def import_smp() -> Any:
    """The library, or an error that says why it cannot be had."""
    try:
        _mend_torchvision()
        return importlib.import_module("segmentation_models_pytorch")
    except ImportError as error:
        raise OrdnetError(
            f"segmentation_models_pytorch is not installed ({error}); pip install 'ordnet[smp]'"
        ) from None
    except Exception as error:  # whatever its own imports met
        reason = str(error).partition("\n")[0]
        raise OrdnetError(f"segmentation_models_pytorch cannot be imported here ({reason})") from None


def _mend_torchvision() -> None:
    """Declare two operators on boxes that a torchvision built for another torch lacks, without which nothing of it can
    be imported. No segmentation network uses them."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in _OPERATORS:
            if not hasattr(torch.ops.torchvision, name):
                torch.library.define(f"torchvision::{name}", _SIGNATURE)


class SmpNetwork(nn.Module):
    """One of the library's networks, with what our training and testing ask of a network.

    Pictures are continued with zeros, which is the mean colour, to a multiple of the encoder's stride, and the scores
    are cut back. Losses at the scores' size are taken before the library's last upsampling, as with our networks.
    """

    align_corners = True
    """How the library's last layer upsamples."""

    def __init__(self, name: str, classes: int, file: WeightFile | None) -> None:
        super().__init__()
        self.classes = classes
        self.net: Any = getattr(import_smp(), NETWORKS[name])(ENCODER, encoder_weights=None, classes=classes)
        if file:
            load_encoder(self.net.encoder, file)

    @property
    def backbone(self) -> nn.Module:
        """What learns at the backbone's rate."""
        encoder: nn.Module = self.net.encoder
        return encoder

    @property
    def stride(self) -> int:
        """How much smaller than the picture the scores are before the last upsampling."""
        return round(float(getattr(self.net.segmentation_head[1], "scale_factor", 1)))

    def forward(self, image: Tensor) -> Tensor:
        """Normalised pictures (B, 3, H, W) → scores (B, K, H, W)."""
        height, width = image.shape[2:]
        scores: Tensor = self.net(self._padded(image))
        return scores[:, :, :height, :width]

    def training_scores(self, image: Tensor, small: bool = False) -> tuple[Tensor, None]:
        """Scores at the picture's size, or `small` ones before upsampling; there is no auxiliary head."""
        if not small:
            return self(image), None
        height, width = image.shape[2:]
        scores = self.net.segmentation_head[0](self.net.decoder(self.net.encoder(self._padded(image))))
        return scores[:, :, : -(-height // self.stride), : -(-width // self.stride)], None

    def labels_at_scores(self, labels: Tensor) -> Tensor:
        return labels_at(labels, self.stride, self.align_corners)

    def _padded(self, image: Tensor) -> Tensor:
        height, width = image.shape[2:]
        stride = self.net.encoder.output_stride
        return F.pad(image, (0, -width % stride, 0, -height % stride))


def load_encoder(encoder: nn.Module, file: WeightFile) -> None:
    """Fill every tensor of the encoder, whose names are torchvision's; a file that lacks one is no fair start."""
    given = torchvision_names(file.tensors)
    own = {key: value for key, value in encoder.state_dict().items() if not key.endswith("num_batches_tracked")}
    wrong = [key for key, value in own.items() if key not in given or given[key].shape != value.shape]
    if wrong:
        raise OrdnetError(
            f"{file.path} lacks {len(wrong)} of the encoder's {len(own)} tensors, such as {wrong[0]}: give smp's "
            f"networks the whole ImageNet weights (ORDNET_HUB, or --set model.weights=FILE), or leave them out with "
            f"--contestants"
        )
    encoder.load_state_dict({key: given[key].to(value.dtype) for key, value in own.items()}, strict=False)
