"""`ottla groups`: list, describe, delete, reset-offsets, delete-offsets.

Shows what kafka-consumer-groups.sh shows, under its column names. resets.py chooses new positions.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import resets
from ottla.cli.connection import (
    HERE,
    REQUEST_TIMEOUT_S,
    Cluster,
    Output,
    client,
    complete_groups,
    connect,
    named,
    plain_errors,
    wait,
)
from ottla.cli.extents import known_offsets
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, print_done, print_rows, say
from ottla.cli.plans import DryRun, Execute, choose_one, tell_unchanged

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

app = typer.Typer(help="Show consumer groups, their lag and members; reset their offsets.", no_args_is_help=True)

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)

HELD_BACK_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LAST-STABLE-OFFSET",
    "LOG-END-OFFSET",
    "PRODUCER-ID",
    "TRANSACTIONAL-ID",
    "OPEN-MS",
)

Group = Annotated[
    str, typer.Argument(metavar="GROUP", callback=named, autocompletion=complete_groups, help="Name of the group.")
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", callback=named, autocompletion=complete_groups, help="Names of groups."),
]
MaybeGroups = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[GROUP...]", callback=named, autocompletion=complete_groups, help="Names of groups (default: all)."
    ),
]
TopicsGiven = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC[:0,1,..]",
        help="Topic, or some of its partitions; may be repeated (default: none).",
    ),
]


@app.command("list", epilog="Example: ottla groups list --format json")
@with_shared_options
def list_groups(
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """List the consumer groups of the cluster."""
    listed = listings(connect(cluster))
    rows = [(each.group_id, each.type.name.capitalize(), state_name(each.state)) for each in listed]
    print_rows(("GROUP", "TYPE", "STATE"), rows, format)


@app.command(epilog="Example: ottla groups describe billing --members")
@with_shared_options
def describe(
    groups: MaybeGroups = None,
    members: Annotated[bool, typer.Option("--members", help="Show members and their partitions.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show state and coordinator.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show offsets and lag; this is the default.")] = False,
    held_back: Annotated[
        bool,
        typer.Option("--held-back", help="Show the open transactions that block readers of committed records."),
    ] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show the committed offsets and lag of groups, their members, or their state; without a group, of all groups."""
    if members + state + offsets + held_back > 1:
        raise UsageError("Choose one of --members, --state, --offsets and --held-back.")
    admin = connect(cluster)
    names = groups or [each.group_id for each in listings(admin)]
    described = describe_groups(admin, names, must_exist=bool(groups))
    if members:
        columns = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
        print_rows(columns, [row for name in names for row in member_rows(described[name])], format)
    elif state:
        columns = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
        print_rows(columns, [state_row(described[name]) for name in names], format)
    elif held_back:
        rows = [row for name in names for row in held_back_rows(cluster, admin, described[name])]
        print_rows(HELD_BACK_COLUMNS, rows, format)
    else:
        rows = [row for name in names for row in offset_rows(admin, described[name])]
        print_rows(OFFSET_COLUMNS, rows, format)
        tell_held_back(admin, rows)


@app.command(epilog="Example: ottla groups delete billing")
@with_shared_options
def delete(
    groups: Groups,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Delete groups without members, and their committed offsets."""
    admin = connect(cluster)
    with plain_errors():
        wait(admin.delete_consumer_groups(groups, request_timeout=REQUEST_TIMEOUT_S), "Deleted")
    print_done(f"Deleted {', '.join(groups)}.", format, deleted=groups)


@app.command(
    epilog="Example: ottla groups reset-offsets billing --topic orders --to-datetime 2026-01-31T08:00:00Z --execute"
)
@with_shared_options
def reset_offsets(
    group: Group,
    topic: TopicsGiven = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset every topic for which the group has offsets.")
    ] = False,
    to: resets.TargetOptions = resets.NOWHERE,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="Move each offset forward by N, or back if N is negative."),
    ] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    export: Annotated[bool, typer.Option("--export", help="Print the plan as CSV that --from-file reads.")] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Move the committed offsets of a group without members; shows the plan unless --execute is given."""
    choose_one(execute, dry_run)
    target = to.target(shift_by)
    admin = connect(cluster)
    require_inactive(admin, group)
    committed = {(each.topic, each.partition): each.offset for each in committed_offsets(admin, group)}
    if isinstance(target, resets.Listed):
        chosen = sorted(target.offsets)
    else:
        chosen = resets.partitions(admin, topic or [], all_topics, committed)
    planned = resets.plan(admin, target, chosen, committed)
    if execute:
        resets.commit(admin, group, planned)
    if export:
        for name, partition, offset in planned:
            say(f"{name},{partition},{offset}")
        return
    print_rows(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), [(group, *row) for row in planned], format)
    tell_unchanged(execute, format)


@app.command(epilog="Example: ottla groups delete-offsets billing --topic orders")
@with_shared_options
def delete_offsets(
    group: Group,
    topic: TopicsGiven = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Delete a group's committed offsets for topics that it is not subscribed to."""
    admin = connect(cluster)
    describe_groups(admin, [group], must_exist=True)
    committed = {(each.topic, each.partition): each.offset for each in committed_offsets(admin, group)}
    chosen = resets.partitions(admin, topic or [], False, committed)
    resets.forget(cluster.bootstrap, group, chosen)
    print_rows(("GROUP", "TOPIC", "PARTITION"), [(group, *row) for row in chosen], format)


def listings(admin: AdminClient) -> list[Any]:
    """Every group, sorted by name; raises CommandError if a broker did not answer."""
    with plain_errors():
        found = admin.list_consumer_groups(request_timeout=REQUEST_TIMEOUT_S).result(REQUEST_TIMEOUT_S)
        if found.errors:
            raise found.errors[0]
    return sorted(found.valid, key=lambda each: each.group_id)


def describe_groups(admin: AdminClient, names: list[str], must_exist: bool) -> dict[str, Any]:
    """Descriptions by name; raises CommandError if a group must exist and does not."""
    if not names:
        return {}
    with plain_errors():
        described = wait(admin.describe_consumer_groups(names, request_timeout=REQUEST_TIMEOUT_S))
    if must_exist:
        for name in names:
            if state_name(described[name].state) == "Dead" and not committed_offsets(admin, name):
                raise CommandError(f"There is no group {name}.")
    return described


def require_inactive(admin: AdminClient, group: str) -> None:
    described = describe_groups(admin, [group], must_exist=False)[group]
    state = state_name(described.state)
    if state not in ("Empty", "Dead"):
        raise CommandError(f"The group {group} is {state}: its offsets can only be moved while it has no members.")


def committed_offsets(admin: AdminClient, group: str) -> list[TopicPartition]:
    """The committed offsets of the group, sorted."""
    from confluent_kafka import ConsumerGroupTopicPartitions

    with plain_errors():
        asked = [ConsumerGroupTopicPartitions(group)]
        answered = wait(admin.list_consumer_group_offsets(asked, request_timeout=REQUEST_TIMEOUT_S))
    found = next(iter(answered.values())).topic_partitions or []
    return sorted((each for each in found if each.offset >= 0), key=lambda each: (each.topic, each.partition))


def state_name(state: Any) -> str:
    """Kafka's word for a state: PREPARING_REBALANCING is PreparingRebalance."""
    words = "".join(word.capitalize() for word in state.name.split("_"))
    return words.replace("Rebalancing", "Rebalance")


def state_row(group: Any) -> tuple[Any, ...]:
    coordinator = f"{group.coordinator.host}:{group.coordinator.port} ({group.coordinator.id})"
    return group.group_id, coordinator, group.partition_assignor, state_name(group.state), len(group.members)


def member_rows(group: Any) -> Iterable[tuple[Any, ...]]:
    for member in sorted(group.members, key=lambda each: each.member_id):
        owned = owned_by(member)
        yield group.group_id, member.member_id, member.host, member.client_id, len(owned), shown(owned)


def owned_by(member: Any) -> list[tuple[str, int]]:
    assigned = member.assignment.topic_partitions if member.assignment else []
    return sorted((each.topic, each.partition) for each in assigned)


def shown(partitions: list[tuple[str, int]]) -> str:
    """Partitions in Kafka's notation: clicks(0,1),orders(2)."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return ",".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in by_topic.items())


def tell_held_back(admin: AdminClient, rows: list[tuple[Any, ...]]) -> None:
    """Report open transactions on standard error: the lag includes records that readers may not see yet."""
    ends = {(row[1], row[2]): row[4] for row in rows if row[4] is not None}
    stable = resets.offsets(admin, "stable", ends)
    held = [place for place, offset in sorted(stable.items()) if offset < ends[place]]
    if held:
        say(
            f"Open transactions block readers of committed records in {shown(held)}; --held-back shows whose.",
            err=True,
        )


def held_back_rows(cluster: Cluster, admin: AdminClient, group: Any) -> Iterable[tuple[Any, ...]]:
    """One row per partition of the group that has an open transaction."""
    from ottla.client.transactions import held_back

    committed = {(each.topic, each.partition): each.offset for each in committed_offsets(admin, group.group_id)}
    owned = {each for member in group.members for each in owned_by(member)}
    with client(cluster) as asked:
        now = int(time.time() * 1000)
        for each in held_back(asked, sorted(committed.keys() | owned)):
            open_ms = None if each.start_ms is None else max(0, now - each.start_ms)
            current = committed.get((each.topic, each.partition))
            where = (each.last_stable_offset, each.log_end_offset)
            yield group.group_id, each.topic, each.partition, current, *where, each.producer_id, each.name, open_ms


def offset_rows(admin: AdminClient, group: Any) -> Iterable[tuple[Any, ...]]:
    """One row per partition that the group has committed or owns; without a log end if no leader reports it."""
    from confluent_kafka.admin import OffsetSpec

    committed = {(each.topic, each.partition): each.offset for each in committed_offsets(admin, group.group_id)}
    owners = {owned: member for member in group.members for owned in owned_by(member)}
    partitions = sorted(committed.keys() | owners.keys())
    ends = known_offsets(admin, OffsetSpec.latest(), partitions)
    for name, partition in partitions:
        current, end = committed.get((name, partition)), ends.get((name, partition))
        lag = None if current is None or end is None else max(0, end - current)
        member = owners.get((name, partition))
        who = (member.member_id, member.host, member.client_id) if member else (None, None, None)
        yield group.group_id, name, partition, current, end, lag, *who
