"""Decides about access, in one place: whether a client may do an operation on a resource.

It has the operations of each type of resource, and makes the authorized_operations bit fields. An API's spec says which
of them it needs (`ApiSpec.acl`). An `Authorizer` decides for each client, by ACLs (`acls`); a node without one allows
everything. Nodes of the cluster may do everything: the specs with `between_nodes` name the APIs that only they use.

Every handler authorizes first, then looks up, then acts, so that an error never shows an unauthorized client whether a
name exists.

Sources: AclEntry.scala (supportedOperations), KafkaApis.scala; KIP-11, KIP-430, KIP-504, KIP-679.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.broker.client_identity import GRANTED_MAX, Identity
from ottla.broker.requests import Request
from ottla.metadata.acls import ACLS
from ottla.metadata.image import MetadataImage
from ottla.protocol.acls import CLUSTER_NAME, Operation, ResourceType

NOT_ASKED: Final = -(1 << 31)
"""The authorized_operations if the client did not ask for them."""

_O = Operation
SUPPORTED: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        _O.READ,
        _O.WRITE,
        _O.CREATE,
        _O.DESCRIBE,
        _O.DELETE,
        _O.ALTER,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (_O.READ, _O.DESCRIBE, _O.DELETE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE,
        _O.CLUSTER_ACTION,
        _O.DESCRIBE_CONFIGS,
        _O.ALTER_CONFIGS,
        _O.IDEMPOTENT_WRITE,
        _O.ALTER,
        _O.DESCRIBE,
    ),
}
"""The operations that mean something on a resource, in the order Kafka lists them."""


class ImageHolder(Protocol):
    """Holds the metadata image that is true now."""

    @property
    def image(self) -> MetadataImage: ...


class Authorizer(Protocol):
    """Decides. All are pure questions: they may be asked any number of times for one request."""

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool: ...

    def allows_any(self, identity: Identity, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the client may do the operation on some resource of this type."""
        ...

    def is_super(self, identity: Identity) -> bool:
        """Whether the client may do everything, whatever the ACLs are."""
        ...


class Access:
    """Decides whether a client may do something: asks the authorizer. Without one, everything is allowed. Nodes of the
    cluster may do everything too: a node that forwards requests could name any principal. `is_node`: whether a request
    with this client id comes from a node, also from one of an earlier version, which has ClusterAction only."""

    __slots__ = ("_is_node", "_metadata", "authorizer")

    def __init__(
        self,
        authorizer: Authorizer | None,
        is_node: Callable[[Identity, str | None], bool],
        metadata: ImageHolder,
    ) -> None:
        self.authorizer = authorizer
        self._metadata = metadata
        self._is_node = is_node

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        if self.authorizer is None or identity.is_node:
            return True
        return self.authorizer.allows(identity, operation, resource_type, name)

    def depends_on_acls(self, identity: Identity) -> bool:
        """Whether ACLs decide what this client may do."""
        if self.authorizer is None or identity.is_node:
            return False
        return not self.authorizer.is_super(identity)

    def may_write(self, identity: Identity, topic: str | bytes) -> bool:
        """Whether the client may write to a topic, named or by id; to a missing id it may, as that has no effect.

        What was allowed once is kept with the identity, until the ACLs change.
        """
        granted = identity.granted
        if granted.image is self._metadata.image and topic in granted.written:
            return True
        return self.authorizer is None or self._may(identity, _O.WRITE, topic, granted.written)

    def may_read(self, identity: Identity, topic: str | bytes) -> bool:
        """The same for reading."""
        granted = identity.granted
        if granted.image is self._metadata.image and topic in granted.read:
            return True
        return self.authorizer is None or self._may(identity, _O.READ, topic, granted.read)

    def _may(self, identity: Identity, operation: Operation, topic: str | bytes, allowed: set[str | bytes]) -> bool:
        """Decide, by the ACLs that hold now. `allowed`: the identity's set of this operation."""
        granted, image = identity.granted, self._metadata.image
        if granted.image is not image:
            granted.hold_until_change_of(image, image[ACLS])
        if topic in allowed:
            return True
        name = image.name_of(topic)
        if name is None:
            return True
        if not self.allows(identity, operation, ResourceType.TOPIC, name):
            return False
        if len(allowed) >= GRANTED_MAX:
            allowed.clear()
        allowed.add(topic)
        return True

    def on_topic(self, request: Request, operation: Operation, name: str) -> bool:
        return self.allows(request.identity, operation, ResourceType.TOPIC, name)

    def on_group(self, request: Request, operation: Operation, group_id: str) -> bool:
        return self.allows(request.identity, operation, ResourceType.GROUP, group_id)

    def on_any_topic(self, request: Request, operation: Operation) -> bool:
        """Whether there may be a topic on which the client may do this (KIP-679)."""
        if self.authorizer is None or request.identity.is_node:
            return True
        return self.authorizer.allows_any(request.identity, operation, ResourceType.TOPIC)

    def on_cluster(self, request: Request, operation: Operation) -> bool:
        if self.authorizer is None:
            return True
        if operation is Operation.CLUSTER_ACTION and self._is_node(request.identity, request.client_id):
            return True
        return self.allows(request.identity, operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def authorized_operations(self, request: Request, resource_type: ResourceType, name: str) -> int:
        """The bit field of KIP-430: bit 1 << code for each operation the client may do."""
        bits = 0
        for operation in SUPPORTED[resource_type]:
            if self.allows(request.identity, operation, resource_type, name):
                bits |= 1 << operation
        return bits
