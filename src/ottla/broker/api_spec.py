"""Describes the properties of one API that a node needs before it imports the handler's module.

Each handler declares its `SPEC`; `tools/write_api_table.py` collects them in `api_table.py`. The specs decide how a
node treats an API key: whether it is served and advertised, who may send it, how long a request may be, and whether the
controller or a leader has to answer it. To serve one more API, write one module.

Sources: Kafka's ApiKeys.java (names, and which APIs are forwarded), KafkaApis.scala and ControllerApis.scala (the
operations that are authorized), SaslServerAuthenticator.java.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ottla.protocol.acls import Permission
from ottla.protocol.apis import ApiKey
from ottla.protocol.private_requests import PRIVATE_FROM


class Forwarding(Enum):
    """How a node that is not the controller handles a request (KIP-590)."""

    NEVER = "it serves the request itself"
    WHOLE = "it hands the request on as it came"
    IN_PART = "its handler hands on what is not about this node"


class RequestSize(Enum):
    """The size limit of a request, apart from `socket.request.max.bytes`, checked before the message is decoded."""

    USUAL = "`LONG_BYTES_MAX` and `LONG_ELEMENTS_MAX`"
    LARGE_FIELDS = "`LONG_ELEMENTS_MAX`: it carries subscriptions or assignments, which clients have made"
    MANY_ELEMENTS = "`LONG_BYTES_MAX`: it names ranges of offsets"
    READ_BY_HANDLER = "the handler, which reads the whole frame by itself"


class ApiSpec(NamedTuple):
    """The properties of one API.

    - `versions`: the lowest and the highest version served.
    - `answers_any_version`: the handler also answers versions outside that range (KIP-511).
    - `acl`: every operation that the handler may check with the authorizer, over all kinds of requests. The checks for
      the authorized_operations of KIP-430 are not included.
    - `between_nodes`: nodes of the cluster send this request to each other. Kafka requires ClusterAction on the cluster
      for it; if `acl` lacks that, only a connection on which a node has proved itself counts.
    - `internal`: no client sends this request. It is not advertised, and a standalone node does not serve it.
    - `before_authentication`: a client may send it before it has authenticated (KIP-43, KIP-152, KIP-368).
    - `needs_lease`: a leader or coordinator answers it, so a node must not answer while others may lead in its place.
    - `loaded_with`: an internal topic. A cluster node imports the handler when it gets its first replica of this topic,
      because it may have to coordinate at once when another node fails.
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

    @property
    def is_private(self) -> bool:
        """Whether it is one of Ottla's own requests, which ApiVersions does not list (`private_requests`)."""
        return self.key >= PRIVATE_FROM

    @property
    def is_advertised(self) -> bool:
        """Whether ApiVersions lists it."""
        return not (self.internal or self.is_private)
