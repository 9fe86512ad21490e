"""`ottla share-groups`: list, describe, delete, reset-offsets, delete-offsets, pause, resume, inspect, redrive.

Shows what kafka-share-groups.sh shows, under its column names, and Ottla's additions. resets.py chooses new offsets,
and `client.dead_letters` sends dead letters back.

Pause, resume and redrive use group configs and records, so Kafka's own requests. No request of Kafka's returns the
acquired records: `inspect` (share_inspection.py) sends one of Ottla's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import resets
from ottla.cli.configs import alter_entries, own_entries
from ottla.cli.connection import (
    HERE,
    Cluster,
    Output,
    client,
    complete_share_groups,
    complete_topics,
    connect,
    named,
    pairs,
    with_done,
)
from ottla.cli.groups import TopicsGiven, committed_offsets, shown
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, counted, ended, print_done, print_json, print_rows, say
from ottla.cli.plans import DryRun, Execute, MaxRecords, choose_one, tell_unchanged
from ottla.cli.share_inspection import (
    OFFSET_COLUMNS,
    RUN_COLUMNS,
    as_json,
    gaps,
    offset_row,
    reasons,
    run_rows,
    summary,
)
from ottla.cli.share_standing import PAUSED, Pause, letters_waiting, pauses
from ottla.cli.times import parse_time, shown_time

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.dead_letters import Letter

app = typer.Typer(
    help="Show share groups (queues), their lag and records; pause and reset them; redrive dead letters.",
    no_args_is_help=True,
)

LETTER_COLUMNS = (
    "OFFSET",
    "TOPIC",
    "PARTITION",
    "SOURCE-OFFSET",
    "REASON",
    "DELIVERIES",
    "REDRIVES",
    "TIMESTAMP",
    "FIRST-FAILURE",
    "LAST-FAILURE",
    "CLIENT-ID",
    "WORKER-REASON",
)

STATE_COLUMNS = (
    "GROUP",
    "COORDINATOR (ID)",
    "STATE",
    "GROUP-EPOCH",
    "ASSIGNMENT-EPOCH",
    "#MEMBERS",
    "DELIVERY",
    "PAUSED-SINCE",
    "PAUSED-BY",
    "LETTERS-WAITING",
)


class Reason(StrEnum):
    """Why a record became a dead letter."""

    REJECTED = "rejected"
    EXHAUSTED = "exhausted"


Group = Annotated[
    str,
    typer.Argument(metavar="GROUP", callback=named, autocompletion=complete_share_groups, help="Name of the group."),
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP...", callback=named, autocompletion=complete_share_groups, help="Names of groups."),
]
MaybeGroups = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[GROUP...]",
        callback=named,
        autocompletion=complete_share_groups,
        help="Names of groups (default: all).",
    ),
]


@app.command("list", epilog="Example: ottla share-groups list")
@with_shared_options
def list_groups(
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """List the share groups of the cluster, and whether each is paused."""
    from ottla.client.share_groups import list_share_groups

    with client(cluster) as asked:
        listed = list_share_groups(asked)
    paused = pauses(connect(cluster), [name for name, _ in listed])
    rows = [(name, state, "paused" if name in paused else "on") for name, state in listed]
    print_rows(("GROUP", "STATE", "DELIVERY"), rows, format)


@app.command(epilog="Example: ottla share-groups describe jobs --members")
@with_shared_options
def describe(
    groups: MaybeGroups = None,
    members: Annotated[bool, typer.Option("--members", help="Show members and the partitions that they read.")] = False,
    state: Annotated[bool, typer.Option("--state", help="Show state, coordinator and epochs.")] = False,
    offsets: Annotated[
        bool, typer.Option("--offsets", help="Show start offsets and lag; this is the default.")
    ] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show the offsets and lag of groups, their members or state; without a group, of all groups."""
    from ottla.client.share_groups import list_share_groups

    if members + state + offsets > 1:
        raise UsageError("Choose one of --members, --state and --offsets.")
    with client(cluster) as asked:
        names = groups or [name for name, _ in list_share_groups(asked)]
        paused = {} if members else pauses(connect(cluster), names)
        if members:
            columns = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT")
            rows = of_each(asked, names, member_rows)
        elif state:
            columns = STATE_COLUMNS
            rows = of_each(asked, names, lambda asked, name: state_rows(asked, name, paused.get(name)))
        else:
            columns = OFFSET_COLUMNS
            rows = of_each(asked, names, offset_rows)
    print_rows(columns, rows, format)
    if format is Format.TABLE:
        for name, pause in paused.items():
            say(pause.sentence(name), err=True)


@app.command(epilog="Example: ottla share-groups delete jobs")
@with_shared_options
def delete(
    groups: Groups,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Delete share groups without members, and their offsets."""
    from ottla.client import BrokerError
    from ottla.client.share_groups import delete_share_group, describe_share_group

    deleted: list[str] = []
    failures: list[str] = []
    with client(cluster) as asked:
        for name in groups:
            try:
                describe_share_group(asked, name)
                delete_share_group(asked, name)
                deleted.append(name)
            except BrokerError as error:
                failures.append(ended(error))
    if failures:
        raise CommandError(with_done(failures, "Deleted", deleted))
    print_done(f"Deleted {', '.join(groups)}.", format, deleted=groups)


@app.command(epilog="Example: ottla share-groups reset-offsets jobs --topic orders --to-earliest --execute")
@with_shared_options
def reset_offsets(
    group: Group,
    topic: TopicsGiven = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset every topic that the group has read.")
    ] = False,
    to: resets.TargetOptions = resets.NOWHERE,
    from_group: Annotated[
        str | None,
        typer.Option(
            "--from-consumer-group", metavar="GROUP", help="Move to the committed offsets of this consumer group."
        ),
    ] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Reset the offsets of a share group without members; shows the plan unless --execute is given."""
    from ottla.client.share_groups import alter_share_group_offsets

    choose_one(execute, dry_run)
    admin = connect(cluster)
    if from_group is not None:
        committed = {(each.topic, each.partition): each.offset for each in committed_offsets(admin, from_group)}
        if not committed:
            raise CommandError(f"The consumer group {from_group} has committed nothing.")
        target: resets.Target = resets.Listed(committed)
    else:
        target = to.target()
    with client(cluster) as asked:
        require_inactive(asked, group)
        standing = offsets_of(asked, group)
        if isinstance(target, resets.Listed):
            chosen = sorted(target.offsets)
        else:
            chosen = resets.partitions(admin, topic or [], all_topics or not topic, standing)
        planned = resets.plan(admin, target, chosen, standing)
        if execute:
            alter_share_group_offsets(asked, group, planned)
    print_rows(("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"), [(group, *row) for row in planned], format)
    tell_unchanged(execute, format)


@app.command(epilog="Example: ottla share-groups delete-offsets jobs --topic orders")
@with_shared_options
def delete_offsets(
    group: Group,
    topic: Annotated[
        list[str],
        typer.Option("--topic", "-t", autocompletion=complete_topics, help="Topic to forget; may be repeated."),
    ],
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Delete the offsets of a share group without members for these topics."""
    from ottla.client.share_groups import delete_share_group_offsets

    with client(cluster) as asked:
        require_inactive(asked, group)
        delete_share_group_offsets(asked, group, topic)
    print_rows(("GROUP", "TOPIC"), [(group, name) for name in topic], format)


@app.command(epilog="Example: ottla share-groups pause jobs")
@with_shared_options
def pause(
    group: Group,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Pause a share group: it delivers nothing until it is resumed.

    Members may finish the records that they have acquired.
    """
    set_paused(group, True, cluster)
    print_done(f"{group} is paused: `ottla share-groups resume {group}` resumes it.", format, paused=group)


@app.command(epilog="Example: ottla share-groups resume jobs")
@with_shared_options
def resume(
    group: Group,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Resume a paused share group."""
    set_paused(group, False, cluster)
    print_done(f"{group} goes on.", format, resumed=group)


@app.command(epilog="Example: ottla share-groups inspect jobs")
@with_shared_options
def inspect(
    group: Group,
    most: Annotated[
        int, typer.Option("--max-ranges", metavar="N", min=0, help="Ranges shown for each partition (default 1000).")
    ] = 1000,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show acquired records, with their members and the ends of their locks, and records that wait.

    Records wait for their next delivery or their dead letter. The command asks the leader of each partition. Kafka's
    brokers report only start offsets and lag.
    """
    from ottla.client.share_partitions import describe_share_partitions

    with client(cluster) as asked:
        found = describe_share_partitions(asked, group, runs_max=most)
    if format is Format.JSON:
        print_json(as_json(found))
        return
    known_ones = [part for part in found.partitions if part.why_unknown is None]
    if found.partitions and not known_ones:
        print_rows(OFFSET_COLUMNS, [(group, *offset_row(part)) for part in found.partitions], format)
    else:
        print_rows(RUN_COLUMNS, [row for part in known_ones for row in run_rows(part)], format)
    for sentence in (summary(found), *reasons(found), *gaps(found)):
        say(sentence, err=True)


DeadLetters = Annotated[
    str | None,
    typer.Option("--dead-letters", metavar="TOPIC", help="Dead-letter topic (default: the one in the group's config)."),
]
TopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        autocompletion=complete_topics,
        help="Redrive only dead letters from this topic (default: all).",
    ),
]
ReasonOption = Annotated[
    Reason | None,
    typer.Option("--reason", help="Redrive only rejected records, or only exhausted ones (default: both)."),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Redrive only records at or after this time (default: all)."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Redrive only records before this time (default: all)."),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME=VALUE",
        help="Redrive only records with this header; may be repeated (default: all).",
    ),
]
Rate = Annotated[
    float | None, typer.Option("--rate", metavar="N", min=0.001, help="Records per second (default: unlimited).")
]


@app.command(epilog="Example: ottla share-groups redrive jobs --reason exhausted --since 2026-01-31 --execute")
@with_shared_options
def redrive(
    group: Group,
    dead_letters: DeadLetters = None,
    topic: TopicOption = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    header: Header = None,
    rate: Rate = None,
    most: MaxRecords = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Send dead letters back to the topics they came from; shows them unless --execute is given."""
    from ottla.client.dead_letters import DEAD_LETTERS, DeadLetterFilter, Pace, Redrive, run

    choose_one(execute, dry_run)
    wanted = DeadLetterFilter(
        topic,
        reason.value if reason else None,
        None if since is None else parse_time(since),
        None if until is None else parse_time(until),
        tuple(pairs(header, "A header").items()),
    )
    source = dead_letters or own_entries(connect(cluster), "group", [group])[group].get(DEAD_LETTERS, "")
    if not source:
        raise CommandError(f"The group {group} has no {DEAD_LETTERS}: name a topic with --dead-letters.")
    with client(cluster) as asked:
        work = Redrive(asked, group, source)
        work.open()
        if not execute:
            letters = islice((each for each in work.letters() if wanted.takes(each)), most)
            print_rows(LETTER_COLUMNS, [letter_row(each) for each in letters], format)
            tell_unchanged(execute, format)
            return
        done = run(work, asked, wanted, most, Pace(rate))
    also = f", {done.left_out} left out by the filter" if done.left_out else ""
    also += f", {done.gone} whose record is not there any more" if done.gone else ""
    counts = {"redriven": done.went, "left_out": done.left_out, "gone": done.gone}
    print_done(f"{counted(done.went, 'record')} went back{also}.", format, **counts)


# ---- what the commands need ----------------------------------------------------------------------------------------


def of_each(
    asked: Client, names: Iterable[str], rows: Callable[[Client, str], Iterable[tuple[Any, ...]]]
) -> list[tuple[Any, ...]]:
    return [row for name in names for row in rows(asked, name)]


def offset_rows(asked: Client, name: str) -> Iterator[tuple[Any, ...]]:
    from ottla.client.share_groups import share_group_offsets

    for topic, partition, start_offset, lag in share_group_offsets(asked, name):
        yield name, topic, partition, known(start_offset), known(lag)


def member_rows(asked: Client, name: str) -> Iterator[tuple[Any, ...]]:
    from ottla.client.share_groups import describe_share_group

    for member in sorted(describe_share_group(asked, name).members, key=lambda each: each.member_id):
        parts = member.assignment.topic_partitions if member.assignment else []
        reads = sorted((part.topic_name, index) for part in parts for index in part.partitions)
        yield name, member.member_id, member.client_host, member.client_id, len(reads), shown(reads)


def state_rows(asked: Client, name: str, pause: Pause | None) -> Iterator[tuple[Any, ...]]:
    from ottla.client.share_groups import describe_share_group
    from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest

    group = describe_share_group(asked, name)
    (found,) = asked.send(FindCoordinatorRequest(coordinator_keys=[name])).coordinators
    where = f"{found.host}:{found.port} ({found.node_id})"
    held_up = ("on", None, None) if pause is None else ("paused", *pause)
    epochs = group.group_epoch, group.assignment_epoch, len(group.members)
    yield name, where, group.group_state, *epochs, *held_up, letters_waiting(asked, name)


def known(number: int) -> int | None:
    return number if number >= 0 else None


def offsets_of(asked: Client, group: str) -> dict[tuple[str, int], int]:
    """The group's offsets; empty if there is no such group."""
    from ottla.client import BrokerError
    from ottla.client.share_groups import share_group_offsets

    try:
        return {(each.topic, each.partition): each.start_offset for each in share_group_offsets(asked, group)}
    except BrokerError as error:
        if error.name != "GROUP_ID_NOT_FOUND":
            raise
        return {}


def require_inactive(asked: Client, group: str) -> None:
    from ottla.client import BrokerError
    from ottla.client.share_groups import describe_share_group

    try:
        described = describe_share_group(asked, group)
    except BrokerError as error:
        if error.name != "GROUP_ID_NOT_FOUND":
            raise
        return
    if described.members:
        state = described.group_state
        raise CommandError(
            f"The share group {group} is {state}: its offsets can only be moved while it has no members."
        )


def set_paused(group: str, paused: bool, cluster: Cluster) -> None:
    """Pause or resume an existing group. A group that does not exist can be resumed if it was paused before."""
    from ottla.client.share_groups import list_share_groups

    admin = connect(cluster)
    with client(cluster) as asked:
        there = any(name == group for name, _ in list_share_groups(asked))
    if not there and (paused or PAUSED not in own_entries(admin, "group", [group])[group]):
        raise CommandError(f"There is no share group {group}. `ottla share-groups list` shows the existing ones.")
    if paused:
        alter_entries(admin, "group", group, set=[f"{PAUSED}=true"])
    else:
        alter_entries(admin, "group", group, delete=[PAUSED])


def letter_row(letter: Letter) -> tuple[Any, ...]:
    return (
        f"{letter.partition}:{letter.offset}",
        letter.topic,
        letter.source_partition,
        letter.source_offset,
        letter.reason,
        letter.deliveries,
        letter.redrives,
        shown_time(letter.timestamp_ms),
        *(None if each is None else shown_time(each) for each in (letter.first_failed_ms, letter.last_failed_ms)),
        letter.client_id,
        letter.worker_reason,
    )
