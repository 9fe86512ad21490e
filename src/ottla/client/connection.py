"""Speaks to one broker over one blocking connection: messages or raw frames, one at a time or pipelined.

It handles sockets, TLS if it gets a context, SASL if it gets a login, correlation ids, and the negotiation of versions
(KIP-35, KIP-511). Topics and leaders are in `ottla.client.client`.

Invariants: answers are read in the order of their requests. An answer that is read before its `take` is kept, at most
`kept_max` of them. After a failure the connection stays closed.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from ottla.client.errors import (
    BadResponseError,
    ClientError,
    ConnectionClosedError,
    TimedOutError,
    UnsupportedVersionError,
)
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.private_requests import PRIVATE_FROM
from ottla.protocol.wire import Buffer, Message

if TYPE_CHECKING:
    from ottla.client.sasl import Login

FRAME_BYTES_MAX = 1 << 30
READ_AHEAD_BYTES = 1 << 16
RENEWED_AFTER = 0.85
"""The part of a session's lifetime after which a connection authenticates again, before its next request."""
LARGE_ANSWERS = frozenset({ApiKey.FETCH, ApiKey.SHARE_FETCH})
"""APIs whose answers are read without read-ahead; their records are views, not copies."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A request in flight; pass it to `take`."""

    correlation_id: int
    api_key: int
    version: int


class Connection:
    """A blocking connection: `with Connection("localhost", 9092) as c: c.send(MetadataRequest())`.

    `timeout_s` bounds connecting and every wait for bytes. Every method raises ConnectionClosedError and TimedOutError.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str | None = "ottla",
        timeout_s: float = 30.0,
        tls: ssl.SSLContext | None = None,
        login: Login | None = None,
        kept_max: int = 10_000,
    ) -> None:
        self.address = f"{host}:{port}"
        self.client_id = client_id
        self.kept_max = kept_max
        self._last_correlation_id = 0
        self._expected: dict[int, Posted] = {}
        self._kept: dict[int, Any] = {}
        self._ranges: dict[int, tuple[int, int]] | None = None
        self.private: dict[int, tuple[int, int]] | None = None
        """Which of Ottla's own requests the broker serves, as `ranges`; None if that is not known."""
        self.hides_private = False
        """Whether the broker has refused to report that."""
        self._unread = b""
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is None:
                self._leave_timeouts_to_the_kernel(timeout_s)
            else:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except OSError as error:
            raise ConnectionClosedError(
                f"No broker can be reached at {self.address}: {error.strerror or error}."
            ) from error
        self._login, self._renew_at = login, math.inf
        if login is not None:
            try:
                self._authenticate(login)
            except BaseException:
                self.close()
                raise

    def _authenticate(self, login: Login) -> None:
        """Log in, or again before the session's end (KIP-368)."""
        from ottla.client.sasl import authenticate  # a client without a login starts without it

        self._renew_at = math.inf
        lifetime_s = authenticate(self, login)
        if lifetime_s is not None:
            self._renew_at = time.monotonic() + lifetime_s * RENEWED_AFTER

    def ask(self, message: Message, version: int) -> Any:
        """Send a request at this version, and wait for the answer. Raises UnsupportedVersionError if there is none, and
        BadResponseError."""
        return self.take(self.post(message, version))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        self._socket.close()

    # ---- messages --------------------------------------------------------------------------------------------------

    def send(self, message: Message, version: int | None = None) -> Any:
        """Send a request and wait for the answer. Without a version, the newest that both sides support is used.

        Also raises UnsupportedVersionError and BadResponseError.
        """
        return self.take(self.post(message, version))

    def post(self, message: Message, version: int | None = None, *, answered: bool = True) -> Posted:
        """Send a request without waiting. `answered=False`: the broker will send no answer (acks=0)."""
        key = message.API_KEY
        if self._login is not None and not self._expected and time.monotonic() >= self._renew_at:
            self._authenticate(self._login)
        version = self.version_of(key) if version is None else version
        self._last_correlation_id = (self._last_correlation_id + 1) & 0x7FFFFFFF
        posted = Posted(self._last_correlation_id, key, version)
        header = RequestHeader(key, version, posted.correlation_id, self.client_id)
        self.send_bytes(encode_request(header, message))
        if answered:
            self._expected[posted.correlation_id] = posted
        return posted

    def take(self, posted: Posted) -> Any:
        """The answer to `posted`; answers to other requests that arrive before it are kept for their own `take`. Raises
        ValueError."""
        while posted.correlation_id not in self._kept:
            if posted.correlation_id not in self._expected:
                raise ValueError(f"no answer is on its way for {posted}")
            self._take_next()
        return self._kept.pop(posted.correlation_id)

    def _take_next(self) -> None:
        first, posted = next(iter(self._expected.items()))
        frame = self.receive_raw(read_ahead=posted.api_key not in LARGE_ANSWERS)
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if correlation_id != first:
            self.close()
            raise BadResponseError(f"{self.address} answered request {correlation_id} where {first} was due.")
        if len(self._kept) >= self.kept_max:
            self.close()
            raise ClientError(f"More than {self.kept_max} answers wait to be taken.")
        self._kept[correlation_id] = self._decode(self._expected.pop(correlation_id), frame)

    def _decode(self, posted: Posted, frame: bytes) -> Any:
        version, api = posted.version, APIS[posted.api_key]
        refused = frame[4:6] == ErrorCode.UNSUPPORTED_VERSION.to_bytes(2, "big")
        if posted.api_key == ApiKey.API_VERSIONS and refused:
            version = 0
        view = memoryview(frame) if posted.api_key in LARGE_ANSWERS else frame
        try:
            return decode_response(posted.api_key, version, view)[1]
        except MalformedFrameError as error:
            self.close()
            raise BadResponseError(
                f"The answer of {self.address} to {api.name} v{version} can't be read: {error}."
            ) from error

    # ---- versions --------------------------------------------------------------------------------------------------

    def version_of(self, api_key: int) -> int:
        """The newest version of an API that this broker and the codec support; requests the versions once.

        Raises UnsupportedVersionError.
        """
        api = APIS[api_key]
        lowest, highest = (self.private or {} if api_key >= PRIVATE_FROM else self.ranges).get(api_key, (1, 0))
        version = min(highest, api.max_version)
        if version < max(lowest, api.min_version):
            raise UnsupportedVersionError(f"The broker at {self.address} does not serve {api.name} in a known version.")
        return version

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """The versions that the broker advertises: API key to (lowest, highest) version."""
        if self._ranges is None:
            request = ApiVersionsRequest("ottla", "0")
            answer = self.send(request, APIS[ApiKey.API_VERSIONS].max_version)
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                known = [entry.max_version for entry in answer.api_keys if entry.api_key == ApiKey.API_VERSIONS]
                answer = self.send(request, known[0] if known else 0)
            self._ranges = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        return self._ranges

    # ---- frames ----------------------------------------------------------------------------------------------------

    def send_bytes(self, data: Buffer) -> None:
        """Write bytes as they are, without a length prefix. Raises TimedOutError."""
        try:
            self._socket.sendall(data)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            raise TimedOutError(f"The broker at {self.address} did not take the request in time.") from error
        except OSError as error:
            self.close()
            raise self._gone(error) from error

    def receive_raw(self, *, read_ahead: bool = True) -> bytes:
        """The next frame without its length. Raises BadResponseError if the length is invalid.

        `read_ahead=False` is for an answer that may be large: two system calls, and no byte is copied twice.
        """
        read = self._read if read_ahead or self._unread else self._read_exactly
        length = int.from_bytes(read(4), "big", signed=True)
        if not 0 <= length <= FRAME_BYTES_MAX:
            self.close()
            raise BadResponseError(
                f"The server at {self.address} does not use Kafka's protocol: it sent a frame of {length} bytes."
            )
        return read(length)

    def _read(self, size: int) -> bytes:
        """Exactly `size` bytes. Reads ahead, so that a small answer costs one system call."""
        if len(self._unread) < size:
            out = bytearray(self._unread)
            while len(out) < size:
                out += self._chunk(max(READ_AHEAD_BYTES, size - len(out)))
            self._unread = bytes(out)
        taken, self._unread = self._unread[:size], self._unread[size:]
        return taken

    def _read_exactly(self, size: int) -> bytes:
        """Read exactly `size` bytes. Hot: the kernel fills one buffer of that size, which is neither zeroed before nor
        copied after. (Over TLS, or if a timeout interrupts the wait, it reads in pieces.)"""
        if not size:
            return b""
        flags = 0 if isinstance(self._socket, ssl.SSLSocket) else socket.MSG_WAITALL
        chunk = self._chunk(size, flags)
        if len(chunk) == size:
            return chunk
        chunks, left = [chunk], size - len(chunk)
        while left:
            chunks.append(self._chunk(left, flags))
            left -= len(chunks[-1])
        return b"".join(chunks)

    def _leave_timeouts_to_the_kernel(self, timeout_s: float) -> None:
        """Set the timeouts in the kernel: a socket with a Python timeout is non-blocking, and MSG_WAITALL does not wait
        on it."""
        seconds, rest = divmod(timeout_s, 1)
        timeval = struct.pack("@ll", int(seconds), int(rest * 1e6))
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)

    def wait_at_most(self, seconds: float) -> None:
        """Change the bound of every wait for bytes from now on."""
        if isinstance(self._socket, ssl.SSLSocket):
            self._socket.settimeout(seconds)
        else:
            self._leave_timeouts_to_the_kernel(seconds)

    def _chunk(self, size: int, flags: int = 0) -> bytes:
        try:
            chunk = self._socket.recv(size, flags)
        except (TimeoutError, BlockingIOError) as error:
            self.close()
            raise TimedOutError(f"The broker at {self.address} did not answer in time.") from error
        except OSError as error:
            self.close()
            raise self._gone(error) from error
        if not chunk:
            self.close()
            raise ConnectionClosedError(f"The broker at {self.address} hung up.")
        return chunk

    def _gone(self, error: OSError) -> ConnectionClosedError:
        return ConnectionClosedError(f"The connection to {self.address} is gone: {error.strerror or error}.")
