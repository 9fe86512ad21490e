"""Moves the bytes of one accepted socket: what a connection needs of it, and the plain transport.

A connection sends with `write` and `send_file`, which pass on as much as the socket accepts at once. If it accepts
nothing, the connection gives one chunk to `queue`, and is called when that has left. So the plain transport needs no
copy and no buffer while the client reads, and `sendfile` moves records that never enter this process.

A transport reports to its connection with the methods of asyncio.BufferedProtocol: `get_buffer` and `buffer_updated`
for bytes that have arrived, `resume_writing` when the queue is empty again, `connection_lost`. The event loop calls
them itself for a plain connection. `tls.py` has the transport that encrypts.
"""

from __future__ import annotations

import asyncio
import errno
import os
from functools import partial
from typing import Protocol, TypeAlias

from ottla.log.files import FileSlice

INLINE_BYTES = 1 << 15
"""A slice up to this size is read and sent together with the bytes around it: one call instead of three."""
SHORT_SEGMENT = "a segment is shorter than its index says"

Octets: TypeAlias = bytes | bytearray | memoryview


class Transport(Protocol):
    """A connection's way to its socket."""

    @property
    def peer(self) -> tuple[str, int]:
        """The client's host and port; ("?", 0) if it is gone already."""
        ...

    @property
    def local(self) -> tuple[str, int]:
        """The address that the client has connected to."""
        ...

    @property
    def is_queued(self) -> bool:
        """Whether bytes wait for the socket."""
        ...

    def write(self, run: list[Octets], /) -> int:
        """Send as much of these as the socket accepts, and return how much that is. Raises BlockingIOError if it
        accepts nothing."""
        ...

    def send_file(self, part: FileSlice, offset: int) -> int:
        """The same for what follows `offset` in a slice of a file. Raises SliceUnreadableError for an error of the
        disk."""
        ...

    def queue(self, chunk: bytes, /) -> None:
        """The socket is full: send these bytes when there is room. Unless they leave at once (`is_queued`), the
        connection's `resume_writing` is called after that."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Close after the queue is sent."""
        ...

    def abort(self) -> None:
        """Close at once; the queue is dropped."""
        ...


class PlainTransport:
    """Sends directly to the socket; only the queue goes through the event loop's transport."""

    __slots__ = ("_fd", "_stream", "abort", "close", "pause_reading", "queue", "resume_reading", "write")

    def __init__(self, stream: asyncio.Transport) -> None:
        stream.set_write_buffer_limits(high=0)
        self._stream = stream
        self._fd: int = stream.get_extra_info("socket").fileno()
        self.write = partial(os.writev, self._fd)  # without a frame of Python in between
        self.queue = stream.write
        self.pause_reading = stream.pause_reading
        self.resume_reading = stream.resume_reading
        self.close = stream.close
        self.abort = stream.abort

    @property
    def peer(self) -> tuple[str, int]:
        peer = self._stream.get_extra_info("peername")
        return (str(peer[0]), int(peer[1])) if peer else ("?", 0)

    @property
    def local(self) -> tuple[str, int]:
        host, port = self._stream.get_extra_info("sockname")[:2]
        return host, port

    @property
    def is_queued(self) -> bool:
        return self._stream.get_write_buffer_size() > 0

    def send_file(self, part: FileSlice, offset: int) -> int:
        """The bytes are not copied through this process. Raises OSError and SliceUnreadableError."""
        try:
            sent = os.sendfile(self._fd, part.file.fileno(), part.position + offset, part.length - offset)
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            raise SliceUnreadableError(part, offset, error) from error
        if sent == 0:
            raise SliceUnreadableError(part, offset, OSError(errno.ENODATA, SHORT_SEGMENT))
        return sent


class SliceUnreadableError(OSError):
    """Raised for a disk error in a slice that was being sent, or if the file is too short; `part` is the slice."""

    def __init__(self, part: FileSlice, offset: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.part = FileSlice(part.file, part.position + offset, min(part.length - offset, INLINE_BYTES))


def read_slice(part: FileSlice, offset: int, length: int) -> bytes:
    """These bytes of a slice. Raises SliceUnreadableError, also if the file has fewer."""
    try:
        content = part.file.read(part.position + offset, length)
    except OSError as error:
        raise SliceUnreadableError(part, offset, error) from error
    if len(content) < length:
        raise SliceUnreadableError(part, offset + len(content), OSError(errno.ENODATA, SHORT_SEGMENT))
    return content
