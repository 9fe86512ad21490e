"""Frames messages: a four-byte length, a header, a message.

It handles request headers v1 and v2 and response headers v0 and v1 (RequestHeader.json, ResponseHeader.json), and
splits a stream into frames. It does no I/O and keeps no state except the splitter's unfinished frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct as Format
from typing import Any

from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.wire import (
    SHORT_INPUT,
    Buffer,
    Message,
    Struct,
    skip_tags,
    write_nullable_string,
)

_unpack_header = Format(">hhih").unpack_from
_pack_header = Format(">hhi").pack
_unpack_int32 = Format(">i").unpack_from
_pack_int32 = Format(">i").pack
_pack_length_into = Format(">i").pack_into

FLEXIBLE_SINCE: dict[int, int] = {key: api.flexible_since for key, api in APIS.items()}
_API_VERSIONS = int(ApiKey.API_VERSIONS)

REQUEST_SIZE_MAX = 104857600
"""Kafka's default of `socket.request.max.bytes`."""


class UnsupportedApiError(MalformedFrameError):
    """A request with an API key that is not in `APIS`: the length of its header is unknown. Kafka closes the
    connection."""

    def __init__(self, api_key: int, api_version: int, correlation_id: int) -> None:
        super().__init__(f"unknown API key {api_key}")
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id


class FrameTooLargeError(MalformedFrameError):
    """A frame with a negative length or one above the bound: nothing after it can be read."""


class RequestHeader(Struct):
    """The request's API, version, correlation id and client id. The version of the header itself follows from API and
    version."""

    __slots__ = ("api_key", "api_version", "client_id", "correlation_id")

    def __init__(self, api_key: int, api_version: int, correlation_id: int = 0, client_id: str | None = None) -> None:
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id


def decode_request_header(view: Buffer, pos: int = 0) -> tuple[RequestHeader, int]:
    """The header of a frame without its length, and the position where the request begins.

    The request's version is not checked: the broker answers an unsupported one. Raises MalformedFrameError, and its
    subclass UnsupportedApiError for a key that is not in `APIS`.
    """
    try:
        key, version, correlation_id, length = _unpack_header(view, pos)
        pos += 10
        since = FLEXIBLE_SINCE.get(key)
        if since is None:
            raise UnsupportedApiError(key, version, correlation_id)
        if length < 0:
            client_id = None
        else:
            end = pos + length
            if end > len(view):
                raise MalformedFrameError("the client id is longer than the frame")
            client_id = str(view[pos:end], "utf-8", "replace")  # a label; Kafka is as lenient
            pos = end
        if version >= since:
            if view[pos]:
                pos = skip_tags(memoryview(view), pos)
            else:
                pos += 1
    except SHORT_INPUT as error:
        raise MalformedFrameError("the request header is cut short or holds bad text") from error
    return RequestHeader(key, version, correlation_id, client_id), pos


def decode_request(view: Buffer, pos: int = 0) -> tuple[RequestHeader, Any]:
    """The header and the request of a frame without its length; bytes after the request are ignored, as in Kafka.

    Raises MalformedFrameError, also if the codec does not support the API or the version.
    """
    header, pos = decode_request_header(view, pos)
    api = APIS[header.api_key]
    if not api.has_messages(header.api_version):
        raise MalformedFrameError(f"{api.name} has no messages of version {header.api_version}")
    message, _ = api.request.decode(view, pos, header.api_version)
    return header, message


def encode_request(header: RequestHeader, message: Message) -> bytearray:
    """A whole frame, including its length."""
    out = bytearray(4)
    out += _pack_header(header.api_key, header.api_version, header.correlation_id)
    write_nullable_string(out, header.client_id)
    if header.api_version >= FLEXIBLE_SINCE[header.api_key]:
        out.append(0)
    message.encode(out, header.api_version)
    _pack_length_into(out, 0, len(out) - 4)
    return out


def encode_response(header: RequestHeader, message: Message) -> bytearray:
    """A whole frame, including its length, that answers the request with this header."""
    out = bytearray(4)
    out += _pack_int32(header.correlation_id)
    if header.api_version >= FLEXIBLE_SINCE[header.api_key] and header.api_key != _API_VERSIONS:
        out.append(0)
    message.encode(out, header.api_version)
    _pack_length_into(out, 0, len(out) - 4)
    return out


def response_body_of(header: RequestHeader, frame: bytes) -> bytes:
    """The message in a whole frame that answers the request with this header, still encoded."""
    flexible = header.api_version >= FLEXIBLE_SINCE[header.api_key] and header.api_key != _API_VERSIONS
    return frame[9 if flexible else 8 :]


def decode_response(api_key: int, version: int, view: Buffer) -> tuple[int, Any]:
    """(correlation id, response) of a frame without its length. Raises MalformedFrameError."""
    try:
        (correlation_id,) = _unpack_int32(view, 0)
        pos = 4
        if version >= FLEXIBLE_SINCE[api_key] and api_key != _API_VERSIONS:
            pos = skip_tags(memoryview(view), pos)
    except SHORT_INPUT as error:
        raise MalformedFrameError("the response header is cut short") from error
    message, _ = APIS[api_key].response.decode(view, pos, version)
    return correlation_id, message


class FrameSplitter:
    """Splits a stream into frames. Holds at most one unfinished frame (`frame_bytes_max`) and the chunk it came in."""

    __slots__ = ("_buffer", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int = REQUEST_SIZE_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()

    def feed(self, chunk: Buffer) -> Iterator[memoryview]:
        """The frames that `chunk` completes, without their lengths. Each is a writable copy.

        Consume every frame before feeding again. Raises FrameTooLargeError as soon as a length is out of bounds.
        """
        self._buffer += chunk
        start = 0
        try:
            while len(self._buffer) - start >= 4:
                (length,) = _unpack_int32(self._buffer, start)
                if not 0 <= length <= self.frame_bytes_max:
                    raise FrameTooLargeError(f"a frame of {length} bytes; at most {self.frame_bytes_max} are accepted")
                end = start + 4 + length
                if len(self._buffer) < end:
                    break
                frame = memoryview(self._buffer[start + 4 : end])
                start = end
                yield frame
        finally:
            del self._buffer[:start]
