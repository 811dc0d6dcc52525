"""A multipart upload, read from the stream into memory: nothing touches the disk, nothing exceeds its limit."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from ordnet.serve.guard import Limits, Refusal, too_many_bytes

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

PICTURE = "image"
"""The field that holds the file."""
_FIELD = 256
"""The longest value of any other field, in bytes."""
_PARTS = 16
_AROUND = 64_000
"""Bytes of boundaries, headers and other fields that may come with the file."""


@dataclass
class Upload:
    """The fields of a form that was sent, and its picture."""

    picture: bytes | None
    fields: dict[str, str]


@dataclass
class _Form:
    """The parts of a multipart body, as the parser's callbacks report them."""

    limits: Limits
    parts: dict[str, bytearray] = field(default_factory=dict)
    complete: bool = False
    _header: bytes = b""
    _value: bytes = b""
    _name: str = ""

    def on_part_begin(self) -> None:
        self._name = ""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._header = self._value = b""

    def on_headers_finished(self) -> None:
        if self._name in self.parts:
            raise Refusal(422, f"The field {self._name!r} came twice.")
        if len(self.parts) == _PARTS:
            raise Refusal(422, f"The form has more than {_PARTS} fields.")
        self.parts[self._name] = bytearray()

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        part = self.parts[self._name]
        part += data[start:end]
        if self._name == PICTURE and len(part) > self.limits.bytes:
            raise too_many_bytes(self.limits)
        if self._name != PICTURE and len(part) > _FIELD:
            raise Refusal(422, f"The field {self._name!r} is longer than {_FIELD} bytes.")

    def on_end(self) -> None:
        self.complete = True

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self.on_part_begin,
            "on_header_field": self.on_header_field,
            "on_header_value": self.on_header_value,
            "on_header_end": self.on_header_end,
            "on_headers_finished": self.on_headers_finished,
            "on_part_data": self.on_part_data,
            "on_end": self.on_end,
        }


async def read_upload(request: Request, limits: Limits) -> Upload:
    """The form of a request, refused as soon as it is known to be too large, too slow or malformed."""
    try:
        return await asyncio.wait_for(_read(request, limits), limits.seconds)
    except asyncio.TimeoutError:
        raise Refusal(408, f"The upload took longer than {limits.seconds:g} seconds.") from None


async def _read(request: Request, limits: Limits) -> Upload:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise Refusal(415, f"Send the picture as multipart/form-data, in the field {PICTURE!r}.")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.bytes + _AROUND:
        raise too_many_bytes(limits)
    form = _Form(limits)
    read = 0
    try:
        parser = MultipartParser(options[b"boundary"], form.callbacks())
        async for chunk in request.stream():
            read += len(chunk)
            if read > limits.bytes + _AROUND:
                raise too_many_bytes(limits)
            parser.write(chunk)
        parser.finalize()
    except FormParserError as error:
        raise Refusal(422, f"The form cannot be read: {error}.") from None
    except ClientDisconnect:
        raise Refusal(499, "The client went away.") from None
    if not form.complete:
        raise Refusal(422, "The form is cut off: its last boundary is missing.")
    picture = form.parts.pop(PICTURE, None)
    fields = {name: value.decode("utf-8", "replace") for name, value in form.parts.items()}
    return Upload(None if picture is None else bytes(picture), fields)
