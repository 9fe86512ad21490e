"""What the shell hands to the node and what the node hands back: contexts, requests, answers, effects.

Everything here is plain values. An answer is a list of parts, each a bytes-like object or a `FileSlice`, which the
shell sends in order; so a fetch can leave without its records ever becoming Python objects.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ottla.log.files import FileSlice
from ottla.log.syncing import Syncable
from ottla.machine import Millis, Ticket
from ottla.protocol.framing import RequestHeader

Part: TypeAlias = bytes | bytearray | memoryview | FileSlice


@dataclass(frozen=True, slots=True)
class ConnectionContext:
    """Who is on the other side of a connection; frozen for its life.

    `listener_host`, `listener_port`: the address this client was told to use, and is told again in Metadata,
    FindCoordinator and DescribeCluster. `identity` is unique per connection within a process.
    """

    identity: int
    client_host: str
    listener: str = "PLAINTEXT"
    security_protocol: str = "PLAINTEXT"
    principal: str = "User:ANONYMOUS"
    listener_host: str = "127.0.0.1"
    listener_port: int = 0


class Request:
    """One decoded request. `body` is the wire message of (api_key, version); `now` the time it was read."""

    __slots__ = ("api_key", "body", "client_id", "context", "correlation_id", "now", "version")

    def __init__(
        self,
        context: ConnectionContext,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        now: Millis,
        body: Any,
    ) -> None:
        self.context = context
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.now = now
        self.body = body


Decoded: TypeAlias = tuple[RequestHeader, Any] | None
"""A frame's header and message, None where they have not been read yet."""


class Refused(Exception):
    """The peer broke the protocol: the shell logs the sentence and closes the connection."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The answer comes later, as a Reply effect for this ticket."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Reply:
    """Send these parts as the answer that `ticket` waited for. Empty parts: there is no answer (acks=0)."""

    ticket: Ticket
    connection: int
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Close:
    """Close this connection after what was sent before."""

    connection: int
    why: str


@dataclass(frozen=True, slots=True)
class Mute:
    """Read nothing more from this connection until the given time (KIP-219)."""

    connection: int
    until: Millis


@dataclass(frozen=True, slots=True)
class Sync:
    """Call `sync` on all of these off the loop, in order, then `node.synced(now, token, failures)`.

    `failures` are the system's sentences by position in `files`; one that fails does not keep the others from it.
    """

    token: int
    files: Sequence[Syncable]


@dataclass(frozen=True, slots=True)
class Store:
    """Replace the file at `path` by `content`, atomically and durably, off the loop; `node.not_stored(path)` where that
    fails."""

    path: str
    content: bytes


Effect: TypeAlias = Reply | Close | Mute | Sync | Store
