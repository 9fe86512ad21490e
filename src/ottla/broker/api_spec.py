"""Describes one API as far as a node needs to know it before the handler's module is imported.

Each handler declares its `SPEC`; `tools/write_api_table.py` collects them in `api_table.py`, from which all that a node
does with an API key follows: whether it is served and advertised, who may ask, how long a request may be, whether the
controller or a leader has to answer it. To serve one more API is to write one module.

Sources: Kafka's ApiKeys.java (names, and which APIs are forwarded), KafkaApis.scala and ControllerApis.scala (the
operations that are authorized), SaslServerAuthenticator.java.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ottla.protocol.acls import Permission
from ottla.protocol.apis import ApiKey


class Forwarding(Enum):
    """What a node that is not the controller does with a request (KIP-590)."""

    NEVER = "it serves the request itself"
    WHOLE = "it hands the request on as it came"
    IN_PART = "its handler hands on what is not about this node"


class RequestSize(Enum):
    """What bounds a request beside `socket.request.max.bytes`, before its message is built."""

    USUAL = "`LONG_BYTES_MAX` and `LONG_ELEMENTS_MAX`"
    LARGE_FIELDS = "`LONG_ELEMENTS_MAX`: it carries subscriptions or assignments, which clients have made"
    MANY_ELEMENTS = "`LONG_BYTES_MAX`: it names ranges of offsets"
    READ_BY_HANDLER = "the handler, which reads the whole frame by itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSpec:
    """What a node knows about an API.

    `versions`: the lowest and the highest that are served; `answers_any_version`: the handler answers others too
    (KIP-511). `acl`: every operation that the handler asks the authorizer about, those for one request or another
    together; what is asked for the authorized_operations of KIP-430 is not among them. `between_nodes`: nodes of the
    cluster ask each other for it, for which Kafka wants ClusterAction on the cluster; where `acl` lacks that, nodes are
    known by their secret alone. `internal`: nobody else asks, so it is not advertised, and a node alone does not serve
    it. `before_authentication`: a client may ask before it has said who it is (KIP-43, KIP-152, KIP-368).
    `needs_lease`: a leader's or coordinator's answer, which a node does not have while others may lead in its place.
    `loaded_with`: the topic with whose first replica here a node of a cluster imports the handler, as it may have to
    coordinate at once when another one dies.
    """

    key: ApiKey
    versions: tuple[int, int]
    acl: tuple[Permission, ...] = ()
    size: RequestSize = RequestSize.USUAL
    forwarding: Forwarding = Forwarding.NEVER
    needs_lease: bool = False
    before_authentication: bool = False
    between_nodes: bool = False
    internal: bool = False
    answers_any_version: bool = False
    loaded_with: str | None = None
