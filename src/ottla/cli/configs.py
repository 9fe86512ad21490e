"""`ottla configs`: describe and alter the configs of topics, brokers and groups, and show who changed them.

Supports all resources, sources and the four operations of KIP-339. The cluster decides which configs exist, and rejects
unknown ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import existing
from ottla.cli.completing import AppendConfigs, DeleteConfigs, SetConfigs, SubtractConfigs, kind_of
from ottla.cli.connection import (
    HERE,
    Cluster,
    Output,
    client,
    complete_groups,
    complete_topics,
    connect,
    named,
    plain_errors,
    wait,
)
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, print_done, print_rows, say
from ottla.cli.times import shown_time
from ottla.protocol.config_resources import QUOTA, ConfigResourceType

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from ottla.client.client import Client
    from ottla.client.observations import ConfigHistory

app = typer.Typer(help="Show and change configs of topics, brokers and groups.", no_args_is_help=True)

DEFAULT_SOURCE = "DEFAULT_CONFIG"
SOURCES = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    DEFAULT_SOURCE,
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "CLIENT_METRICS_CONFIG",
    "GROUP_CONFIG",
)
"""By number in a DescribeConfigs answer (ConfigSource in DescribeConfigsResponse.java)."""


HISTORY = ("TIME", "KIND", "NAME", "CONFIG", "OLD", "NEW", "PRINCIPAL", "CLIENT-ID", "HOST")


class Resource(StrEnum):
    """The kinds of resources that have configs."""

    TOPIC = "topic"
    BROKER = "broker"
    GROUP = "group"


KINDS = {
    QUOTA: "quota",
    ConfigResourceType.TOPIC: Resource.TOPIC,
    ConfigResourceType.BROKER: Resource.BROKER,
    ConfigResourceType.GROUP: Resource.GROUP,
}
"""The kinds of resources of changes, by number."""


def complete_resource(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of topics or groups, by the kind earlier on the command line."""
    kind = kind_of(ctx)
    return {"topic": complete_topics, "group": complete_groups}.get(kind, lambda incomplete: [])(incomplete)


Kind = Annotated[Resource, typer.Argument(help="Kind of what the configs belong to.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        callback=named,
        autocompletion=complete_resource,
        help="Name of a topic or group, or id of a broker.",
    ),
]


@app.command(epilog="Example: ottla configs describe broker 1 --all")
@with_shared_options
def describe(
    kind: Kind,
    name: Name,
    everything: Annotated[bool, typer.Option("--all", help="Show defaults too.")] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show the configs that were set; with --all, all configs and the source of each value."""
    admin = connect(cluster)
    require(admin, kind, name)
    entries = describe_entries(admin, kind.value, [name])[name]
    if kind is Resource.GROUP and all(source(entry) == DEFAULT_SOURCE for entry in entries):
        with client(cluster) as asked:
            if not existing.group_exists(asked, name):
                raise CommandError(f"There is no group {name}, and no config was set for one of this name.")
    rows = [
        (entry.name, entry.value, source(entry), entry.is_read_only, entry.is_sensitive)
        for entry in sorted(entries, key=lambda each: each.name)
        if everything or source(entry) != DEFAULT_SOURCE
    ]
    print_rows(("NAME", "VALUE", "SOURCE", "READ-ONLY", "SENSITIVE"), rows, format)


@app.command(
    epilog="Example: ottla configs alter topic clicks --set retention.ms=3600000 --append cleanup.policy=compact"
)
@with_shared_options
def alter(
    kind: Kind,
    name: Name,
    set: SetConfigs = None,
    delete: DeleteConfigs = None,
    append: AppendConfigs = None,
    subtract: SubtractConfigs = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Change configs; configs that are not named keep their values."""
    admin = connect(cluster)
    require(admin, kind, name)
    alter_entries(admin, kind.value, name, set=set, delete=delete, append=append, subtract=subtract)
    print_done(f"Altered {kind.value} {name}.", format, altered=name, kind=kind.value)


@app.command(epilog="Example: ottla configs history topic clicks")
@with_shared_options
def history(
    kind: Annotated[
        Resource | None, typer.Argument(help="Kind of what the configs belong to (default: all, quotas too).")
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            callback=named,
            autocompletion=complete_resource,
            help="Name of a topic or group, or id of a broker (default: all).",
        ),
    ] = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show who changed configs and when, newest first, as far as Ottla's nodes remember."""
    with client(cluster) as asked:
        found = _history(asked, kind, name)
    if name is not None and kind is not None and not found.changes:
        require(connect(cluster), kind, name)
    for node_id in found.silent:
        say(f"Node {node_id} remembers no changes: it is no Ottla node, or one of an earlier version.", err=True)
    for node_id, why in found.failed:
        say(f"Node {node_id} did not say what it remembers: {why}", err=True)
    rows = [
        (
            shown_time(each.at_ms),
            KINDS.get(each.resource_type, str(each.resource_type)),
            each.resource_name or "<default>",
            each.name,
            each.old_value,
            each.new_value,
            each.principal,
            each.client_id,
            each.client_host,
        )
        for each in found.changes
    ]
    print_rows(HISTORY, rows, format, none="No node remembers a change that you may see.")


def _history(asked: Client, kind: Resource | None, name: str | None) -> ConfigHistory:
    """The changes in question, newest first. Raises CommandError if no node remembers any."""
    from ottla.client.observations import ConfigHistory, config_history

    asked.metadata([])
    nodes = sorted(asked.broker_ids())
    if kind is None or name is None:
        found = config_history(asked, nodes)
        changes = [each for each in found.changes if kind in (None, KINDS.get(each.resource_type))]
    else:
        number = ConfigResourceType[kind.name]
        found = config_history(asked, nodes, number, name)
        changes = list(found.changes)
        if kind is Resource.BROKER:
            changes += config_history(asked, nodes, number, "").changes
            changes.sort(key=lambda each: each.at_ms, reverse=True)
    if not found.changes and len(found.silent) == len(nodes):
        raise CommandError("The nodes of this cluster do not remember who changed configs: only Ottla's nodes do.")
    return ConfigHistory(tuple(changes), found.silent, found.failed)


def require(admin: AdminClient, kind: Resource, name: str) -> None:
    """Raise CommandError if there is no such topic or broker. A group may be configured before its first member
    joins."""
    if kind is Resource.TOPIC:
        existing.described_topics(admin, [name])
    elif kind is Resource.BROKER:
        existing.require_broker(admin, name)


def source(entry: Any) -> str:
    number = int(entry.source)
    return SOURCES[number] if number < len(SOURCES) else str(number)


def describe_entries(admin: AdminClient, kind: str, names: Iterable[str]) -> dict[str, list[Any]]:
    """Every config of each resource, by the resource's name."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType[kind.upper()], name) for name in names]
    if not resources:
        return {}
    with plain_errors():
        found = wait(admin.describe_configs(resources))
    return {name: list(entries.values()) for name, entries in found.items()}


def own_entries(admin: AdminClient, kind: str, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The configs that were set on each resource itself."""
    own = {"DYNAMIC_TOPIC_CONFIG", "GROUP_CONFIG"}
    return {
        name: {entry.name: entry.value for entry in entries if source(entry) in own}
        for name, entries in describe_entries(admin, kind, names).items()
    }


def alter_entries(
    admin: AdminClient,
    kind: str,
    name: str,
    *,
    set: list[str] | None = None,
    delete: list[str] | None = None,
    append: list[str] | None = None,
    subtract: list[str] | None = None,
) -> None:
    """Change some configs of one resource (IncrementalAlterConfigs). Raises CommandError if no change is given."""
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    asked = ((AlterConfigOpType.SET, set), (AlterConfigOpType.APPEND, append), (AlterConfigOpType.SUBTRACT, subtract))
    entries: list[Any] = []
    for operation, given in asked:
        for each in given or ():
            key, equals, value = each.partition("=")
            if not equals:
                raise UsageError(f"A config must be KEY=VALUE, not {each!r}.")
            entries.append(ConfigEntry(key, value, incremental_operation=operation))
    entries += [ConfigEntry(key, None, incremental_operation=AlterConfigOpType.DELETE) for key in delete or ()]
    if not entries:
        raise UsageError("Nothing to alter: name at least one config with --set or --delete.")
    resource = ConfigResource(ResourceType[kind.upper()], name, incremental_configs=entries)
    with plain_errors():
        wait(admin.incremental_alter_configs([resource]))
