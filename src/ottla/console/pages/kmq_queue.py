"""Shows one KMQ queue: what waits, what is in work and until when, what is overdue; workers, trackers, dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ottla.client.client import TopicPartition
from ottla.client.errors import BrokerError
from ottla.client.reports import RUNNING, Report
from ottla.console.access import RecordsHiddenError
from ottla.console.kmq_reading import (
    Followed,
    Span,
    config_named,
    followed,
    groups_of,
    names_of,
    options_of,
    topics_of,
)
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.console.pages.group import MemberRow, member_row
from ottla.console.pages.pipelines import why_of as why_unread
from ottla.console.reading import extents
from ottla.console.report_reading import reports_of
from ottla.doctor.snapshot import Group
from ottla.escaping import visible
from ottla.kmq.config import KmqConfig
from ottla.kmq.events import Reason
from ottla.kmq.redrive import redrive_group
from ottla.kmq.stats import InWork, in_work, standing_of

SHOWN_MAX: Final = 200
TRACKER_KIND: Final = "kmq-tracker"
"""The kind in the reports of both trackers."""


@dataclass(frozen=True, slots=True)
class KmqPartitionRow:
    """A partition of the queue, as `ottla kmq stats` shows it. None: its leader does not report it, or its markers
    were not read."""

    partition: int
    waiting: int | None
    in_work: int | None
    overdue: int | None
    overdue_ms: int | None
    markers_lag: int | None


@dataclass(frozen=True, slots=True)
class WorkRow:
    """A message in work. `doing` is its state in words; `left_ms` is negative for an overdue message."""

    partition: int
    offset: int
    doing: str
    since_ms: int | None
    until_ms: int
    left_ms: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KmqQueueView(View):
    """The queue. `names`: the query of its address. Numbers of all partitions are None if one is not known. `letters`
    counts dead letters, `letters_left` those that no redrive has read; None without a dead-letter topic. `left_out`
    counts markers that were not read. `reports` is the topic of reports; `start` starts a tracker."""

    name: str
    names: Mapping[str, str]
    markers: str
    dead_letters: str
    group: str
    tracker_group: str
    why: str
    waiting: int | None
    in_work: int | None
    overdue: int | None
    letters: int | None
    letters_left: int | None
    paged: Paged
    partitions: tuple[KmqPartitionRow, ...]
    messages: tuple[WorkRow, ...]
    left_out: int
    workers: tuple[MemberRow, ...]
    workers_in_all: int
    trackers: tuple[MemberRow, ...]
    reported: Reported
    reports: str
    start: str
    unseen: tuple[str, ...]


def load(context: Context) -> KmqQueueView:
    """The queue that the address names."""
    config = config_named(context)
    unseen: list[str] = []
    topics = topics_of(context, config)
    groups = groups_of(context, [config], unseen)
    starts, ends = extents(context, topics.leaders, unseen)
    queue = spans_of(config.queue, groups.get(config.group_id), starts, ends)
    markers = spans_of(config.markers, groups.get(config.tracker_group_id), starts, ends)
    read = followed(context, config, markers, unseen)
    now_ms = context.now_ms
    rows = [partition_row(index, queue, markers, read, now_ms) for index in range(len(topics.queue.partitions))]
    if len(rows) != len(topics.markers.partitions):
        unseen.append(
            f"Some messages: {visible(config.queue)} has {len(rows)} partitions and {visible(config.markers)} has "
            f"{len(topics.markers.partitions)}; they must have the same number."
        )
    letters = spans_of(config.dead_letters, None, starts, ends)
    left = spans_of(config.dead_letters, groups.get(redrive_group(config)), starts, ends)
    where, shown = paged(rows, context.number("page", 1))
    workers, trackers = (members_of(groups.get(each)) for each in (config.group_id, config.tracker_group_id))
    reported = reported_of(context, config)
    waiting, overdue = whole(each.waiting for each in rows), whole(each.overdue for each in rows)
    return KmqQueueView(
        title=f"KMQ queue {visible(config.queue)}",
        command=context.command("kmq", "stats", config.queue, *options_of(config)),
        name=config.queue,
        names=names_of(config),
        markers=config.markers,
        dead_letters=config.dead_letters,
        group=config.group_id,
        tracker_group=config.tracker_group_id,
        why="" if unseen else why_of(config, waiting, overdue, len(workers), len(trackers), reported),
        waiting=waiting,
        in_work=whole(each.in_work for each in rows),
        overdue=overdue,
        letters=None if topics.letters is None else sum(each.count for each in letters.values()),
        letters_left=None if topics.letters is None else sum(each.count for each in left.values()),
        paged=where,
        partitions=tuple(shown),
        messages=tuple(work_rows(read, now_ms)),
        left_out=sum(each.left_out for each in read.values()),
        workers=workers[:SHOWN_MAX],
        workers_in_all=len(workers),
        trackers=trackers[:SHOWN_MAX],
        reported=reported,
        reports=context.settings.reports,
        start=context.command("kmq", "tracker", config.queue, *options_of(config, of_workers=False)),
        unseen=tuple(unseen),
    )


def spans_of(
    topic: str, group: Group | None, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[int, Span]:
    """From the position of a group to the end, in each partition of a topic whose extent is known."""
    found: dict[int, Span] = {}
    for place in sorted(each for each in starts.keys() & ends.keys() if each[0] == topic):
        committed = None if group is None else group.committed.get(place)
        position = starts[place] if committed is None else max(starts[place], committed.offset)
        found[place[1]] = Span(min(position, ends[place]), ends[place])
    return found


def partition_row(
    partition: int,
    queue: Mapping[int, Span],
    markers: Mapping[int, Span],
    read: Mapping[int, Followed],
    now_ms: int,
) -> KmqPartitionRow:
    """The row of a partition: spans of the queue and of its markers, and the markers that were read."""
    waiting = queue[partition].count if partition in queue else None
    lag = markers[partition].count if partition in markers else None
    if partition not in read:
        return KmqPartitionRow(partition, waiting, None, None, None, lag)
    found = standing_of(read[partition].machine, waiting or 0, lag or 0, now_ms)
    return KmqPartitionRow(partition, waiting, found.open, found.overdue, found.overdue_ms, lag)


def work_rows(read: Mapping[int, Followed], now_ms: int) -> list[WorkRow]:
    """The messages in work: those that are due first."""
    found = [each for part in read.values() for each in in_work(part.machine, part.stamps)]
    found.sort(key=lambda each: (each.until_ms, each.partition, each.offset))
    return [
        WorkRow(
            each.partition,
            each.offset,
            doing(each, is_overdue=each.until_ms < now_ms),
            each.since_ms,
            each.until_ms,
            each.until_ms - now_ms,
            visible(each.text),
        )
        for each in found[:SHOWN_MAX]
    ]


def doing(message: InWork, *, is_overdue: bool) -> str:
    """The state of a message in words."""
    if message.reason is Reason.REJECTED:
        return "rejected, dead letter to be written"
    if message.reason is Reason.FAILED:
        return "failed, redelivery is overdue" if is_overdue else "failed, waits for its redelivery"
    return "overdue" if is_overdue else "in work"


def members_of(group: Group | None) -> tuple[MemberRow, ...]:
    members = () if group is None else group.members
    return tuple(member_row(each) for each in sorted(members, key=lambda each: (each.client_id, each.id)))


def whole(values: Iterable[int | None]) -> int | None:
    """The sum; None if one is not known."""
    found = list(values)
    return None if None in found else sum(each for each in found if each is not None)


def why_of(
    config: KmqConfig, waiting: int | None, overdue: int | None, workers: int, trackers: int, reported: Reported
) -> str:
    """Say why the queue does not move; "" if it does."""
    if not trackers and not reported.is_running:
        what = "Messages are overdue, and no" if overdue else "No"
        return f"{what} tracker is known to run, which would redeliver messages that workers do not finish."
    if waiting and not workers:
        return f"Messages wait and the group {visible(config.group_id)} has no members: no worker reads them."
    return ""


# ---- trackers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrackerReport:
    """A tracker that reported; it runs in a process of its own or on Spark."""

    name: str
    state: str
    at_ms: int
    host: str

    @property
    def is_running(self) -> bool:
        return self.state == RUNNING


@dataclass(frozen=True, slots=True)
class Reported:
    """The trackers of a queue that have reported, or why no report can be read."""

    trackers: tuple[TrackerReport, ...] = ()
    why: str = ""

    @property
    def is_running(self) -> bool:
        return any(each.is_running for each in self.trackers)


def reported_of(context: Context, config: KmqConfig) -> Reported:
    """The trackers of the queue by their reports."""
    try:
        newest = reports_of(context, []).newest()
    except RecordsHiddenError as hidden:
        return Reported(why=str(hidden))
    except BrokerError as refused:
        return Reported(why=why_unread(context.settings.reports, refused))
    return Reported(trackers_in(newest, config, context.now_ms))


def trackers_in(newest: Mapping[str, Report], config: KmqConfig, now_ms: int) -> tuple[TrackerReport, ...]:
    """The trackers of the queue among the newest reports, those that run first."""
    found = [each for each in newest.values() if each.kind == TRACKER_KIND and config.markers in each.reads]
    rows = [TrackerReport(each.name, each.standing(now_ms), each.at_ms, each.host) for each in found]
    return tuple(sorted(rows, key=lambda each: (not each.is_running, -each.at_ms))[:SHOWN_MAX])


PAGE: Final = Page(name="kmq_queue", path="/kmq-queue", load=load, under="/kmq-queues", refresh_s=5)
