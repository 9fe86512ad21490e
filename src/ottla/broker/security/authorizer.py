"""Decides about access, in one place: whether a client may do an operation on a resource.

It has the operations of each type of resource, and makes the authorized_operations bit fields. An API's spec says which
of them it needs (`ApiSpec.acl`). An `Authorizer` decides for each client, by ACLs (`acls`); a node without one allows
everything. Nodes of the cluster may do everything: the specs with `between_nodes` name the APIs that only they use. A
node with an audit log (`audit`) notes the decisions about what a client has asked for.

Every handler authorizes first, then looks up, then acts, so that an error never shows an unauthorized client whether a
name exists.

Sources: AclEntry.scala (supportedOperations), KafkaApis.scala; KIP-11, KIP-430, KIP-504, KIP-679.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.broker.client_identity import GRANTED_MAX, Identity
from ottla.broker.requests import Request
from ottla.metadata.acls import ACLS, WILDCARD
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


class Audit(Protocol):
    """Records decisions: `audit.Audit`. `noted`: a bit for each operation that is recorded when it is allowed."""

    @property
    def noted(self) -> int: ...

    def decided(
        self,
        identity: Identity,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        allowed: bool,
        request: Request | None,
        /,
    ) -> None: ...


class Access:
    """Decides whether a client may do something: asks the authorizer. Without one, everything is allowed. Nodes of the
    cluster may do everything too: a node that forwards requests could name any principal.

    - `is_node`: whether a request with this client id comes from a node of the cluster, also from one of an earlier
      version, which has ClusterAction only.
    - `audit`: what notes the decisions, None without an audit log.
    - `quiet`: the same, for questions where a no denies nothing that was asked for: one that another permission can
      make good, or whether a name belongs into a list. The audit log has no denials from it.
    """

    __slots__ = ("_is_node", "_metadata", "_notes_denials", "audit", "authorizer", "quiet")

    def __init__(
        self,
        authorizer: Authorizer | None,
        is_node: Callable[[Identity, str | None], bool],
        metadata: ImageHolder,
        audit: Audit | None = None,
        *,
        notes_denials: bool = True,
    ) -> None:
        self.authorizer = authorizer
        self._metadata = metadata
        self.audit = audit
        self._is_node = is_node
        self._notes_denials = notes_denials
        loud = notes_denials and audit is not None
        self.quiet: Access = Access(authorizer, is_node, metadata, audit, notes_denials=False) if loud else self

    def allows(
        self,
        identity: Identity,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        request: Request | None = None,
    ) -> bool:
        """Whether the client may do this. `request`: in which it asks, for the audit log."""
        if identity.is_node:
            return True
        authorizer, audit = self.authorizer, self.audit
        allowed = authorizer is None or authorizer.allows(identity, operation, resource_type, name)
        if audit is not None and (audit.noted >> operation & 1 if allowed else self._notes_denials):
            audit.decided(identity, operation, resource_type, name, allowed, request)
        return allowed

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
        return self.allows(request.identity, operation, ResourceType.TOPIC, name, request)

    def on_group(self, request: Request, operation: Operation, group_id: str) -> bool:
        return self.allows(request.identity, operation, ResourceType.GROUP, group_id, request)

    def on_any_topic(self, request: Request, operation: Operation) -> bool:
        """Whether there may be a topic on which the client may do this (KIP-679)."""
        identity = request.identity
        if self.authorizer is None or identity.is_node:
            return True
        allowed = self.authorizer.allows_any(identity, operation, ResourceType.TOPIC)
        if not allowed and self.audit is not None:
            self.audit.decided(identity, operation, ResourceType.TOPIC, WILDCARD, False, request)
        return allowed

    def on_cluster(self, request: Request, operation: Operation) -> bool:
        if operation is Operation.CLUSTER_ACTION and self._is_node(request.identity, request.client_id):
            return True
        return self.allows(request.identity, operation, ResourceType.CLUSTER, CLUSTER_NAME, request)

    def changes(self, request: Request, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Note that a client is allowed to change something, although this operation does not usually do so."""
        if self.audit is not None and not request.identity.is_node:
            self.audit.decided(request.identity, operation, resource_type, name, True, request)

    def authorized_operations(self, request: Request, resource_type: ResourceType, name: str) -> int:
        """The bit field of KIP-430: bit 1 << code for each operation the client may do."""
        bits = 0
        authorizer, identity = self.authorizer, request.identity
        for operation in SUPPORTED[resource_type]:
            if authorizer is None or identity.is_node or authorizer.allows(identity, operation, resource_type, name):
                bits |= 1 << operation
        return bits
