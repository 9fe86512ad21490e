"""Defines requests, and what else a node knows as plain values: its listeners, and why it refuses a frame."""

from typing import Any, Final, NamedTuple, TypeAlias

from ottla.broker.channel import NODE_CHANNEL, Channel
from ottla.broker.client_identity import Identity
from ottla.machine import Millis
from ottla.protocol.apis import ApiKey
from ottla.protocol.framing import RequestHeader


class Listening(NamedTuple):
    """One listener of a node: its bound address, and its advertised address. None advertises the address by which each
    client connected. `certificate_until_ms`: when its certificate expires, in milliseconds since 1970."""

    name: str
    host: str
    port: int
    advertised: tuple[str, int] | None
    certificate_until_ms: int | None = None


PATIENCE_MS: Final = 10_000
"""How long a request without a timeout of its own waits for the metadata store or the controller, in milliseconds."""


class Request:
    """One decoded request.

    - `channel`: the connection that it came over.
    - `identity`: who sent it: the client as it was authenticated then, also if another node forwards the request.
    - `tries`: the names of all attempts to have the controller serve it, the last one last; empty if none was begun, or
      if a client sent it and the API is not forwarded whole.
    - `body`: the wire message of (api_key, version).
    - `now`: when it was read, or when a piece of it is served.
    - `begun`: when all of it was read.
    - `produced`: the bytes for which it is still to be charged.
    - `throttled_until`: when the charges so far are paid back.
    """

    __slots__ = (
        "api_key",
        "begun",
        "body",
        "channel",
        "client_id",
        "correlation_id",
        "identity",
        "now",
        "produced",
        "throttled_until",
        "tries",
        "version",
    )

    def __init__(
        self,
        channel: Channel,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        now: Millis,
        body: Any,
        produced: int = 0,
        identity: Identity | None = None,
        tries: tuple[str, ...] = (),
    ) -> None:
        self.channel = channel
        self.identity = channel.identity if identity is None else identity
        self.tries = tries
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.now = now
        self.begun = now
        self.body = body
        self.produced = produced
        self.throttled_until = now

    @property
    def answer_by(self) -> Millis:
        """When to answer if the metadata store or the controller has not: the request's timeout, less a tenth for the
        way back. If that is 0 ms, or missing, it is `PATIENCE_MS`."""
        named = getattr(self.body, "timeout_ms", 0)
        return self.begun + (named if named > 0 else PATIENCE_MS) * 9 // 10

    def take_answer(self, message: Any) -> bool:
        """Whether the answer goes to a part of the node and not to the client. If so, it has been delivered.

        `message`: a wire message, or the parts of a frame, for an answer that is encoded already.
        """
        return False


NODE_REQUEST: Final = Request(NODE_CHANNEL, ApiKey.WRITE_SHARE_GROUP_STATE, 1, 0, None, 0, None)
"""The request under which the node parks its own waiting, without a client."""

Decoded: TypeAlias = tuple[RequestHeader, Any] | None
"""A frame's header and message; None if they have not been decoded yet."""


class RequestRefusedError(Exception):
    """The peer broke the protocol: the host logs the message and closes the connection."""
