"""Adds and removes an ACL, with a preview of whom it affects: what they may do before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.errors import BrokerError, ClientError, check
from ottla.console.acl_effects import OPERATIONS, Effect, World, effects, names_of, principals_of
from ottla.console.acl_rules import WILDCARD, Acl
from ottla.console.group_reading import coordinated
from ottla.console.page import Context, Done, Field, InputError, Preview
from ottla.console.reading import metadata_of_all
from ottla.console.security_reading import ALLOW_ALL, acls_of, authorizer_settings, super_users_in, users_of
from ottla.doctor.words import count
from ottla.escaping import visible
from ottla.protocol.acls import CLUSTER_NAME, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

ROWS_MAX: Final = 200
MAY: Final = {False: "may not", True: "may"}


def add_fields(context: Context) -> tuple[Field, ...]:
    name = context.query.get("principal", "")
    return (
        Field("principal", "Principal", value=name, hint="User:ada; User:* for every user.", required=True),
        Field("permission", "Permission", "select", "ALLOW", ("ALLOW", "DENY")),
        Field("operation", "Operation", "select", "READ", tuple(each.name for each in Operation)),
        Field("kind", "On", "select", "TOPIC", tuple(each.name for each in ResourceType)),
        Field("name", "Name", hint="* for every name; empty for the cluster."),
        Field("pattern", "The name is", "select", "LITERAL", tuple(each.name for each in PatternType)),
        Field("host", "From host", value=WILDCARD, hint="An IP address; * for every host."),
    )


def acl_in(given: Mapping[str, str]) -> Acl:
    """The ACL that a form or an address names. Raises InputError."""
    principal, name, host = (given.get(each, "").strip() for each in ("principal", "name", "host"))
    if ":" not in principal:
        raise InputError("A principal is TYPE:NAME, as in User:ada.")
    try:
        kind, pattern = ResourceType[given.get("kind", "")], PatternType[given.get("pattern", "")]
        operation, permission = Operation[given.get("operation", "")], PermissionType[given.get("permission", "")]
    except KeyError:
        raise InputError("Choose a permission, an operation, a kind of resource and a pattern.") from None
    if kind is ResourceType.CLUSTER:
        name, pattern = CLUSTER_NAME, PatternType.LITERAL
    if not name:
        raise InputError("Give the name of the resource, or * for every name.")
    if operation is not Operation.ALL and operation not in OPERATIONS[kind]:
        raise InputError(f"There is no operation {operation.name} on {kind.name}.")
    return Acl(kind.name, name, pattern.name, principal, host or WILDCARD, operation.name, permission.name)


def preview_of(context: Context, acl: Acl, *, adds: bool) -> Preview:
    """Counts the principals that the change affects. Raises InputError if there is nothing to change."""
    before = acls_of(context)
    if adds == (acl in before):
        raise InputError("This ACL exists already." if adds else "This ACL does not exist any more.")
    after = sorted([*before, acl]) if adds else [each for each in before if each != acl]
    settings, unseen = authorizer_settings(context), list[str]()
    try:
        users = list(users_of(context))
    except BrokerError as refused:  # where there are no SCRAM users, or the user may not see them
        users, unseen = [], [f"Users: {refused}"]
    world = World(
        principals_of(acl, before, users),
        names_of(acl, existing(context, acl, unseen)),
        super_users_in(settings),
        settings.get(ALLOW_ALL, "").lower() == "true",
    )
    found = list(effects(acl, before, after, world))
    lost, won = ([each for each in found if each.after is now] for now in (False, True))
    warnings = [*losses(lost, context.session.user), *(f"Not seen: {each}" for each in unseen)]
    sentence = f"{'Adds' if adds else 'Removes'} an ACL that {visible(str(acl))}."
    nothing = "No answer changes: other ACLs or super.users decide."
    counts = (
        f"{count(len({each.principal for each in found}), 'principal')} affected: "
        f"{count(len(won), 'permission')} more, {count(len(lost), 'permission')} fewer."
    )
    return Preview(
        acl.principal,
        (sentence, counts if found else nothing),
        tuple(warnings),
        ("Principal", "Operation", acl.kind.capitalize().replace("_", " "), "Before", "After"),
        tuple((*each[:3], MAY[each.before], MAY[each.after]) for each in found[:ROWS_MAX]),
        facts=(tuple(found), acl),
        command=context.command("acls", "add" if adds else "remove", *options_of(acl)),
    )


def losses(lost: Sequence[Effect], user: str | None) -> list[str]:
    """Warnings about permissions that would be lost."""
    losers = {each.principal for each in lost}
    found = [f"{count(len(losers), 'principal')} with fewer permissions; open connections too."] if lost else []
    return [*(["You are one of them."] if f"User:{user}" in losers else []), *found][::-1]


def existing(context: Context, acl: Acl, unseen: list[str]) -> list[str]:
    """The names of topics or groups, where the ACL has a pattern of several names."""
    if acl.pattern != PatternType.PREFIXED.name and acl.name != WILDCARD:
        return []
    if acl.kind == ResourceType.TOPIC.name:
        return [each.name for each in metadata_of_all(context).topics if each.name]
    if acl.kind == ResourceType.GROUP.name:
        return [each.name for each in coordinated(context, unseen)]
    return []


def options_of(acl: Acl) -> list[str]:
    """The options of `ottla acls` for an ACL."""
    found = ["--principal", acl.principal, "--operation", acl.operation.lower().replace("_", "-")]
    found += ["--host", acl.host] if acl.host != WILDCARD else []
    found.append("--" + acl.kind.lower().replace("_", "-"))
    found += [acl.name] if acl.kind != ResourceType.CLUSTER.name else []
    found += ["--prefix"] if acl.pattern == PatternType.PREFIXED.name else []
    return found + (["--deny"] if acl.permission == PermissionType.DENY.name else [])


def add_preview(context: Context) -> Preview:
    return preview_of(context, acl_in(context.form), adds=True)


def add(context: Context) -> Done:
    """Add the ACL."""
    acl = acl_in(context.form)
    (result,) = context.client.send(CreateAclsRequest([AclCreation(*codes(acl))])).results
    check(result.error_code, "the ACL", result.error_message)
    return Done(f"Added an ACL that {visible(str(acl))}.", "/security", {"acl": str(acl)})


def remove_preview(context: Context) -> Preview:
    return preview_of(context, acl_in(context.query), adds=False)


def remove(context: Context) -> Done:
    """Remove the ACL that the address names, and no other. Raises ClientError."""
    acl = acl_in(context.query)
    (result,) = context.client.send(DeleteAclsRequest([DeleteAclsFilter(*codes(acl))])).filter_results
    check(result.error_code, "the ACL", result.error_message)
    if not result.matching_acls:
        raise ClientError("The ACL does not exist any more.")
    return Done(f"Removed an ACL that {visible(str(acl))}.", "/security", {"acl": str(acl)})


def codes(acl: Acl) -> tuple[int, str, int, str, str, int, int]:
    """The fields of an ACL in requests."""
    return (
        ResourceType[acl.kind],
        acl.name,
        PatternType[acl.pattern],
        acl.principal,
        acl.host,
        Operation[acl.operation],
        PermissionType[acl.permission],
    )
