"""Defines who sends a request: the connection's address, and the principal that its client has authenticated as.

Both are immutable values. A request keeps the identity under which it was received. If the client authenticates again
meanwhile, the connection gets another identity, and the request is authorized under its own.

Source: Kafka's KafkaPrincipal.java, RequestContext.java.
"""

from dataclasses import dataclass, field
from typing import Final, NamedTuple


class Principal(NamedTuple):
    """The name of a client in ACLs and quotas (Kafka: KafkaPrincipal). Its text is KIND:NAME. The kind is User, or Node
    for a node of the cluster, whose name is its id."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "Principal":
        """The principal of a KIND:NAME text. Raises ValueError."""
        kind, colon, name = text.partition(":")
        if not (kind and colon):
            raise ValueError(f"{text!r} is not a principal of the form KIND:NAME")
        return cls(kind, name)


NODE_MECHANISM: Final = "OTTLA-NODE"
"""The SASL mechanism by which nodes of a cluster prove themselves to each other. Clients can't choose it."""
ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Principal of an unauthenticated client."""


class Address(NamedTuple):
    """The peer address and the listener of a connection; unchanged while the connection exists.

    `connection_id` is unique for each connection within a process. `listener` is the listener's name, in capitals; this
    client gets every node's address on that listener. `advertised`: the host and port by which this client was told to
    connect, repeated to it in Metadata, FindCoordinator and DescribeCluster.
    """

    connection_id: int
    client_host: str
    client_port: int = 0
    listener: str = "PLAINTEXT"
    security_protocol: str = "PLAINTEXT"
    advertised: tuple[str, int] = ("127.0.0.1", 0)

    @property
    def requires_authentication(self) -> bool:
        """Whether clients of this listener have to authenticate before any other request."""
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")


GRANTED_MAX: Final = 1_000
"""How many topics of each kind an identity keeps before it forgets them."""


class GrantedTopics:
    """The topics, named or by id as requests have them, that a client was allowed to write and to read.

    They hold for `image`, an object that is only compared, and for every later one with the same `acls`.
    """

    __slots__ = ("_acls", "image", "read", "written")

    def __init__(self) -> None:
        self.image: object = None
        self._acls: object = None
        self.written: set[str | bytes] = set()
        self.read: set[str | bytes] = set()

    def hold_until_change_of(self, image: object, acls: object) -> None:
        """This image holds now; forget everything if its ACLs have changed."""
        self.image = image
        if acls is not self._acls:
            self._acls = acls
            self.written.clear()
            self.read.clear()


@dataclass(frozen=True, slots=True)
class Identity:
    """All that an authorizer asks about the sender of a request.

    `mechanism`: how the client has authenticated: the name of a SASL mechanism, or SSL for a certificate; empty if it
    has not. A node of the cluster has a mechanism of its own.
    """

    address: Address
    principal: Principal = ANONYMOUS
    mechanism: str = ""
    granted: GrantedTopics = field(default_factory=GrantedTopics, compare=False, repr=False)
    """Decisions about this identity: a memory, no part of its value."""

    @property
    def is_node(self) -> bool:
        """Whether it is a node of the cluster, and has proved that on its connection."""
        return self.mechanism == NODE_MECHANISM


NODE_ITSELF: Final = Identity(Address(-1, ""), mechanism=NODE_MECHANISM)
"""The identity of requests that the node sends to itself."""
