"""Defines requests and their senders, as plain values."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from ottla.machine import Millis, Ticket
from ottla.protocol.apis import ApiKey
from ottla.protocol.framing import RequestHeader

ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of an unauthenticated client."""


@dataclass(frozen=True, slots=True)
class Address:
    """The peer address and the listener of a connection; unchanged while the connection exists.

    `identity` is unique for each connection within a process. `listener` is the listener's name, in capitals; this
    client gets every node's address on that listener. `advertised`: the host and port by which this client was told to
    connect, repeated to it in Metadata, FindCoordinator and DescribeCluster.
    """

    identity: int
    client_host: str
    client_port: int = 0
    listener: str = "PLAINTEXT"
    security_protocol: str = "PLAINTEXT"
    advertised: tuple[str, int] = ("127.0.0.1", 0)

    @property
    def requires_authentication(self) -> bool:
        """Whether clients of this listener have to authenticate before any other request."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


class Listening(NamedTuple):
    """One listener of a node: its bound address, and its advertised address. None advertises the address by which each
    client connected."""

    name: str
    host: str
    port: int
    advertised: tuple[str, int] | None


NODE_ITSELF: Final = Address(-1, "")
"""The address of requests that the node sends to itself."""


class Session:
    """The state of one connection's client, as far as it is known. Data that outlives a request is keyed by the
    address's identity, never by the principal.

    - `authenticated`: the client may send any request; until then see `security.authentication`.
    - `charged_as`: the client id that its last request was charged to, None if nothing is charged.
    - `muted`: an effect that mutes the connection is still to be carried out. The host serves nothing more of the
      connection, and then resets this flag.
    - `software`: the client's name and version as it gave them (KIP-511), empty until then.
    - `tries`: the names of all attempts of another node to forward the request, this attempt last; empty if a client
      sent it.
    """

    __slots__ = ("address", "authenticated", "charged_as", "muted", "principal", "software", "tries")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.authenticated = not address.requires_authentication
        self.principal = ANONYMOUS
        self.charged_as: str | None = None
        self.muted = False
        self.software = ""
        self.tries: tuple[str, ...] = ()


PATIENCE_MS: Final = 10_000
"""How long a request without a timeout of its own waits for the metadata store or the controller, in milliseconds."""


class Request:
    """One decoded request.

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
        "client_id",
        "correlation_id",
        "now",
        "produced",
        "session",
        "throttled_until",
        "version",
    )

    def __init__(
        self,
        session: Session,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        now: Millis,
        body: Any,
        produced: int = 0,
    ) -> None:
        self.session = session
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
        """Whether the answer goes to a part of the node and not to the client. If so, it has been delivered."""
        return False


NODE_REQUEST: Final = Request(Session(NODE_ITSELF), ApiKey.WRITE_SHARE_GROUP_STATE, 1, 0, None, 0, None)
"""The request under which the node parks its own waiting, without a client."""

Decoded: TypeAlias = tuple[RequestHeader, Any] | None
"""A frame's header and message; None if they have not been decoded yet."""


class Refused(Exception):
    """The peer broke the protocol: the host logs the message and closes the connection."""


@dataclass(frozen=True, slots=True)
class Parked:
    """The answer comes later, as a Reply effect for this ticket.

    `goes_on`: the request has not finished its work; no later request of the connection may be served before its
    answer.
    """

    ticket: Ticket
    goes_on: bool = False
