"""Shows one consumer group: its positions, its members, how old its oldest unread records are, and its last hour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.client import LATEST, TopicPartition
from ottla.client.errors import ClientError, check
from ottla.client.fetching import FetchedPart, PartitionFetch, post_fetch
from ottla.console.group_reading import group_of
from ottla.console.page import Change, Context, Page, Paged, Part, View, paged
from ottla.console.pages import group_changes, group_past, member_changes
from ottla.console.reading import READ_COMMITTED, extents, leaders_at, offsets
from ottla.doctor.snapshot import Group, Member
from ottla.escaping import visible
from ottla.protocol.records.batch import iter_batches, peek
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import decode_records

STATES: Final = {
    "Stable": "The members read.",
    "Empty": "No client reads: the group has no members. Its positions are kept.",
    "Dead": "The group has neither members nor positions.",
    "PreparingRebalance": "The coordinator waits until the members have joined again, and then assigns partitions.",
    "CompletingRebalance": "The members wait for the assignment of partitions.",
    "Assigning": "The coordinator computes a new assignment.",
    "Reconciling": "Members give partitions up, so that others can read them.",
}
"""The meaning of a state for readers."""
FIRST_BYTES: Final = 1 << 16
"""How much of a batch is read to find the time of its first unread record."""
ALONE_MAX: Final = 10
"""Partitions that are fetched alone because an answer left them out."""


@dataclass(frozen=True, slots=True)
class PositionRow:
    """A partition that the group reads. `committed` is None before the first commit. `lost` counts records that were
    deleted unread, `held` those behind an open transaction. `owner` is the client id of the member that reads it."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None
    lost: int
    held: int
    owner: str | None
    host: str | None


@dataclass(frozen=True, slots=True)
class MemberRow:
    """A member. `comes` and `goes` are partitions that a KIP-848 coordinator moves to it or away from it."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    owned: tuple[str, ...]
    comes: int
    goes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView(View):
    """The group, a page of its positions, and its members."""

    name: str
    type: str
    state: str
    meaning: str
    coordinator: int
    lag: int | None
    idle_members: int
    paged: Paged
    positions: tuple[PositionRow, ...]
    members: tuple[MemberRow, ...]
    members_in_all: int
    unseen: tuple[str, ...]


def load(context: Context) -> GroupView:
    """The group that the address names."""
    group, coordinator = group_of(context, context.need("name"))
    unseen: list[str] = []
    rows = positions_of(context, group, unseen)
    where, shown = paged(rows, context.number("page", 1))
    members = sorted(group.members, key=lambda each: (each.client_id, each.id))
    lags = [row.lag for row in rows if row.committed is not None]
    return GroupView(
        title=f"Group {visible(group.name)}",
        command=context.command("groups", "describe", group.name),
        name=group.name,
        type=group.type,
        state=group.state,
        meaning=STATES.get(group.state, ""),
        coordinator=coordinator,
        lag=None if None in lags else sum(each for each in lags if each is not None),
        idle_members=sum(not each.owned for each in members),
        paged=where,
        positions=tuple(shown),
        members=tuple(member_row(each) for each in members[:200]),
        members_in_all=len(members),
        unseen=tuple(unseen),
    )


def positions_of(context: Context, group: Group, unseen: list[str]) -> list[PositionRow]:
    """A row for each partition that the group has committed or owns."""
    places = sorted(group.committed.keys() | group.owned)
    leaders = leaders_at(context, places)
    starts, ends = extents(context, leaders, unseen)
    stable = offsets(context, leaders, LATEST, isolation=READ_COMMITTED, unseen=unseen)
    owners = {place: member for member in group.members for place in member.owned}
    return [position_row(place, group, starts, ends, stable, owners.get(place)) for place in places]


def position_row(
    place: TopicPartition,
    group: Group,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    stable: Mapping[TopicPartition, int],
    owner: Member | None,
) -> PositionRow:
    """The row of a partition."""
    known = group.committed.get(place)
    committed, end, start = None if known is None else known.offset, ends.get(place), starts.get(place)
    return PositionRow(
        *place,
        committed,
        end,
        None if committed is None or end is None else max(0, end - max(committed, start or 0)),
        0 if committed is None or start is None else max(0, start - committed),
        0 if end is None else max(0, end - stable.get(place, end)),
        None if owner is None else owner.client_id,
        None if owner is None else owner.host,
    )


def member_row(member: Member) -> MemberRow:
    """The row of a member."""
    target = member.owned if member.target is None else member.target
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(member.owned):
        by_topic.setdefault(topic, []).append(index)
    return MemberRow(
        member.id,
        member.client_id,
        member.host,
        member.instance_id,
        tuple(f"{topic} ({', '.join(map(str, indexes))})" for topic, indexes in by_topic.items()),
        len(target - member.owned),
        len(member.owned - target),
    )


# ---- the oldest unread records -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgeRow:
    """The oldest record of a partition that the group has not read. `at_ms` is its timestamp."""

    topic: str
    partition: int
    lag: int
    at_ms: int
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ages(View):
    """The partitions with unread records, the oldest first."""

    ages: tuple[AgeRow, ...]
    more: int
    unseen: tuple[str, ...]


def load_ages(context: Context) -> Ages:
    """The timestamps of the first unread records, of the fifty partitions with the largest lag."""
    group, _ = group_of(context, context.need("name"))
    unseen: list[str] = []
    places = sorted(group.committed)
    leaders = leaders_at(context, places)
    starts, ends = extents(context, leaders, unseen)
    rows = [position_row(place, group, starts, ends, {}, None) for place in places]
    behind = [row for row in rows if row.lag and row.committed is not None]
    behind.sort(key=lambda row: -(row.lag or 0))
    _, asked = paged(behind, 1)
    wanted = {(row.topic, row.partition): (row.committed or 0) + row.lost for row in asked}
    found = first_times(context, leaders, wanted, unseen)
    now = context.now_ms
    ages = [
        AgeRow(row.topic, row.partition, row.lag or 0, at, max(0, now - at))
        for row in asked
        if (at := found.get((row.topic, row.partition))) is not None
    ]
    return Ages(
        title="Oldest unread records",
        command=context.command("groups", "describe", group.name),
        ages=tuple(sorted(ages, key=lambda each: each.at_ms)),
        more=len(behind) - len(asked),
        unseen=tuple(unseen),
    )


def first_times(
    context: Context, known: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int], unseen: list[str]
) -> dict[TopicPartition, int]:
    """The timestamps of the first records from these offsets on: one Fetch to each leader. `known`: the leaders.

    A leader may leave out a partition whose first batch does not fit into the answer. A few of those are fetched alone.
    """
    leaders = {place: known[place] for place in wanted if known.get(place, -1) >= 0}
    rounds = [[place for place in leaders if leaders[place] == node_id] for node_id in sorted(set(leaders.values()))]
    found: dict[TopicPartition, int] = {}
    for places in rounds:
        found |= times_on(context, leaders[places[0]], {place: wanted[place] for place in places}, unseen)
    for place in [place for place in leaders if place not in found][:ALONE_MAX]:
        found |= times_on(context, leaders[place], {place: wanted[place]}, unseen)
    return found


def times_on(
    context: Context, node_id: int, wanted: Mapping[TopicPartition, int], unseen: list[str]
) -> dict[TopicPartition, int]:
    """The timestamps of the first records in partitions that this node leads, as far as its answer has them."""
    rows = [PartitionFetch(*place, offset, FIRST_BYTES) for place, offset in wanted.items()]
    try:
        leader = context.client.broker(node_id)
        parts = post_fetch(context.client, leader, rows, max_bytes=FIRST_BYTES * len(rows), max_wait_ms=0).take()
        times = {place: time_of_first(part, wanted[place]) for place, part in parts.items()}
    except ClientError as failure:
        unseen.append(f"Records on node {node_id}: {failure}")
        return {}
    return {place: at for place, at in times.items() if at is not None}


def time_of_first(part: FetchedPart, offset: int) -> int | None:
    """The timestamp of the first record from this offset on; of its batch if that was not fetched whole."""
    check(part.error_code, "the first unread record")
    try:
        for header, position in iter_batches(part.records):
            if header.is_control or header.last_offset < offset:
                continue
            for record in decode_records(part.records, position):
                if record.offset >= offset:
                    return record.timestamp_ms
        return peek(part.records).base_timestamp if len(part.records) else None
    except (CorruptRecordsError, ValueError):
        return None


PAGE: Final = Page(
    name="group",
    path="/group",
    load=load,
    under="/groups",
    refresh_s=5,
    parts=(
        Part("ages", "Oldest unread records", load_ages, refresh_s=15),
        Part("past", "The last hour", group_past.load, refresh_s=60),
        Part("changes", "Why the group changed", member_changes.load),
    ),
    changes=(
        Change("reset", "Reset offsets", group_changes.reset_preview, group_changes.reset, group_changes.reset_fields),
        Change(
            "forget",
            "Delete offsets of a topic",
            group_changes.forget_preview,
            group_changes.forget,
            group_changes.forget_fields,
        ),
        Change("delete", "Delete the group", group_changes.delete_preview, group_changes.delete),
    ),
)
