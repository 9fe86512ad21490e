"""Compares what principals may do with two sets of ACLs, so that a preview can say whom a change of an ACL affects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ottla.console.acl_rules import EVERY_USER, WILDCARD, Acl, decided
from ottla.protocol.acls import CLUSTER_NAME, Operation, PatternType, ResourceType

_O = Operation
OPERATIONS: Final = {
    ResourceType.TOPIC: (
        _O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS
    ),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (
        _O.CREATE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS, _O.IDEMPOTENT_WRITE, _O.ALTER, _O.DESCRIBE
    ),
    ResourceType.TRANSACTIONAL_ID: (_O.DESCRIBE, _O.WRITE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that exist on a kind of resource (Kafka's AclEntry.java)."""
ANY_OTHER: Final = "\0"
"""Stands for a principal, or the rest of a name, that no ACL names."""
PRINCIPALS_MAX: Final = 100
NAMES_MAX: Final = 50
"""Principals and resources that are compared."""


class Effect(NamedTuple):
    """A principal that may do something before and not after, or the other way round."""

    principal: str
    operation: str
    resource: str
    before: bool
    after: bool


@dataclass(frozen=True, slots=True)
class World:
    """The facts beside the ACLs: known principals and names of resources, super users, and the default rule."""

    principals: Sequence[str]
    names: Sequence[str]
    super_users: frozenset[str] = frozenset()
    allows_all: bool = False


def principals_of(acl: Acl, acls: Iterable[Acl], users: Iterable[str]) -> list[str]:
    """The principals that a change of this ACL could affect, its own first."""
    named = {each.principal for each in acls} | {f"User:{each}" for each in users}
    found = [acl.principal] if acl.principal != EVERY_USER else []
    found += sorted(named - {acl.principal, EVERY_USER})
    return [*found[: PRINCIPALS_MAX - 1], f"User:{ANY_OTHER}"]


def names_of(acl: Acl, existing: Iterable[str]) -> list[str]:
    """The names that its pattern covers: those that exist, and any other."""
    if acl.kind == ResourceType.CLUSTER.name:
        return [CLUSTER_NAME]
    if acl.pattern != PatternType.PREFIXED.name and acl.name != WILDCARD:
        return [acl.name]
    start = "" if acl.name == WILDCARD else acl.name
    return [*sorted(each for each in existing if each.startswith(start))[: NAMES_MAX - 1], start + ANY_OTHER]


def effects(acl: Acl, before: Sequence[Acl], after: Sequence[Acl], world: World) -> Iterator[Effect]:
    """The answers that the change of this ACL changes."""
    kind = ResourceType[acl.kind]
    host = "" if acl.host == WILDCARD else acl.host
    for name in world.names:
        old, new = ([each for each in acls if each.covers(kind, name)] for acls in (before, after))
        for principal in world.principals:
            if principal in world.super_users:
                continue
            for operation in OPERATIONS[kind]:
                was, will = (
                    world.allows_all if allowed is None else allowed
                    for allowed in (decided(acls, principal, host, operation)[0] for acls in (old, new))
                )
                if was != will:
                    yield Effect(_word(principal, "every other user"), operation.name, _word(name, "*"), was, will)


def _word(name: str, other: str) -> str:
    return other if name == f"User:{ANY_OTHER}" else name.replace(ANY_OTHER, f"{other} (every other name)")
