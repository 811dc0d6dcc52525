"""Multipart uploads, read from the stream into memory: nothing touches the disk, nothing exceeds its limit."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from ordnet.serve.guard import Limits, Refusal, busy, megabytes, too_many_bytes

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

PICTURE = "image"
"""The field that holds the file."""
_FIELD = 256
"""The longest value of any other field, in bytes."""
_HEADER = 4096
"""The longest header of a part, in bytes."""
_HEADERS = 16
"""The most headers of a part."""
_PARTS = 16
"""The most parts of a body."""
_PIECE = 64_000
"""A piece of a part is complete once it has so many bytes."""
_AROUND = 64_000
"""Bytes of boundaries, headers and other fields that may come with the file."""


@dataclass
class Upload:
    """The fields of a form that was sent, and its picture."""

    picture: list[bytearray] | None
    """The file in pieces: a single piece of 20 MB would be moved each time it grows, while everybody waits."""
    key: str
    """SHA-256 of the picture's file."""
    fields: dict[str, str]


@dataclass
class _Form:
    """The parts of a multipart body, as the parser's callbacks report them."""

    limits: Limits
    parts: dict[str, list[bytearray]] = field(default_factory=dict)
    complete: bool = False
    read: int = 0
    """Bytes of the body so far."""
    _header: bytes = b""
    _value: bytes = b""
    _headers: int = 0
    _name: str = ""
    _length: int = 0
    """Bytes of the part that is being read."""

    def on_part_begin(self) -> None:
        self._name = ""
        self._headers = 0

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start : min(end, start + _HEADER)]
        self._refuse_long_headers()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start : min(end, start + _HEADER)]
        self._refuse_long_headers()

    def _refuse_long_headers(self) -> None:
        """They are parsed in the event loop, which answers nobody else meanwhile."""
        if len(self._header) + len(self._value) >= _HEADER:
            raise Refusal(422, f"A header of the form is longer than {_HEADER:,} bytes.")

    def on_header_end(self) -> None:
        self._headers += 1
        if self._headers > _HEADERS:
            raise Refusal(422, f"A part of the form has more than {_HEADERS} headers.")
        if self._header.lower() == b"content-disposition":
            _, options = parse_options_header(self._value)
            self._name = options.get(b"name", b"").decode("utf-8", "replace")
        self._header = self._value = b""

    def on_headers_finished(self) -> None:
        if self._name in self.parts:
            raise Refusal(422, f"The field {self._name!r} came twice.")
        if len(self.parts) == _PARTS:
            raise Refusal(422, f"The form has more than {_PARTS} fields.")
        self.parts[self._name] = [bytearray()]
        self._length = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        pieces = self.parts[self._name]
        if len(pieces[-1]) >= _PIECE:  # not a piece for every chunk: a form may come byte by byte
            pieces.append(bytearray())
        pieces[-1] += memoryview(data)[start:end]
        self._length += end - start
        if self._name == PICTURE and self._length > self.limits.bytes:
            raise too_many_bytes(self.limits)
        if self._name != PICTURE and self._length > _FIELD:
            hint = f" A picture comes in the field {PICTURE!r}."
            raise Refusal(422, f"The field {self._name!r} is longer than {_FIELD} bytes.{hint}")

    def on_end(self) -> None:
        self.complete = True

    async def result(self) -> Upload:
        if not self.complete:
            raise Refusal(422, "The form is cut off: its last boundary is missing.")
        picture = self.parts.pop(PICTURE, None)
        fields = {name: b"".join(value).decode("utf-8", "replace") for name, value in self.parts.items()}
        # in a thread: 20 MB take a tenth of a second
        key = await asyncio.get_running_loop().run_in_executor(None, _sha256, picture or [])
        return Upload(picture, key, fields)

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


def _sha256(pieces: list[bytearray]) -> str:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


class Uploads:
    """The bodies that are under way: bounded in number and in bytes, each with a deadline and a least rate."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.count = 0
        self.bytes = 0

    async def read(self, request: Request) -> Upload:
        """The form of a request, refused as soon as it is known to be too large, too slow or malformed."""
        if self.count >= self.limits.uploads:
            raise busy(f"{self.count} uploads are under way", 5)
        self.count += 1
        form = _Form(self.limits)
        try:
            return await asyncio.wait_for(self._read(request, form), self.limits.seconds)
        except asyncio.TimeoutError:
            raise Refusal(408, f"The upload took longer than {self.limits.seconds:g} seconds.") from None
        finally:
            self.count -= 1
            self.bytes -= form.read

    async def _read(self, request: Request, form: _Form) -> Upload:
        limits = self.limits
        kind, options = parse_options_header(request.headers.get("content-type", ""))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise Refusal(415, f"Send the picture as multipart/form-data, in the field {PICTURE!r}.")
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limits.bytes + _AROUND:
            raise too_many_bytes(limits)
        try:
            parser = MultipartParser(options[b"boundary"], form.callbacks())
            async for chunk in _not_too_slow(request.stream(), limits):
                form.read += len(chunk)
                self.bytes += len(chunk)
                if form.read > limits.bytes + _AROUND:
                    raise too_many_bytes(limits)
                if self.bytes > limits.uploading:
                    raise busy(f"{megabytes(self.bytes)} of uploads are under way", 5)
                parser.write(chunk)
            parser.finalize()
        except FormParserError as error:
            raise Refusal(422, f"The form cannot be read: {error}.") from None
        except ClientDisconnect:
            raise Refusal(499, "The client went away.") from None
        return await form.result()


async def _not_too_slow(chunks: AsyncIterator[bytes], limits: Limits) -> AsyncIterator[bytes]:
    """The chunks, as long as they come at the least rate, measured anew every `limits.stall` seconds."""
    slow = Refusal(408, f"The upload is too slow: at least {megabytes(limits.rate)} a second are expected.")
    start, read = time.monotonic(), 0
    while True:
        try:
            chunk = await asyncio.wait_for(anext(chunks), limits.stall)
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise slow from None
        read += len(chunk)
        passed = time.monotonic() - start
        if passed >= limits.stall:
            if read < limits.rate * passed:
                raise slow
            start, read = time.monotonic(), 0
        yield chunk
