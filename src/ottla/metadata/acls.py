"""Defines the rows of access control lists (ACLs), and finds the ones that apply to a resource.

    acls/["TOPIC", "PREFIXED", "orders-", "User:ada", "*", "READ", "ALLOW"]    {}

The key is the ACL: to create one that exists changes nothing. The image indexes ACLs by resource type and name, so that
a decision costs as many lookups as there are lengths of prefixes, however many ACLs there are.

Sources: Kafka's AccessControlEntryRecord, StandardAcl.java, ResourcePatternFilter.java, AccessControlEntryFilter.java;
KIP-11, KIP-290.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias, cast

from ottla.metadata.row_kinds import RowKind, Rows
from ottla.protocol.acls import ANY, MATCH, Operation, PatternType, PermissionType, ResourceType

PREFIX: Final = "acls/"
WILDCARD: Final = "*"
"""As the name of a LITERAL pattern: every name. As a host: every host."""


class AclBinding(NamedTuple):
    """One ACL: whether clients of a principal on a host may do an operation on the resources of a pattern.

    `principal`: such as "User:ada"; "User:*" for every user. `host`: an IP address as text, or `WILDCARD`.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: PermissionType

    @property
    def key(self) -> str:
        """The key of the ACL's row."""
        kind, pattern, name, principal, host, operation, permission = self
        return PREFIX + json.dumps(
            [kind.name, pattern.name, name, principal, host, operation.name, permission.name], ensure_ascii=False
        )

    def encode(self) -> bytes:
        """The value of its row, which says nothing: the key says it all."""
        return b"{}"

    def __str__(self) -> str:
        verb = "may" if self.permission is PermissionType.ALLOW else "may not"
        from_where = "" if self.host == WILDCARD else f" from {self.host}"
        star = " (prefix)" if self.pattern_type is PatternType.PREFIXED else ""
        return f"{self.principal}{from_where} {verb} {self.operation.name} {self.resource_type.name} {self.name}{star}"


def binding_of(name: str) -> AclBinding:
    """The ACL that the key of a row names, behind the prefix. Raises ValueError, KeyError or TypeError for a damaged
    name."""
    kind, pattern, resource, principal, host, operation, permission = cast("list[str]", json.loads(name))
    return AclBinding(
        ResourceType[kind],
        PatternType[pattern],
        resource,
        principal,
        host,
        Operation[operation],
        PermissionType[permission],
    )


class AclFilter(NamedTuple):
    """Matches ACLs. A code of `ANY`, and a text of None, match everything.

    `pattern_type` may be `MATCH`: then `name` is a resource's name, and every pattern that applies to it matches.
    """

    resource_type: int = ANY
    pattern_type: int = ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches(self, acl: AclBinding) -> bool:
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        if self.pattern_type not in (ANY, MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern_type != MATCH:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD


_Patterns: TypeAlias = Mapping[tuple[ResourceType, str], tuple[AclBinding, ...]]


class AclTable:
    """All ACLs. It never changes, so decisions that were made by it may be kept with it.

    `by_row`: ACLs by the names of their rows. `lengths`: the lengths of the prefixes that ACLs on this type name, in
    ascending order.
    """

    __slots__ = ("by_row", "lengths", "literal", "prefixed")

    def __init__(
        self,
        by_row: Mapping[str, AclBinding],
        literal: _Patterns,
        prefixed: _Patterns,
        lengths: Mapping[ResourceType, tuple[int, ...]],
    ) -> None:
        self.by_row = by_row
        self.literal = literal
        self.prefixed = prefixed
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.by_row)

    def __iter__(self) -> Iterator[AclBinding]:
        return iter(self.by_row.values())

    def on(self, resource_type: ResourceType, name: str) -> Iterator[AclBinding]:
        """The ACLs whose patterns match this resource, of any principal."""
        yield from self.literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self.literal.get((resource_type, WILDCARD), ())
        for length in self.lengths.get(resource_type, ()):
            if length > len(name):
                break
            yield from self.prefixed.get((resource_type, name[:length]), ())


EMPTY: Final = AclTable({}, {}, {}, {})


def _changed(part: AclTable, rows: Rows) -> AclTable:
    by_row = dict(part.by_row)
    tables = {
        PatternType.LITERAL: dict(part.literal),
        PatternType.PREFIXED: dict(part.prefixed),
    }
    for name, row in rows.items():
        known = by_row.pop(name, None)
        if known is not None:
            table, pattern = tables[known.pattern_type], (known.resource_type, known.name)
            table[pattern] = tuple(each for each in table[pattern] if each != known)
            if not table[pattern]:
                del table[pattern]
        if row is not None:
            acl = by_row[name] = cast("AclBinding", row.record)
            table, pattern = tables[acl.pattern_type], (acl.resource_type, acl.name)
            table[pattern] = (*table.get(pattern, ()), acl)
    prefixed = tables[PatternType.PREFIXED]
    lengths: dict[ResourceType, set[int]] = {}
    for resource_type, name in prefixed:
        lengths.setdefault(resource_type, set()).add(len(name))
    return AclTable(
        by_row, tables[PatternType.LITERAL], prefixed, {kind: tuple(sorted(each)) for kind, each in lengths.items()}
    )


def _row_names(part: AclTable) -> Collection[str]:
    return part.by_row


ACLS: Final[RowKind[AclTable]] = RowKind(
    PREFIX, lambda _value, name, _part: binding_of(name), _changed, _row_names, EMPTY
)
"""The access control lists of the cluster."""
