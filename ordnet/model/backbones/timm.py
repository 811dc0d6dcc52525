"""Any timm model that gives feature maps, as a backbone: `timm:NAME` (extra `timm`). Nothing is ever downloaded.

Pictures are padded with zeros, which is the mean colour, to a multiple of the output stride, and the maps cropped:
every model then gives ceil(side / stride) positions, however it rounds.
"""

import copy
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ordnet.errors import OrdnetError
from ordnet.model.parts import Backbone

PREFIX = "timm:"
USUAL_STRIDE = 8
"""The output stride that is tried where none is asked for."""
FINEST = 4
"""Maps at smaller strides are left out: they are large, and describe little more than single pixels."""
_FARTHEST = 1024
"""How far a model sees is measured up to this many pixels to each side."""
_SAME = 0.01
"""Standard deviations by which a tile's features may differ from the whole picture's: more is not rounding."""
# Options that make models built for one picture size take any; each model knows one of them, or none.
_ANY_SIZE: tuple[dict[str, bool], ...] = ({"dynamic_img_size": True}, {"strict_img_size": False}, {})


class TimmBackbone(Backbone):
    """The feature maps of a timm model: its last two, and the finer ones at strides of 4 and more."""

    keeps_norms = True

    def __init__(self, name: str, output_stride: int | None = None) -> None:
        """`name` is timm's, without the prefix. Without an output stride, 8 is tried; a model that cannot be dilated
        that far keeps its own, with a warning."""
        super().__init__()
        self.name = name
        self.features = _create(name, output_stride)
        self.channels = tuple(self.features.feature_info.channels())
        self.strides = _strides(self.features)

    def forward(self, image: Tensor, levels: Sequence[int] | None = None) -> list[Tensor]:
        height, width = image.shape[2:]
        missing = (0, -width % self.output_stride, 0, -height % self.output_stride)
        maps = [
            features[:, :, : -(-height // stride), : -(-width // stride)]
            for features, stride in zip(_maps(self.features, F.pad(image, missing)), self.strides, strict=True)
        ]
        count = len(maps)
        return maps if levels is None else [maps[level] for level in sorted({level % count for level in levels})]

    def first_stages(self, count: int) -> list[nn.Module]:
        """None: a timm model runs as a whole."""
        return []

    def with_synchronised_norms(self) -> Backbone:
        """timm's norms may carry an activation, which its own function keeps."""
        from timm.layers.norm_act import convert_sync_batchnorm

        return convert_sync_batchnorm(self)

    @cached_property
    def reach(self) -> int | None:
        """How many pixels to each side an output depends on; None where tiles of a picture do not give what the whole
        gives: the model looks at everything at once (attention, global pooling), at more than 1,000 px, or at
        windows that are counted from the picture's corner. Measured, since timm does not say.
        """
        stride, measured = self.output_stride, copy.deepcopy(self).eval()
        strip = next(self.parameters()).new_zeros(1, 3, 8 * stride, 2 * _FARTHEST // stride * stride)
        middle = _FARTHEST // stride * stride
        strip[:, :, :, middle] = float("nan")  # NaN spreads to every output that depends on it, whatever the weights
        with torch.inference_mode():
            touched = measured(strip)[-1].isnan().any(dim=1).any(dim=1)[0].nonzero()
            # one step more: another pixel between the same two outputs may reach farther
            steps = int((touched - middle // stride).abs().max()) + 1
            if steps * stride >= _FARTHEST - stride:
                return None
            # a generator of its own, so that the global random state does not change
            strip = torch.randn(*strip.shape[:3], (steps + 8) * stride, generator=torch.Generator().manual_seed(0)).to(
                strip
            )
            whole, tile = measured(strip)[-1][..., steps + 1 :], measured(strip[..., stride:])[-1][..., steps:]
        return steps * stride if (whole - tile).abs().max() < _SAME * whole.std() else None


def pretrained_repository(name: str) -> str | None:
    """The hub repository with a timm model's default weights; None where it has none."""
    config = _library().get_pretrained_cfg(name)
    repository = config.hf_hub_id if config is not None else None
    if repository == "timm/":
        repository = f"timm/{config.architecture}.{config.tag}"
    return repository


def _create(name: str, asked: int | None) -> Any:
    """The model, dilated to the output stride that was asked for."""
    timm = _library()
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models())
        hint = f"; close to it are {', '.join(close)}" if close else ""
        raise OrdnetError(f"timm {timm.__version__} has no model {name!r}{hint}")
    wanted = asked or USUAL_STRIDE
    model, _ = _attempt(timm, name, {"output_stride": wanted})
    if model is not None and _strides(model)[-1] == wanted:
        return model
    model, reason = _attempt(timm, name, {})
    if model is None:
        raise OrdnetError(f"timm:{name} does not give feature maps of pictures of any size ({reason})")
    own = _strides(model)[-1]
    if asked not in (None, own):
        raise OrdnetError(
            f"timm:{name} has output stride {own}, and cannot be given {asked}; leave model.output_stride out, "
            f"or choose another backbone"
        )
    if asked is None and own != wanted:
        warnings.warn(f"timm:{name} has output stride {own}; it cannot be given {wanted}", stacklevel=2)
    return model


def _attempt(timm: Any, name: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The model if it takes these options and pictures of any size; otherwise None and the reason."""
    reason = ""
    for way in _ANY_SIZE if timm.get_pretrained_cfg(name).fixed_input_size else _ANY_SIZE[-1:]:
        try:
            given = {"pretrained": False, "features_only": True, **options, **way}
            with torch.random.fork_rng(devices=[]):  # a trial must not change the weights of the kept one
                levels = _levels(timm.create_model(name, out_indices=(-2, -1), **given))
            model = timm.create_model(name, out_indices=levels, **given)
            _try(model)
        except Exception as error:  # models assert, refuse arguments, or fail somewhere inside
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        else:
            return model, ""
    return None, reason


def _try(model: Any) -> None:
    """Raise an error unless a picture of an unusual size gives maps of the promised shapes."""
    stride = _strides(model)[-1]
    rows = -(-64 // stride)
    image = next(model.parameters()).new_zeros(1, 3, rows * stride, (rows + 1) * stride)
    model.eval()
    with torch.no_grad():
        found = [tuple(features.shape[1:]) for features in _maps(model, image)]
    model.train()
    expected = [
        (channels, image.shape[2] // step, image.shape[3] // step)
        for channels, step in zip(model.feature_info.channels(), _strides(model), strict=True)
    ]
    if found != expected:
        raise ValueError(f"for {tuple(image.shape[2:])} px it gives maps of {found}, expected {expected}")


def _strides(model: Any) -> tuple[int, ...]:
    return tuple(model.feature_info.reduction())


def _levels(model: Any) -> tuple[int, ...]:
    """Which of all the model's maps make its pyramid: the last two, and before them the last one at every stride."""
    strides = [entry["reduction"] for entry in model.feature_info.info]
    *rest, third, last = range(len(strides))
    finer = {strides[i]: i for i in rest if FINEST <= strides[i] < strides[third]}
    return (*finer.values(), third, last)


def _maps(model: Any, image: Tensor) -> list[Tensor]:
    """The maps as (B, C, H, W); some models keep their channels last."""
    maps: list[Tensor] = model(image)
    last = getattr(model, "output_fmt", None) == "NHWC"
    return [features.permute(0, 3, 1, 2) for features in maps] if last else maps


def _library() -> Any:
    try:
        import timm
    except ImportError as error:
        raise OrdnetError(f"timm backbones need the extra `timm`: pip install 'ordnet[timm]' ({error})") from None
    except Exception as error:  # a torchvision that was made for another torch raises RuntimeError
        raise OrdnetError(
            f"timm is installed, but cannot be imported: {error}. If that is torchvision's, it was built for another "
            f"torch: install the two from the same index"
        ) from None
    return timm
