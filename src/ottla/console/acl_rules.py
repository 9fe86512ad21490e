"""Decides what ACLs allow, as the cluster's authorizer does, so that a page can say why.

Sources: Kafka's StandardAuthorizerData.java, AclEntry.java (implied operations); KIP-11, KIP-290.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ottla.protocol.acls import Operation, PatternType, PermissionType, ResourceType

EVERY_USER: Final = "User:*"
WILDCARD: Final = "*"
_O = Operation
IMPLYING: Final = {
    _O.DESCRIBE: frozenset({_O.ALL, _O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER}),
    _O.DESCRIBE_CONFIGS: frozenset({_O.ALL, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS}),
}
"""Operations whose permission allows another one too."""


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """An ACL. `name` and `pattern` say on which resources of the type."""

    kind: str
    name: str
    pattern: str
    principal: str
    host: str
    operation: str
    permission: str

    def covers(self, kind: ResourceType, name: str) -> bool:
        """Whether its pattern matches a resource."""
        if self.kind != kind.name:
            return False
        if self.pattern == PatternType.PREFIXED.name:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)

    def __str__(self) -> str:
        verb = "denies" if self.permission == PermissionType.DENY.name else "allows"
        on = f"{self.kind} {self.name}" + (" (a prefix)" if self.pattern == PatternType.PREFIXED.name else "")
        return f"{verb} {self.principal} {self.operation} on {on}, from {self.host}"


def decided(acls: Iterable[Acl], principal: str, host: str, operation: Operation) -> tuple[bool | None, Acl | None]:
    """Whether ACLs that cover a resource allow the operation, and by which one. None if there are no such ACLs: then
    `allow.everyone.if.no.acl.found` decides."""
    allowing = {each.name for each in IMPLYING.get(operation, frozenset({_O.ALL, operation}))}
    allowed: Acl | None = None
    found = False
    for acl in acls:
        found = True
        if acl.principal not in (principal, EVERY_USER) or acl.host not in (host, WILDCARD):
            continue
        if acl.permission == PermissionType.DENY.name:
            if acl.operation in (operation.name, _O.ALL.name):
                return False, acl
        elif acl.operation in allowing:
            allowed = allowed or acl
    return (True, allowed) if allowed is not None else (False if found else None, None)
