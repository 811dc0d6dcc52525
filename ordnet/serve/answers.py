"""What the API answers with: its JSON in typed models, its pictures as PNG, and which of the two a request asks for."""

import base64
import io

import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field

import ordnet
from ordnet.inference.explain import Attention
from ordnet.picture.overlay import QUICK_PNG
from ordnet.serve.engine import Engine, Parsed, hexadecimal
from ordnet.serve.guard import Limits, Refusal

JSON, PNG = "application/json", "image/png"
_DRAWING = 256
"""The longest side in pixels of an attention map."""
_PNG = "A PNG file in base64."


class Answer(BaseModel):
    """A JSON answer."""

    model_config = ConfigDict(frozen=True)


class Problem(Answer):
    """Every answer other than 200."""

    error: str = Field(description="What is wrong, and what to do, in plain words.")


class Health(Answer):
    """What /healthz says."""

    status: str = Field(description='"ok" whenever the server answers.')
    version: str
    working: bool = Field(description="Whether a picture is being computed.")
    requests: int = Field(description="Requests under way, those that are computed among them.")
    uploads: int = Field(description="Uploads that are not complete yet.")
    progress: float | None = Field(description="How far the present one is, 0 to 1, where it is known: large pictures.")


class ModelClass(Answer):
    """A class that the model tells apart."""

    id: int = Field(description="The value of its pixels in a label map.")
    name: str
    colour: str = Field(description="As #rrggbb.")


class LimitsAnswer(Answer):
    """The server's bounds."""

    bytes: int
    pixels: int
    queue: int
    seconds: float


class ModelAnswer(Answer):
    """What /v1/model says."""

    name: str
    models: list[str] = Field(description="All models that this server has; the first answers unless one is named.")
    version: str = Field(description="Of ordnet.")
    classes: list[ModelClass]
    protocol: str = Field(description="How a picture is tested: whole, multiscale or encnet.")
    explains: bool = Field(description="Whether /v1/attention works with this model.")
    limits: LimitsAnswer


class Share(ModelClass):
    """A class that occurs in a picture."""

    share: float = Field(description="Of the picture's pixels, 0 to 1.")


class ParseAnswer(Answer):
    """What /v1/parse says."""

    picture: str = Field(description="SHA-256 of the file; /v1/attention takes it in place of the file for a while.")
    width: int
    height: int
    classes: list[Share] = Field(description="The classes that occur, largest first.")
    model: str
    protocol: str
    seconds: float = Field(description="Spent on decoding and parsing, without waiting.")
    labels: str | None = Field(None, description=_PNG + " Grey values are class ids. With ?labels=true.")
    confidence: str | None = Field(
        None, description=_PNG + " Grey values 0 to 255 are probabilities 0 to 1. With ?confidence=true."
    )


class MapAnswer(Answer):
    """Numbers over the picture, as a drawing and in figures."""

    low: float = Field(description="What grey value 0 of the map stands for.")
    high: float = Field(description="What grey value 255 stands for.")
    min: float
    mean: float
    max: float
    map: str = Field(description=_PNG + " Drawn over the whole picture, made smaller where that is large.")


class RangeAnswer(MapAnswer):
    """The attention weights of one range."""

    strongest: tuple[int, int] = Field(description="x and y of the pixel whose weight has the largest magnitude.")
    weight: float = Field(description="That weight, with its sign.")


class GateAnswer(MapAnswer):
    """The gate of the long range."""

    here: float = Field(description="Of the position that was asked for.")
    norm: str = Field(description="sigmoid or softmax.")
    closed: bool = Field(description="Whether next to nothing of the long range passes at that position.")


class AttentionAnswer(Answer):
    """What /v1/attention says."""

    picture: str
    x: int
    y: int
    name: str = Field(description="The class of the pixel.")
    confidence: float | None = Field(description="The probability of that class.")
    width: int
    height: int
    positions: tuple[int, int] = Field(description="Rows and columns of the network's map.")
    scale: float = Field(
        description="Sides of the copy the network attended in, by the picture's; above 1 if enlarged."
    )
    similarity: str = Field(description="dot (weights have a sign) or softmax (weights are shares).")
    long: RangeAnswer | None = Field(description="Weights over the whole picture.")
    middle: RangeAnswer | None = Field(description="Weights within the patch; meaningless outside it.")
    patch: tuple[int, int, int, int] | None = Field(
        description="Left, top, right and bottom of the patch in pixels, the last two exclusive."
    )
    gate: GateAnswer | None = Field(description="What the long range is multiplied with at every position.")


def model_answer(name: str, engine: Engine, limits: Limits, models: list[str]) -> ModelAnswer:
    parser = engine.parser
    classes = [
        ModelClass(id=number, name=each, colour=hexadecimal(colour))
        for number, (each, colour) in enumerate(zip(parser.classes, parser.colours, strict=True))
    ]
    bounds = LimitsAnswer(bytes=limits.bytes, pixels=limits.pixels, queue=limits.queue, seconds=limits.seconds)
    return ModelAnswer(
        name=name, models=models, version=ordnet.__version__, classes=classes, protocol=parser.protocol,
        explains=parser.explains, limits=bounds,
    )  # fmt: skip


def parse_answer(parsed: Parsed, model: ModelAnswer, labels: bool, confidence: bool) -> ParseAnswer:
    parse = parsed.parse
    by_name = {each.name: each for each in model.classes}
    height, width = parse.labels.shape
    sure = parse.confidence if confidence else None
    return ParseAnswer(
        picture=parsed.key, width=width, height=height,
        classes=[Share(**by_name[name].model_dump(), share=share) for name, share in parse.areas().items()],
        model=model.name, protocol=model.protocol, seconds=parsed.seconds,
        labels=text_png(parse.labels) if labels else None,
        confidence=None if sure is None else text_png(_bytes(sure, 0.0, 1.0)),
    )  # fmt: skip


def attention_answer(parsed: Parsed, found: Attention) -> AttentionAnswer:
    x, y = found.x, found.y
    sure = parsed.parse.confidence
    height, width = parsed.parse.labels.shape
    long = middle = gate = None
    if found.long is not None:
        long = _range(found, found.long)
    if found.middle is not None:
        middle = _range(found, found.middle)
    if found.gate is not None:
        drawn = _drawn(found, found.gate, *found.gate_range())
        gate = GateAnswer(
            **drawn.model_dump(), here=found.gate_here or 0.0, norm=found.gate_norm or "", closed=found.closed
        )
    return AttentionAnswer(
        picture=parsed.key, x=x, y=y, name=found.class_here or "",
        confidence=None if sure is None else float(sure[y, x]), width=width, height=height,
        positions=(found.places.shape[0], found.places.shape[1]), scale=found.scale, similarity=found.similarity,
        long=long, middle=middle, patch=found.patch, gate=gate,
    )  # fmt: skip


def _range(found: Attention, weights: np.ndarray) -> RangeAnswer:
    """Zero is in the middle of the grey values where weights have signs."""
    x, y, weight = found.strongest(weights)
    high = abs(weight)
    drawn = _drawn(found, weights, -high if found.similarity == "dot" else 0.0, high)
    return RangeAnswer(**drawn.model_dump(), strongest=(x, y), weight=weight)


def _drawn(found: Attention, weights: np.ndarray, low: float, high: float) -> MapAnswer:
    """A map over the whole picture, and its figures."""
    sides = found.pixels.shape[:2]
    factor = min(1.0, _DRAWING / max(sides))
    height, width = (max(1, round(side * factor)) for side in sides)
    sampled = np.nan_to_num(found.places.sample(weights, height, width), nan=0.0)
    least, mean, most = (float(figure(weights)) for figure in (np.nanmin, np.nanmean, np.nanmax))
    return MapAnswer(low=low, high=high, min=least, mean=mean, max=most, map=text_png(_bytes(sampled, low, high)))


def _bytes(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Numbers from `low` to `high` as 0..255, rounded."""
    spread = (high - low) or 1.0
    return np.clip((values.astype(np.float32) - low) * (255 / spread) + 0.5, 0, 255).astype(np.uint8)


def text_png(pixels: np.ndarray) -> str:
    return base64.b64encode(png(Image.fromarray(pixels))).decode("ascii")


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **QUICK_PNG)
    return file.getvalue()


def wanted(accept: str | None) -> str:
    """JSON or PNG by the Accept header; JSON where both are as welcome."""
    best = {kind: _welcome(accept or "*/*", kind) for kind in (JSON, PNG)}
    if not any(best.values()):
        raise Refusal(406, f"Ask for {JSON} or for {PNG} in the Accept header; it says {accept!r}.")
    return PNG if best[PNG] > best[JSON] else JSON


def _welcome(accept: str, kind: str) -> float:
    """The quality (0 to 1) of the range that fits the kind most closely."""
    found = (-1, 0.0)
    for part in accept.split(","):
        name, *settings = (word.strip().lower() for word in part.split(";"))
        fits = {kind: 2, kind.split("/")[0] + "/*": 1, "*/*": 0}.get(name)
        if fits is not None:
            found = max(found, (fits, _quality(settings)))
    return found[1]


def _quality(settings: list[str]) -> float:
    for setting in settings:
        key, _, value = setting.partition("=")
        if key.strip() == "q":
            try:
                return min(max(float(value), 0.0), 1.0)
            except ValueError:
                return 0.0
    return 1.0
