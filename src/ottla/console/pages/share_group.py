"""Shows one share group: its partitions, members, and the records in flight: who has them, for how long."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import TopicPartition
from ottla.client.errors import BrokerError, ClientError, UnsupportedVersionError
from ottla.client.private_requests import ask_nodes
from ottla.console.group_reading import group_of, pauses_of
from ottla.console.page import Change, Context, MissingError, Page, Paged, Part, View, paged
from ottla.console.pages import group_changes, share_changes
from ottla.console.pages.group import MemberRow, member_row
from ottla.console.reading import GROUP, Config, configs
from ottla.doctor.snapshot import SHARE, Group
from ottla.escaping import visible
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_share_partitions import DescribeSharePartitionsRequest

ACQUIRED, ARCHIVING = 1, 3
"""States of a run; 0 is a record that is not acquired now."""
RUNS_MAX: Final = 200
"""Runs that are asked for in each partition, and shown in all."""
NOT_OTTLA: Final = "This cluster does not report records in flight; nodes of Ottla do."


def share_group_of(context: Context) -> Group:
    """The share group that the address names. Raises MissingError."""
    name = context.need("name")
    group, _ = group_of(context, name)
    if group.type != SHARE:
        raise MissingError(f"{visible(name)} is a {visible(group.type)} group, not a share group.")
    return group


def standing_of(context: Context, name: str, runs_max: int, unseen: list[str]) -> dict[int, Any]:
    """The answer of each node about the group's records in flight. Nodes that lead none of its partitions, and
    clusters without the request, have none."""
    context.client.metadata([])
    request = DescribeSharePartitionsRequest(name, None, runs_max)
    found: dict[int, Any] = {}
    for node_id, answer in ask_nodes(context.client, dict.fromkeys(context.client.broker_ids(), request)).items():
        if isinstance(answer, UnsupportedVersionError):
            sentence = NOT_OTTLA
        elif isinstance(answer, ClientError):
            sentence = f"Records in flight on node {node_id}: {answer}"
        elif answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            continue
        elif answer.error_code:
            sentence = f"Records in flight on node {node_id}: {BrokerError(answer.error_code, visible(name))}"
        else:
            found[node_id] = answer
            continue
        if sentence not in unseen:
            unseen.append(sentence)
    return found


def parts_of(standing: Mapping[int, Any]) -> dict[TopicPartition, Any]:
    """The partitions in the nodes' answers that their leaders have loaded."""
    return {
        (topic.name, part.partition_index): part
        for answer in standing.values()
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code and part.is_loaded
    }


# ---- the group -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SharePartitionRow:
    """A partition. `start` is the first record that is not done, `lag` counts those; both None if unknown.

    `held` counts records that members have, `archiving` those that wait for their dead letter. The counters, since the
    partition's leader loaded it, are None where no node reports them.
    """

    topic: str
    partition: int
    start: int | None
    lag: int | None
    held: int | None
    archiving: int | None
    accepted: int | None
    released: int | None
    rejected: int | None
    timeouts: int | None
    letters: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupView(View):
    """The share group, a page of its partitions, and its members. `why` says why nothing is delivered."""

    name: str
    state: str
    why: str
    is_paused: bool
    paused_since_ms: int | None
    paused_by: str | None
    lag: int | None
    held: int | None
    archiving: int | None
    waiting: int | None
    paged: Paged
    partitions: tuple[SharePartitionRow, ...]
    members: tuple[MemberRow, ...]
    members_in_all: int
    unseen: tuple[str, ...]


def load(context: Context) -> ShareGroupView:
    """The share group that the address names."""
    group = share_group_of(context)
    unseen: list[str] = []
    parts = parts_of(standing_of(context, group.name, 0, unseen))
    pause = pauses_of(context, [group.name]).get(group.name)
    rows = [partition_row(place, group, parts.get(place)) for place in sorted(group.committed.keys() | group.owned)]
    where, shown = paged(rows, context.number("page", 1))
    lag, held, archiving = (total(getattr(row, name) for row in rows) for name in ("lag", "held", "archiving"))
    members = sorted(group.members, key=lambda each: (each.client_id, each.id))
    return ShareGroupView(
        title=f"Share group {visible(group.name)}",
        command=context.command("share-groups", "describe", group.name),
        name=group.name,
        state=group.state,
        why=why_nothing(group, is_paused=pause is not None, lag=lag),
        is_paused=pause is not None,
        paused_since_ms=None if pause is None else pause.since_ms,
        paused_by=None if pause is None else pause.by,
        lag=lag,
        held=held,
        archiving=archiving,
        waiting=None if lag is None or held is None or archiving is None else max(0, lag - held - archiving),
        paged=where,
        partitions=tuple(shown),
        members=tuple(member_row(each) for each in members[:RUNS_MAX]),
        members_in_all=len(members),
        unseen=tuple(unseen),
    )


def partition_row(place: TopicPartition, group: Group, part: Any) -> SharePartitionRow:
    """The row of a partition; `part` is what its leader reports, None if it reports nothing."""
    known = group.committed.get(place)
    start, lag = (None, None) if known is None else (known.offset, known.lag)
    if part is None:
        return SharePartitionRow(*place, start, lag, *(None,) * 7)
    return SharePartitionRow(
        *place,
        part.start_offset if part.start_offset >= 0 else start,
        part.lag if part.lag >= 0 else lag,
        part.acquired_count,
        part.archiving_count,
        part.accepted_count,
        part.released_count,
        part.rejected_count,
        part.lock_timeout_count,
        part.dead_letter_count,
    )


def total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def why_nothing(group: Group, *, is_paused: bool, lag: int | None) -> str:
    """Why the group's members get no records; "" if they may get some."""
    if is_paused:
        return "The group is paused: its members get no records until it is resumed."
    if not group.members:
        return "The group has no members, so its records wait."
    if not group.owned:
        return "No member has a partition: the topics may be missing, or the assignment is not done."
    return "Every record is done: members wait for new ones." if lag == 0 else ""


# ---- records in flight ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRow:
    """A range of records in flight. `doing` is their state in words, `for_ms` the time since their acquisition, and
    `left_ms` the time until the lock ends or the next delivery is due."""

    topic: str
    partition: int
    first: int
    last: int
    count: int
    doing: str
    client_id: str | None
    host: str | None
    member: str | None
    for_ms: int | None
    left_ms: int | None
    deliveries: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs(View):
    """The records in flight: those that members have had the longest first."""

    runs: tuple[RunRow, ...]
    has_more: bool
    lock_ms: int | None
    unseen: tuple[str, ...]


def load_runs(context: Context) -> Runs:
    """The records of the group in flight, on all nodes."""
    group = share_group_of(context)
    unseen: list[str] = []
    standing = standing_of(context, group.name, RUNS_MAX, unseen)
    rows = sorted(
        (row for answer in standing.values() for row in run_rows(answer)),
        key=lambda row: (row.member is None, -(row.for_ms or 0), row.topic, row.partition, row.first),
    )
    return Runs(
        title="Records in flight",
        command=context.command("share-groups", "inspect", group.name),
        runs=tuple(rows[:RUNS_MAX]),
        has_more=len(rows) > RUNS_MAX or any(part.next_offset >= 0 for part in parts_of(standing).values()),
        lock_ms=max((answer.lock_duration_ms for answer in standing.values()), default=None),
        unseen=tuple(unseen),
    )


def run_rows(answer: Any) -> Iterator[RunRow]:
    """The rows of one node's answer."""
    for topic in answer.topics:
        for part in topic.partitions:
            for run in part.runs:
                yield RunRow(
                    topic.name,
                    part.partition_index,
                    run.first_offset,
                    run.last_offset,
                    run.last_offset - run.first_offset + 1,
                    doing(run),
                    run.client_id,
                    run.client_host,
                    run.member_id,
                    run.held_ms if run.state == ACQUIRED else None,
                    run.lock_left_ms if run.state == ACQUIRED else run.next_try_ms if run.next_try_ms > 0 else None,
                    run.delivery_count,
                    answer.delivery_count_limit,
                )


def doing(run: Any) -> str:
    """The present state of a run of records, in words."""
    if run.state == ACQUIRED:
        return "acknowledged, being stored" if run.is_being_written else "with a member"
    if run.state == ARCHIVING:
        return (
            "rejected, dead letter to be written"
            if run.is_rejected
            else "delivered too often, dead letter to be written"
        )
    if run.next_try_ms > 0:
        return "delayed" if run.delivery_count == 0 else "backing off"
    return "waits for its next delivery"


# ---- configs -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigs(View):
    """The configs of the group, those that differ from the default first."""

    differing: tuple[Config, ...]
    defaults: tuple[Config, ...]


def load_configs(context: Context) -> GroupConfigs:
    """The configs of the share group that the address names."""
    name = context.need("name")
    found = [each for each in configs(context, GROUP, name) if each.name.startswith(("share.", "errors."))]
    return GroupConfigs(
        title="Configs",
        command=context.command("configs", "describe", "group", name, "--all"),
        differing=tuple(each for each in found if not each.is_default),
        defaults=tuple(each for each in found if each.is_default),
    )


PAGE: Final = Page(
    name="share_group",
    path="/share-group",
    load=load,
    refresh_s=2,
    parts=(
        Part("runs", "Records in flight", load_runs, refresh_s=2, is_first=True),
        Part("configs", "Configs", load_configs, refresh_s=30),
    ),
    changes=(
        Change("pause", "Pause", share_changes.pause_preview, share_changes.pause, is_destructive=False),
        Change("resume", "Resume", share_changes.resume_preview, share_changes.resume, is_destructive=False),
        Change("reset", "Reset offsets", group_changes.reset_preview, group_changes.reset, group_changes.reset_fields),
        Change("delete", "Delete the group", group_changes.delete_preview, group_changes.delete),
    ),
)
