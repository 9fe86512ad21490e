"""Shows one share group: its partitions, members, and the records in flight: who has them, for how long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ottla.client.client import TopicPartition
from ottla.client.dead_letters import DEAD_LETTERS
from ottla.client.errors import ClientError
from ottla.client.share_groups import PAUSE_CONFIGS, PAUSED, Pause, ShareOffset, group_configs, pause_in
from ottla.client.share_partitions import (
    Coordinated,
    InFlight,
    RunState,
    ShareGroup,
    SharePartition,
    describe_share_partitions,
)
from ottla.console.config_authors import Configs, configs_view
from ottla.console.failures_since import Since, counters_in, counters_of, since
from ottla.console.group_reading import group_of
from ottla.console.letter_owners import Waiting
from ottla.console.page import Change, Context, MissingError, Page, Paged, Part, View, paged
from ottla.console.pages import dead_letters, group_changes, member_changes, share_changes
from ottla.console.pages.group import MemberRow, member_row
from ottla.console.reading import Config
from ottla.console.worker_reasons import QUIET_MS, ReasonRow, cut, shown_reasons
from ottla.doctor.checks.shares import BREAKER
from ottla.doctor.snapshot import SHARE, Group
from ottla.escaping import visible
from ottla.protocol.config_resources import ConfigResourceType

RUNS_MAX: Final = 200
"""Runs that are asked for in each partition, and shown in all."""
NOT_OTTLA: Final = "This cluster does not report records in flight, nor why records failed; nodes of Ottla do."


def share_group_of(context: Context) -> Group:
    """The share group that the address names. Raises MissingError."""
    name = context.need("name")
    group, _ = group_of(context, name)
    if group.type != SHARE:
        raise MissingError(f"{visible(name)} is a {visible(group.type)} group, not a share group.")
    return group


def described(context: Context, group: Group, runs_max: int, unseen: list[str]) -> ShareGroup | None:
    """The group's partitions with their records in flight, as their leaders report them; None if nothing is known."""
    positions: list[ShareOffset] = []
    for place in sorted(group.committed.keys() | group.owned):
        at = group.committed.get(place)
        lag = None if at is None else at.lag
        positions.append(ShareOffset(*place, -1 if at is None else at.offset, -1 if lag is None else lag))
    known = Coordinated(group.state, len(group.members), positions)
    try:
        found = describe_share_partitions(
            context.client,
            group.name,
            runs_max=runs_max,
            known=known,
            with_reasons=not context.settings.no_records,
        )
    except ClientError as failure:
        unseen.append(f"Records in flight: {failure}")
        return None
    if found.unserved_by:
        unseen.append(NOT_OTTLA)
    why = dict.fromkeys(each.why_unknown for each in found.partitions if not found.unserved_by)
    unseen += [f"Records in flight: {visible(reason)}." for reason in why if reason is not None]
    return found


def loaded(group: ShareGroup | None) -> dict[TopicPartition, SharePartition]:
    """The partitions that their leaders have loaded."""
    partitions = () if group is None else group.partitions
    return {(each.topic, each.partition): each for each in partitions if each.is_loaded}


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
    """The share group, a page of its partitions, and its members. `why` says why nothing is delivered. `reasons`: the
    most common ones that members gave for the latest failures. `since`: what happened since the moment in the address.
    `counters`: this moment, for an address; "" if it is not known."""

    name: str
    state: str
    why: str
    is_paused: bool
    is_paused_by_breaker: bool
    paused_since_ms: int | None
    paused_by: str | None
    lag: int | None
    held: int | None
    archiving: int | None
    waiting: int | None
    reasons: tuple[ReasonRow, ...]
    since: Since | None
    counters: str
    paged: Paged
    partitions: tuple[SharePartitionRow, ...]
    members: tuple[MemberRow, ...]
    members_in_all: int
    unseen: tuple[str, ...]


def load(context: Context) -> ShareGroupView:
    """The share group that the address names."""
    group = share_group_of(context)
    unseen: list[str] = []
    found = described(context, group, RUNS_MAX, unseen)
    parts, counters = loaded(found), counters_of(found, context.now_ms)
    configs = group_configs(context.client, [group.name], (*PAUSE_CONFIGS, DEAD_LETTERS)).get(group.name, {})
    pause = pause_in(configs)
    rows = [partition_row(place, group, parts.get(place)) for place in sorted(group.committed.keys() | group.owned)]
    where, shown = paged(rows, context.number("page", 1))
    lag, held, archiving = (total(getattr(row, name) for row in rows) for name in ("lag", "held", "archiving"))
    members = sorted(group.members, key=lambda each: (each.client_id, each.id))
    return ShareGroupView(
        title=f"Share group {visible(group.name)}",
        command=context.command("share-groups", "describe", group.name),
        name=group.name,
        state=group.state,
        why=why_nothing(group, pause, lag, has_letters=bool(configs.get(DEAD_LETTERS))),
        is_paused=pause is not None,
        is_paused_by_breaker=is_by_breaker(pause),
        paused_since_ms=None if pause is None else pause.since_ms,
        paused_by=None if pause is None else by_in_words(pause),
        lag=lag,
        held=held,
        archiving=archiving,
        waiting=None if lag is None or held is None or archiving is None else max(0, lag - held - archiving),
        reasons=shown_reasons(parts.values(), quiet_since(context, group, pause, lag, configs.get(DEAD_LETTERS))),
        since=since(counters_in(text), counters) if (text := context.query.get("since")) else None,
        counters="" if counters is None else str(counters),
        paged=where,
        partitions=tuple(shown),
        members=tuple(member_row(each) for each in members[:RUNS_MAX]),
        members_in_all=len(members),
        unseen=tuple(unseen),
    )


def partition_row(place: TopicPartition, group: Group, part: SharePartition | None) -> SharePartitionRow:
    """The row of a partition; `part` is what its leader reports, None if it reports nothing."""
    known = group.committed.get(place)
    start, lag = (None, None) if known is None else (known.offset, known.lag)
    if part is None:
        return SharePartitionRow(*place, start, lag, *(None,) * 7)
    return SharePartitionRow(
        *place,
        part.start_offset if part.start_offset >= 0 else start,
        part.lag if part.lag >= 0 else lag,
        part.acquired,
        part.archiving,
        part.acknowledged["accept"],
        part.acknowledged["release"],
        part.acknowledged["reject"],
        part.lock_timeouts,
        part.dead_letters,
    )


def quiet_since(
    context: Context, group: Group, pause: Pause | None, lag: int | None, letters_topic: str | None
) -> int | None:
    """The time since which a reason must have had no failure to be over; None while none can be over: records wait and
    no member may get them, or dead letters are still to be sent back, as far as another part of the page has read."""
    waiting = context.session.shared.letters.last(group.name, letters_topic) if letters_topic else Waiting(0, 0)
    if waiting != Waiting(0, 0) or pause is not None:
        return None
    if lag == 0:
        return context.now_ms
    return context.now_ms - QUIET_MS if group.owned else None


def total(values: Iterable[int | None]) -> int | None:
    """The sum of what is known; None if nothing is."""
    known = [each for each in values if each is not None]
    return sum(known) if known else None


def is_by_breaker(pause: Pause | None) -> bool:
    """Whether the group's circuit breaker has paused it."""
    return pause is not None and (pause.by or "").startswith(BREAKER)


def by_in_words(pause: Pause) -> str | None:
    """The cause of the pause: the circuit breaker with the reason, or a client."""
    if not is_by_breaker(pause) or pause.by is None:
        return pause.by
    why = pause.by.removeprefix(BREAKER).removeprefix(": ")
    return f"its circuit breaker ({why})" if why else "its circuit breaker"


def why_nothing(group: Group, pause: Pause | None, lag: int | None, *, has_letters: bool = False) -> str:
    """Why the group's members get no records; "" if they may get some. `has_letters`: whether records that fail become
    dead letters."""
    if is_by_breaker(pause):
        return (
            "Too many of its records failed within a minute, so the group has paused itself: its members get no "
            "records until you resume it."
        )
    if pause is not None:
        return "The group is paused: its members get no records until it is resumed."
    if not group.members and lag != 0:
        return "The group has no members, so its records wait."
    if group.members and not group.owned:
        return "No member has a partition: the topics may be missing, or the assignment is not done."
    if lag != 0:
        return ""
    done = "Every record is done, or became a dead letter" if has_letters else "Every record is done"
    return f"{done}: members wait for new ones." if group.members else f"{done}."


# ---- dead letters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLetters(View):
    """How many dead letters of the group were not sent back; None without a dead-letter topic. `unread`: how many
    records were not read, of which each may be one."""

    name: str
    waiting: int | None
    unread: int
    unseen: tuple[str, ...]


def load_letters(context: Context) -> WaitingLetters:
    """The dead letters of the group that the address names."""
    name, unseen = context.need("name"), list[str]()
    found = dead_letters.waiting_of(context, unseen)
    return WaitingLetters(
        title="Dead letters",
        command=context.command("share-groups", "redrive", name),
        name=name,
        waiting=None if found is None else found.known,
        unread=0 if found is None else found.unread,
        unseen=tuple(unseen),
    )


# ---- records in flight ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunRow:
    """A range of records in flight. `doing` is their state in words, `for_ms` the time since their acquisition, and
    `left_ms` the time until the lock ends or the next delivery is due. `reason`: the last one that a member gave, for
    the delivery with the number `reason_delivery`."""

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
    reason: str | None
    reason_delivery: int | None


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
    found = described(context, group, RUNS_MAX, unseen)
    parts, limits = loaded(found).values(), (None if found is None else found.limits) or {}
    rows = sorted(
        (run_row(part, run, limits["deliveries"]) for part in parts for run in part.runs),
        key=lambda row: (row.member is None, -(row.for_ms or 0), row.topic, row.partition, row.first),
    )
    return Runs(
        title="Records in flight",
        command=context.command("share-groups", "inspect", group.name),
        runs=tuple(rows[:RUNS_MAX]),
        has_more=len(rows) > RUNS_MAX or any(part.has_more for part in parts),
        lock_ms=limits.get("lock_ms"),
        unseen=tuple(unseen),
    )


def run_row(part: SharePartition, run: InFlight, limit: int) -> RunRow:
    """The row of a run in a partition. `limit`: the most deliveries of a record."""
    return RunRow(
        part.topic,
        part.partition,
        run.first_offset,
        run.last_offset,
        run.last_offset - run.first_offset + 1,
        doing(run),
        run.client_id,
        run.host,
        run.member,
        run.held_ms if run.state is RunState.ACQUIRED else None,
        run.lock_left_ms if run.state is RunState.ACQUIRED else run.next_try_ms or None,
        run.delivery_count,
        limit,
        None if run.reason is None else cut(run.reason),
        run.reason_delivery,
    )


def doing(run: InFlight) -> str:
    """The present state of a run of records, in words."""
    if run.state is RunState.ACQUIRED:
        return "acknowledged, being stored" if run.is_being_written else "with a member"
    if run.state is RunState.ARCHIVING:
        return (
            "rejected, dead letter to be written"
            if run.is_rejected
            else "delivered too often, dead letter to be written"
        )
    return "waits for its next delivery" if run.state is RunState.AVAILABLE else str(run.state)


# ---- configs -------------------------------------------------------------------------------------------------------


def load_configs(context: Context) -> Configs:
    """The configs of the share group that the address names."""
    found = configs_view(context, ConfigResourceType.GROUP, "group", ("share.", "errors."))
    return replace(found, differing=with_pause(found.differing))


def with_pause(found: tuple[Config, ...]) -> tuple[Config, ...]:
    """The configs of a group, with the author of its pause, whom the node stores in configs of the group."""
    values = {each.name: each.value or "" for each in found}
    by, since = values.get(f"{PAUSED}.by", ""), values.get(f"{PAUSED}.since.ms", "")
    if not by or not since.isdigit():
        return found
    names = (PAUSED, f"{PAUSED}.by", f"{PAUSED}.since.ms")
    return tuple(
        replace(each, set_by=by, set_ms=int(since)) if each.name in names and each.set_ms is None else each
        for each in found
    )


PAGE: Final = Page(
    name="share_group",
    path="/share-group",
    load=load,
    under="/share-groups",
    refresh_s=2,
    parts=(
        Part("letters", "Dead letters", load_letters, refresh_s=5, is_first=True),
        Part("runs", "Records in flight", load_runs, refresh_s=2, is_first=True, folds=True),
        Part("changes", "Why the group changed", member_changes.load, folds=True),
        Part("configs", "Configs", load_configs, refresh_s=30, folds=True),
    ),
    changes=(
        Change("pause", "Pause", share_changes.pause_preview, share_changes.pause, is_destructive=False),
        Change(
            "resume",
            "Resume",
            share_changes.resume_preview,
            share_changes.resume,
            is_destructive=False,
            is_primary=True,
        ),
        Change("reset", "Reset offsets", group_changes.reset_preview, group_changes.reset, group_changes.reset_fields),
        Change("delete", "Delete the group", group_changes.delete_preview, group_changes.delete),
    ),
)
