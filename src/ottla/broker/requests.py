"""Requests and who sends them, as plain values."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from ottla.machine import Millis, Ticket
from ottla.protocol.framing import RequestHeader


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

    def take_answer(self, message: Any) -> bool:
        """Whether the answer goes to somebody in the node and not to the client; it has been handed over then."""
        return False


Decoded: TypeAlias = tuple[RequestHeader, Any] | None
"""A frame's header and message, None where they have not been read yet."""


class Refused(Exception):
    """The peer broke the protocol: the shell logs the sentence and closes the connection."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The answer comes later, as a Reply effect for this ticket."""

    ticket: Ticket
