"""`ottla acls`: lists, adds and removes access control lists (ACLs), and says what a client may do, and by which rule.

It works with any Kafka that has an authorizer (KIP-11, KIP-140, KIP-290).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.completing import starting
from ottla.cli.connection import HERE, Cluster, Output, client, named
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, counted, print_done, print_json, print_rows, say
from ottla.cli.plans import Yes, confirm
from ottla.protocol.acls import ANY, CLUSTER_NAME, MATCH, Operation, PatternType, PermissionType, ResourceType

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.metadata.acls import AclBinding

app = typer.Typer(help="Show and change who may do what (ACLs).", no_args_is_help=True)

COLUMNS = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
OPERATIONS = {each.name.lower().replace("_", "-"): each for each in Operation}
"""Operations by their names on the command line."""


def known_operations(given: list[str] | None) -> list[str] | None:
    """The callback of --operation; raises typer.BadParameter for one that does not exist."""
    for name in given or ():
        if name not in OPERATIONS:
            raise typer.BadParameter(f"there is no operation {name!r}: choose from {', '.join(OPERATIONS)}")
    return given


@dataclass(frozen=True, slots=True)
class Resource:
    """The resource of an ACL; several of these options make one ACL each."""

    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", callback=named, help="Topic; * for all; may be repeated."),
    ] = None
    group: Annotated[
        list[str] | None,
        typer.Option("--group", metavar="NAME", callback=named, help="Group; * for all; may be repeated."),
    ] = None
    transactional_id: Annotated[
        list[str] | None,
        typer.Option("--transactional-id", metavar="ID", callback=named, help="Transactional id; may be repeated."),
    ] = None
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user", metavar="PRINCIPAL", callback=named, help="User whose tokens the ACL is about; may be repeated."
        ),
    ] = None
    whole_cluster: Annotated[bool, typer.Option("--cluster", help="The cluster as a whole.")] = False

    def __iter__(self) -> Iterator[tuple[ResourceType, str]]:
        for kind, names in (
            (ResourceType.TOPIC, self.topic),
            (ResourceType.GROUP, self.group),
            (ResourceType.TRANSACTIONAL_ID, self.transactional_id),
            (ResourceType.USER, self.user),
        ):
            for name in names or ():
                yield kind, name
        if self.whole_cluster:
            yield ResourceType.CLUSTER, CLUSTER_NAME


ANYTHING = Resource()
Principal = Annotated[
    str | None,
    typer.Option(
        "--principal",
        metavar="TYPE:NAME",
        callback=named,
        help="Principal, for example User:ada; User:* for every user (default for list: all).",
    ),
]
Host = Annotated[
    str | None, typer.Option("--host", metavar="ADDRESS", callback=named, help="Address of the client (default: all).")
]
Operations = Annotated[
    list[str] | None,
    typer.Option(
        "--operation",
        metavar="OPERATION",
        callback=known_operations,
        autocompletion=lambda incomplete: starting(OPERATIONS, incomplete),
        help="Operation, for example read or alter-configs; may be repeated (default for list: all).",
    ),
]
Prefixed = Annotated[bool, typer.Option("--prefix", help="Apply to all names that begin with the given ones.")]


@app.command("list", epilog="Example: ottla acls list --topic orders --for-name")
@with_shared_options
def list_(
    resource: Resource = ANYTHING,
    principal: Principal = None,
    host: Host = None,
    operation: Operations = None,
    for_name: Annotated[
        bool, typer.Option("--for-name", help="List all ACLs that apply to the names, also by prefix or *.")
    ] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """List all ACLs, or those that match the options."""
    with client(cluster) as connected:
        found = find(connected, resource, principal, host, operation, MATCH if for_name else ANY)
    print_rows(COLUMNS, sorted(row_of(acl) for acl in found), format)


@app.command(
    epilog="Example: ottla acls add --principal User:ada --operation read --topic orders- --prefix --group billing"
)
@with_shared_options
def add(
    resource: Resource = ANYTHING,
    principal: Principal = None,
    host: Host = None,
    operation: Operations = None,
    prefix: Prefixed = False,
    deny: Annotated[bool, typer.Option("--deny", help="Deny the operations; a DENY overrides every ALLOW.")] = False,
    producer: Annotated[
        bool,
        typer.Option(
            "--producer", help="Allow producing: write, describe and create on topics, write on transactional ids."
        ),
    ] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="Allow consuming: read and describe on the topics, read on the groups.")
    ] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Add an ACL for each operation on each resource. An ACL that exists already stays as it is."""
    from ottla.client.errors import check
    from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest

    if principal is None:
        raise UsageError("Say for whom: --principal User:NAME.")
    pattern = PatternType.PREFIXED if prefix else PatternType.LITERAL
    permission = PermissionType.DENY if deny else PermissionType.ALLOW
    wanted = list(dict.fromkeys(operations_of(resource, operation, producer=producer, consumer=consumer)))
    if not wanted:
        raise UsageError(
            "Say what may be done: --operation, --producer or --consumer, and --topic, --group, --transactional-id, "
            "--user or --cluster."
        )
    made = [
        # A prefix of the cluster's only name says nothing.
        AclCreation(
            kind,
            name,
            PatternType.LITERAL if kind is ResourceType.CLUSTER else pattern,
            principal,
            host or "*",
            each,
            permission,
        )
        for kind, name, each in wanted
    ]
    with client(cluster) as connected:
        for (kind, name, each), result in zip(wanted, connected.send(CreateAclsRequest(made)).results, strict=True):
            check(result.error_code, f"{each.name} on {kind.name} {name}", result.error_message)
    print_done(f"Added {counted(len(made), 'ACL')} for {principal}.", format, added=len(made))


@app.command(epilog="Example: ottla acls remove --principal User:ada --topic orders")
@with_shared_options
def remove(
    resource: Resource = ANYTHING,
    principal: Principal = None,
    host: Host = None,
    operation: Operations = None,
    yes: Yes = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Remove the ACLs that match the options. The command shows them first and asks, unless you pass --yes."""
    if resource == ANYTHING and principal is None:
        raise UsageError("Say which ACLs: name a resource or --principal.")
    with client(cluster) as connected:
        found = find(connected, resource, principal, host, operation, ANY)
        if not found:
            raise CommandError("No ACL matches: nothing was removed.")
        if not yes:
            print_rows(COLUMNS, sorted(row_of(acl) for acl in found), Format.TABLE)
            confirm(f"Remove {'this ACL' if len(found) == 1 else f'these {len(found)} ACLs'}?", yes)
        removed = delete(connected, found)
    print_done(f"Removed {counted(removed, 'ACL')}.", format, removed=removed)


@app.command("check", epilog="Example: ottla acls check --principal User:ada --operation write --topic orders")
@with_shared_options
def check_(
    resource: Resource = ANYTHING,
    principal: Principal = None,
    host: Host = None,
    operation: Operations = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Say whether a principal may do something, and by which rule. The exit code is 1 if not.

    The answer follows the ACLs, super.users and allow.everyone.if.no.acl.found of the node that answers. Without
    --host, it holds for a client whose address no ACL names.
    """
    if principal is None or not operation or resource == ANYTHING:
        raise UsageError("Say what to check: --principal, --operation and a resource.")
    if ":" not in principal:
        raise UsageError(f"{principal!r} is no principal: expected TYPE:NAME, as in User:{principal}.")
    with client(cluster) as connected:
        rules = Rules(connected)
        answers = [
            (kind, name, OPERATIONS[each], *rules.of(principal, host or "", OPERATIONS[each], kind, name))
            for kind, name in resource
            for each in operation
        ]
    if format is Format.JSON:
        keys = ("resource", "name", "operation", "allowed", "why")
        print_json([dict(zip(keys, (k.name, name, op.name, ok, why), strict=True)) for k, name, op, ok, why in answers])
    else:
        for kind, name, asked, allowed, why in answers:
            say(f"{principal} {'may' if allowed else 'may not'} {asked.name} {kind.name} {name}: {why}")
    denied = sum(not allowed for *_, allowed, _ in answers)
    if denied:
        raise CommandError(
            f"{denied} of {counted(len(answers), 'operation')} {'is' if denied == 1 else 'are'} not allowed."
        )


class Rules:
    """Decides as the cluster's authorizer does, from what the cluster tells."""

    def __init__(self, connected: Client) -> None:
        self._connected = connected
        configs = broker_configs(connected, "super.users", "allow.everyone.if.no.acl.found")
        self._super_users = [each.strip() for each in configs.get("super.users", "").split(";")]
        self._allowed_without_acl = configs.get("allow.everyone.if.no.acl.found", "").lower() == "true"

    def of(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> tuple[bool, str]:
        """Whether, and why."""
        from ottla.broker.security.acls import SUPER_USER, decide

        if principal in self._super_users:
            return SUPER_USER.allowed, SUPER_USER.why
        acls = found_by(self._connected, kind, name, MATCH)
        rule = decide(acls, principal, host, operation, allowed_without_acl=self._allowed_without_acl)
        return rule.allowed, rule.why


# ---- requests ------------------------------------------------------------------------------------------------------


def broker_configs(connected: Client, *names: str) -> dict[str, str]:
    """These properties of the node that answers."""
    from ottla.client.errors import check
    from ottla.protocol.config_resources import ConfigResourceType
    from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    node = connected.metadata([]).brokers[0].node_id
    asked = DescribeConfigsResource(ConfigResourceType.BROKER, str(node), list(names))
    (found,) = connected.send(DescribeConfigsRequest([asked])).results
    check(found.error_code, f"the configs of node {node}", found.error_message)
    return {each.name: each.value or "" for each in found.configs}


def operations_of(
    resource: Resource, operations: Iterable[str] | None, *, producer: bool, consumer: bool
) -> Iterator[tuple[ResourceType, str, Operation]]:
    """(type, name, operation) of each ACL that the options name."""
    for kind, name in resource:
        for each in operations or ():
            yield kind, name, OPERATIONS[each]
        if producer and kind is ResourceType.TOPIC:
            yield from ((kind, name, each) for each in (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE))
        if producer and kind is ResourceType.TRANSACTIONAL_ID:
            yield from ((kind, name, each) for each in (Operation.WRITE, Operation.DESCRIBE))
        if consumer and kind is ResourceType.TOPIC:
            yield from ((kind, name, each) for each in (Operation.READ, Operation.DESCRIBE))
        if consumer and kind is ResourceType.GROUP:
            yield kind, name, Operation.READ


def find(
    connected: Client,
    resource: Resource,
    principal: str | None,
    host: str | None,
    operations: Iterable[str] | None,
    pattern: int,
) -> list[AclBinding]:
    """The ACLs that match what the options name."""
    places: list[tuple[int, str | None]] = list(resource) or [(ANY, None)]
    codes = {OPERATIONS[each] for each in operations or ()}
    found: dict[AclBinding, None] = {}
    for kind, name in places:
        matched = found_by(connected, kind, name, pattern, principal, host)
        found |= dict.fromkeys(acl for acl in matched if not codes or acl.operation in codes)
    return list(found)


def found_by(
    connected: Client, kind: int, name: str | None, pattern: int, principal: str | None = None, host: str | None = None
) -> list[AclBinding]:
    """The ACLs that match one filter. Those that this version can't name are left out."""
    from ottla.client.errors import check
    from ottla.metadata.acls import AclBinding
    from ottla.protocol.messages.describe_acls import DescribeAclsRequest

    answer = connected.send(DescribeAclsRequest(kind, name, pattern, principal, host, ANY, ANY))
    check(answer.error_code, "the ACLs", answer.error_message)
    return [
        AclBinding(
            ResourceType(found.resource_type),
            PatternType(found.pattern_type),
            found.resource_name,
            each.principal,
            each.host,
            Operation(each.operation),
            PermissionType(each.permission_type),
        )
        for found in answer.resources
        for each in found.acls
        if is_known(found.resource_type, found.pattern_type, each.operation, each.permission_type)
    ]


def is_known(resource_type: int, pattern_type: int, operation: int, permission_type: int) -> bool:
    """Whether this version has names for all of an ACL's codes."""
    return all(
        code in list(codes)
        for code, codes in (
            (resource_type, ResourceType),
            (pattern_type, PatternType),
            (operation, Operation),
            (permission_type, PermissionType),
        )
    )


def delete(connected: Client, acls: Iterable[AclBinding]) -> int:
    """Delete exactly these; returns how many there were."""
    from ottla.client.errors import check
    from ottla.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

    filters = [
        DeleteAclsFilter(
            acl.resource_type, acl.name, acl.pattern_type, acl.principal, acl.host, acl.operation, acl.permission
        )
        for acl in acls
    ]
    removed = 0
    for result in connected.send(DeleteAclsRequest(filters)).filter_results:
        check(result.error_code, "the ACLs", result.error_message)
        removed += len(result.matching_acls)
    return removed


def row_of(acl: AclBinding) -> tuple[Any, ...]:
    kind, pattern, name, principal, host, operation, permission = acl
    return kind.name, name, pattern.name, principal, host, operation.name, permission.name
