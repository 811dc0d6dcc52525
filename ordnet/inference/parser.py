"""A trained network as something to call: picture in, parse out."""

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
from PIL import Image

from ordnet.data.pictures import open_rgb, upright_rgb
from ordnet.errors import OrdnetError
from ordnet.inference import protocols, stream
from ordnet.inference.explain import Explainer, why_not
from ordnet.inference.parse import Parse
from ordnet.inference.upsample import numbers
from ordnet.model import checkpoint
from ordnet.model.card import find as find
from ordnet.model.network import Network, for_inference
from ordnet.model.parts import Area
from ordnet.model.pixels import KnownSize, LongSide, Seen, known_size, seen_by, to_input
from ordnet.picture.overlay import Colour

if TYPE_CHECKING:
    from ordnet.inference.onnx.parser import OnnxParser

Picture = str | Path | BinaryIO | Image.Image | np.ndarray

WHOLE_UP_TO = 4_000_000
"""Pixels of the largest picture that goes through the network in one pass; larger ones are streamed. One pass takes
about 0.15 GB per megapixel with mobilenet_v2 and 0.5 GB with resnet50s, whatever the number of classes."""
MOST_SCORES = 500_000_000
"""Numbers of the largest score map that is given out: 2 GB."""


class Parser:
    """`parser(picture)` → Parse. Threads may share one parser.

    Pictures smaller than the network can take (one that is to be cut into 2 x 2 patches needs two positions on each
    side) are padded by repeating their last row and column; the result is cropped.
    """

    def __init__(
        self,
        net: Network,
        classes: tuple[str, ...],
        colours: tuple[Colour, ...],
        *,
        device: str | None = None,
        protocol: str | protocols.Protocol = "whole",
        whole_up_to: int = WHOLE_UP_TO,
        tile: int = stream.TILE,
        halo: int | None = None,
        long_side: int | None = None,
        least_long_side: int | None = None,
    ) -> None:
        """`device` is cpu, cuda, cuda:1, mps …; by default the fastest there is. Pictures much larger than `long_side`
        are seen in a smaller copy, those much smaller than `least_long_side` in a larger one. With the `whole`
        protocol, what then has more than `whole_up_to` pixels is streamed, in tiles of `tile` px with a `halo`."""
        self._how = protocols.protocol(protocol) if isinstance(protocol, str) else protocol
        self.device = find_device(device)
        self.net = for_inference(net, self.device)
        self.classes = classes
        self.colours = colours
        self.protocol = self._how.name
        self.whole_up_to = whole_up_to
        self.tile = tile
        self.halo = halo
        self.known_size = KnownSize(long_side, least_long_side)
        self._least_side = math.ceil(net.least_side / self._how.smallest_scale)

    def __repr__(self) -> str:
        return f"<Parser of {len(self.classes)} classes ({', '.join(self.classes[:3])} …) on {self.device}>"

    @property
    def long_side(self) -> int | None:
        """The long side to which larger pictures are reduced."""
        return self.known_size.most

    @property
    def explains(self) -> bool:
        """Whether a parse can show what a position attends to."""
        return why_not(self.net) is None

    def __call__(
        self,
        picture: Picture,
        progress: stream.Progress | None = None,
        confidence: bool = False,
        attention: bool = False,
    ) -> Parse:
        """A file, an opened file, a PIL image or an array (H, W, 3) uint8. `progress` is called for every tile of a
        streamed picture. With `confidence` the parse also has the probability of each pixel's class; with `attention`
        it keeps what `Parse.attention` needs, which otherwise runs the network once more."""
        return self._parse(read(picture), name_of(picture), progress, confidence, attention)

    def many(self, pictures: Iterable[Picture], batch: int | None = None) -> Iterator[Parse]:
        """One parse after the other, in order; the next picture is read while the network works.

        Up to `batch` neighbours of one size go through the network together: a GPU gains by it, a CPU does not. The
        default is 8 on a GPU and 1 on a CPU.
        """
        batch = batch or (1 if self.device.type == "cpu" else 8)
        waiting: list[tuple[np.ndarray, str]] = []
        for pixels, name in read_ahead(pictures):
            fits = (len(waiting) + 1) * pixels[..., 0].size <= self.whole_up_to
            if waiting and not (fits and pixels.shape == waiting[0][0].shape):
                yield from self._together(waiting)
                waiting = []
            waiting.append((pixels, name))
            if len(waiting) == batch:
                yield from self._together(waiting)
                waiting = []
        yield from self._together(waiting)

    def scores(self, picture: Picture) -> np.ndarray:
        """The scores (K, H, W) float32 of one pass, at the picture's own size, whatever the parser's protocol."""
        pixels = read(picture)
        height, width = pixels.shape[:2]
        refuse_too_many_scores(len(self.classes), height, width)
        seen = self._seen(pixels)
        if seen.pixels[..., 0].size > self.whole_up_to:
            scores = stream.scores(self.net, seen.pixels, self.tile, self.halo, size=seen.size)
        else:
            with torch.inference_mode():
                small = numbers(self.net.small_scores(to_input(seen.pixels, self.net)))
                scores = self.net.upsampled(small, seen.size)[0]
        return scores[:, :height, :width].float().cpu().numpy()

    def label_parts(
        self, seen: stream.Pixels, size: tuple[int, int], step: int, progress: stream.Progress | None = None
    ) -> Iterator[tuple[Area, np.ndarray]]:
        """Class ids of a picture of this `size` that is never held as a whole, area by area (stream.label_parts).

        `seen` is the picture, or the smaller copy of it that the network is to see.
        """
        return stream.label_parts(
            self.net, seen, self.tile, self.halo, progress, size=size, whole_up_to=self.whole_up_to, step=step
        )

    @property
    def streams(self) -> bool:
        """Whether `label_parts` may be called: the other protocols need the whole picture."""
        return self.protocol == "whole"

    @property
    def least_side(self) -> int:
        """The shortest side in pixels that the network takes; smaller pictures are padded."""
        return self._least_side

    def _together(self, waiting: list[tuple[np.ndarray, str]]) -> Iterator[Parse]:
        if len(waiting) > 1 and self.protocol == "whole":
            seen = [self._seen(pixels) for pixels, _ in waiting]
            images = torch.cat([to_input(each.pixels, self.net) for each in seen])
            found = protocols.whole_labels(self.net, images, seen[0].size)
            for (pixels, name), labels in zip(waiting, found, strict=True):
                yield self._made(pixels, labels, name)
        else:
            yield from (self._parse(pixels, name, None) for pixels, name in waiting)

    def _parse(
        self,
        pixels: np.ndarray,
        name: str,
        progress: stream.Progress | None,
        confidence: bool = False,
        attention: bool = False,
    ) -> Parse:
        seen = self._seen(pixels)
        features: list[torch.Tensor] = []
        sure = np.empty(seen.size, np.float16) if confidence else None
        if self.protocol == "whole" and seen.pixels[..., 0].size > self.whole_up_to:
            labels = stream.labels(self.net, seen.pixels, self.tile, self.halo, progress, sure, seen.size)
        else:
            look = features.append if attention and self.explains and self.protocol == "whole" else None
            image = to_input(seen.pixels, self.net)
            with torch.inference_mode():
                labels = protocols.labels(self.net, image, self._how, size=seen.size, confidence=sure, look=look)
        return self._made(pixels, labels, name, sure, features[0] if features else None)

    def _seen(self, pixels: np.ndarray) -> Seen:
        return seen_by(pixels, self.known_size, self._least_side)

    def _made(
        self,
        pixels: np.ndarray,
        labels: np.ndarray,
        name: str,
        confidence: np.ndarray | None = None,
        features: torch.Tensor | None = None,
    ) -> Parse:
        height, width = pixels.shape[:2]
        labels = labels[:height, :width]
        if confidence is not None:
            confidence = confidence[:height, :width]
        return Parse(
            pixels, labels, self.classes, self.colours, name, lambda: self.scores(pixels), confidence,
            LaterExplainer(self.net, pixels, self.whole_up_to, self.known_size, features),
        )  # fmt: skip


class LaterExplainer:
    """Makes an Explainer when called: from features (1, C, h, w) that a parse has kept, or else from the pixels."""

    def __init__(
        self,
        net: Network,
        pixels: np.ndarray,
        whole_up_to: int | None,
        known: KnownSize,
        features: torch.Tensor | None,
    ) -> None:
        self._make = partial(Explainer, net, pixels, known=known)
        self._whole_up_to = whole_up_to
        self._features = features

    @property
    def nbytes(self) -> int:
        return 0 if self._features is None else self._features.nbytes

    def __call__(self) -> Explainer:
        features, self._features = self._features, None  # they are not needed a second time
        return self._make(whole_up_to=self._whole_up_to) if features is None else self._make(features=features)


def load(name_or_path: str | Path, *, long_side: LongSide = None, **options: Any) -> "Parser | OnnxParser":
    """A parser from a checkpoint file, the name of a shipped model, or hf:user/name[@revision][/file]; `options` are
    Parser's.

    Pictures much larger or smaller than those the model was trained on are seen at that scale. Another `long_side` in
    pixels may be given, or "own", which leaves every picture at its own size.

    An .onnx file that `ordnet export` wrote gives an OnnxParser, which is called the same way.
    """
    file = find(name_or_path)
    if file.suffix == ".onnx":
        from ordnet.inference.onnx.parser import OnnxParser

        return OnnxParser(file, long_side=long_side, **options)
    found = checkpoint.load(file)
    most, least = known_size(long_side, found.about)
    return Parser(found.net, found.classes, found.colours, long_side=most, least_long_side=least, **options)


def refuse_too_many_scores(classes: int, height: int, width: int) -> None:
    if classes * height * width > MOST_SCORES:
        raise OrdnetError(
            f"the scores of {classes} classes at {width} x {height} px would take "
            f"{classes * height * width * 4 / 1e9:.1f} GB: cut the picture, or make it smaller"
        )


def read(picture: Picture) -> np.ndarray:
    """Whatever a parser takes → upright RGB (H, W, 3) uint8."""
    if isinstance(picture, np.ndarray):
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or picture.size == 0:
            advice = "Image.fromarray turns most other arrays into a picture"
            if picture.dtype.kind == "f":
                advice = "from values of 0..1 it is (255 * x).astype(np.uint8)"
            raise OrdnetError(
                f"expected an RGB array (H, W, 3) of uint8, got {picture.shape} of {picture.dtype}; {advice}"
            )
        return picture
    if isinstance(picture, Image.Image):
        if 0 in picture.size:
            raise OrdnetError(f"a picture of {picture.width} x {picture.height} pixels has nothing to parse")
        return np.asarray(upright_rgb(picture))
    if not isinstance(picture, str | Path) and not hasattr(picture, "read"):
        shape = tuple(getattr(picture, "shape", ()))
        advice = ""
        if shape:
            turned = "x[0].permute(1, 2, 0)" if len(shape) == 4 else "x" if shape[-1] == 3 else "x.permute(1, 2, 0)"
            advice = f" of shape {shape}; of a tensor of 0..255 it is {turned}.byte().numpy(), of 0..1 that of 255 * x"
        if isinstance(picture, list | tuple):
            advice = ": parser.many(pictures) takes several, and gives one parse after the other"
        kind = type(picture).__name__
        raise OrdnetError(
            f"a parser takes a file, a PIL image or an RGB array (H, W, 3) of uint8, not {kind!r}{advice}"
        )
    return np.asarray(open_rgb(picture))


def read_ahead(pictures: Iterable[Picture]) -> Iterator[tuple[np.ndarray, str]]:
    """Each picture's pixels and name; the next one is read in a thread while the caller is busy with this one."""
    with ThreadPoolExecutor(1) as pool:
        coming = None
        for picture in pictures:
            before, coming = coming, pool.submit(lambda picture: (read(picture), name_of(picture)), picture)
            if before:
                yield before.result()
        if coming:
            yield coming.result()


def name_of(picture: Picture) -> str:
    """The file's name without its ending, or "picture"."""
    return Path(picture).stem if isinstance(picture, str | Path) else "picture"


def find_device(name: str | None) -> torch.device:
    """The device of that name, if it exists; without a name the fastest there is."""
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        # torch answers with every device type it knows, or with advice for its own developers
        why = "" if reason.startswith(("Expected one of", "Could not run")) else f" ({reason})"
        raise OrdnetError(f"there is no device {name!r} here{why}; use cpu, or none to choose one") from None
    return device
