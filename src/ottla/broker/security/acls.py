"""Decides by ACLs what a client may do, by Kafka's rules.

1. A super user may do everything.
2. An ACL applies if its pattern, principal, host and operation match. ALL matches every operation. An ALLOW of READ,
   WRITE, DELETE or ALTER also allows DESCRIBE, and one of ALTER_CONFIGS also allows DESCRIBE_CONFIGS. A DENY implies
   nothing.
3. If any DENY applies, the answer is no; otherwise, if any ALLOW applies, it is yes.
4. If no ACL's pattern matches the resource, `allow.everyone.if.no.acl.found` decides; otherwise the answer is no.

Sources: Kafka's StandardAuthorizerData.java, Authorizer.java (authorizeByResourceType); KIP-11, KIP-290, KIP-679.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from ottla.broker.client_identity import Identity
from ottla.broker.security.authorizer import ImageHolder
from ottla.metadata.acls import ACLS, EMPTY, WILDCARD, AclBinding, AclTable
from ottla.protocol.acls import Operation, PatternType, PermissionType, ResourceType

if TYPE_CHECKING:
    from ottla.metadata.image import MetadataImage

EVERY_USER: Final = "User:*"
DECISIONS_MAX: Final = 20_000
"""How many decisions an authorizer remembers before it forgets all of them."""

_ANY_NAME: Final = "hardcode"
"""The name that Kafka asks about first (Authorizer.java), so that super users and the default rule count."""

_O = Operation
_IMPLIED_BY: Final = {
    _O.DESCRIBE: frozenset((_O.ALL, _O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER)),
    _O.DESCRIBE_CONFIGS: frozenset((_O.ALL, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS)),
}
"""The operations whose ALLOW also allows the key, if they are more than itself and ALL."""


class Rule(NamedTuple):
    """Why a client may or may not do something. `acl`: the ACL that decided, None if no ACL did."""

    allowed: bool
    why: str
    acl: AclBinding | None = None


SUPER_USER: Final = Rule(True, "It is a super user.")
ALLOWED_WITHOUT_ACL: Final = Rule(
    True, "No ACL matches this resource, and allow.everyone.if.no.acl.found lets everyone in."
)
DENIED_WITHOUT_ACL: Final = Rule(False, "No ACL matches this resource.")
DENIED_BY_OMISSION: Final = Rule(False, "ACLs match this resource, but none of them allows it.")


def decide(
    acls: Iterable[AclBinding], principal: str, host: str, operation: Operation, *, allowed_without_acl: bool
) -> Rule:
    """The rule for an operation, by all ACLs whose patterns match a resource."""
    allowing = _IMPLIED_BY.get(operation, frozenset((_O.ALL, operation)))
    allow: AclBinding | None = None
    found = False
    for acl in acls:
        found = True
        if acl.principal not in (principal, EVERY_USER) or acl.host not in (host, WILDCARD):
            continue
        if acl.permission is PermissionType.DENY:
            if acl.operation in (operation, _O.ALL):
                return Rule(False, f"An ACL denies it: {acl}.", acl)
        elif acl.operation in allowing:
            allow = allow or acl
    if allow is not None:
        return Rule(True, f"An ACL allows it: {allow}.", allow)
    if found:
        return DENIED_BY_OMISSION
    return ALLOWED_WITHOUT_ACL if allowed_without_acl else DENIED_WITHOUT_ACL


class AclAuthorizer:
    """Decides by the ACLs of the metadata image; an `authorizer.Authorizer`. A change of ACLs holds from the next
    request on, also of open connections.

    Decisions are kept by identity, of which each connection has its own, until the ACLs change. Whether they have is
    one comparison as long as the image is the same.
    """

    def __init__(self, metadata: ImageHolder, super_users: Collection[str], allowed_without_acl: bool) -> None:
        self._metadata = metadata
        self._super_users = frozenset(super_users)
        self._allowed_without_acl = allowed_without_acl
        self._image: MetadataImage | None = None
        self._decided_by: AclTable = EMPTY
        self._decisions: dict[int, tuple[Identity, dict[tuple[int, int, str], bool]]] = {}
        """By the id of the identity, which is kept with them; then by operation, type of resource, and name."""
        self._count = 0

    def rule(self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str) -> Rule:
        """Whether, and why. Pure."""
        if principal in self._super_users:
            return SUPER_USER
        found = self._metadata.image[ACLS].on(resource_type, name)
        return decide(found, principal, host, operation, allowed_without_acl=self._allowed_without_acl)

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        of_client = self._of(identity)
        asked = (operation._value_, resource_type._value_, name)
        known = of_client.get(asked)
        if known is None:
            host = identity.address.client_host
            known = self.rule(str(identity.principal), host, operation, resource_type, name).allowed
            of_client[asked] = known
            self._count += 1
        return known

    def is_super(self, identity: Identity) -> bool:
        return str(identity.principal) in self._super_users

    def _of(self, identity: Identity) -> dict[tuple[int, int, str], bool]:
        """The decisions about a client, by the ACLs that hold now."""
        image = self._metadata.image
        if image is not self._image or self._count >= DECISIONS_MAX:
            self._image, table = image, image[ACLS]
            if table is not self._decided_by or self._count >= DECISIONS_MAX:
                self._decided_by, self._count = table, 0
                self._decisions.clear()
        of_client = self._decisions.get(id(identity))
        if of_client is None:
            of_client = self._decisions[id(identity)] = (identity, {})
            self._count += 1
        return of_client[1]

    def allows_any(self, identity: Identity, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of this type on which the client may do the operation (KIP-679): an ALLOW
        whose pattern no DENY covers."""
        principal, host = str(identity.principal), identity.address.client_host
        if self.rule(principal, host, operation, resource_type, _ANY_NAME).allowed:
            return True
        allowed: list[AclBinding] = []
        denied: list[AclBinding] = []
        for acl in self._metadata.image[ACLS]:
            if (
                acl.resource_type is resource_type
                and acl.operation in (operation, _O.ALL)
                and acl.principal in (principal, EVERY_USER)
                and acl.host in (host, WILDCARD)
            ):
                (allowed if acl.permission is PermissionType.ALLOW else denied).append(acl)
        if any(_is_wildcard(acl) for acl in denied):
            return False
        if any(_is_wildcard(acl) for acl in allowed):
            return True
        return any(not any(_covers(deny, acl) for deny in denied) for acl in allowed)


def _is_wildcard(acl: AclBinding) -> bool:
    return acl.pattern_type is PatternType.LITERAL and acl.name == WILDCARD


def _covers(deny: AclBinding, allow: AclBinding) -> bool:
    """Whether every name that the one pattern matches is denied by the other."""
    if deny.pattern_type is PatternType.PREFIXED:
        return allow.name.startswith(deny.name)
    return allow.pattern_type is PatternType.LITERAL and deny.name == allow.name
