"""Lists KMQ queues: the topics that have a markers topic, with their messages that wait, workers and trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.client.client import EARLIEST, LATEST
from ottla.client.errors import BrokerError
from ottla.console.access import RecordsHiddenError
from ottla.console.kmq_reading import Span, groups_of, queue_names
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.console.pages.kmq_queue import spans_of, trackers_in
from ottla.console.reading import leaders_of, metadata_of_all, offsets_at
from ottla.console.report_reading import reports_of
from ottla.doctor.snapshot import Group
from ottla.kmq.config import KmqConfig


@dataclass(frozen=True, slots=True)
class KmqQueueRow:
    """A queue. `markers` counts the partitions of the markers topic, which must be as many. `waiting` counts messages
    that no worker has begun; `workers` and `trackers` count members; None if a node does not report them.
    `lacks_tracker`: messages wait, and no tracker is known to run."""

    name: str
    partitions: int
    markers: int
    has_dead_letters: bool
    waiting: int | None
    workers: int | None
    trackers: int | None
    lacks_tracker: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KmqQueues(View):
    """A page of queues, and what was searched."""

    search: str
    paged: Paged
    queues: tuple[KmqQueueRow, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> KmqQueues:
    """The queues of one page."""
    search = context.query.get("q", "")
    unseen: list[str] = []
    topics = {each.name: each for each in metadata_of_all(context).topics if not each.error_code}
    names = [each for each in queue_names(topics) if search.lower() in each.lower()]
    where, shown = paged(names, context.number("page", 1))
    configs = [KmqConfig(queue=each) for each in shown]
    groups = groups_of(context, configs, unseen) if configs else {}
    knows_groups = not unseen
    starts, ends = offsets_at(context, leaders_of(topics[each] for each in shown), [EARLIEST, LATEST], unseen)
    spans = {each.queue: spans_of(each.queue, groups.get(each.group_id), starts, ends) for each in configs}
    counts = {name: len(each.partitions) for name, each in topics.items()}
    rows = [row_of(each, counts, groups, spans[each.queue], knows_groups=knows_groups) for each in configs]
    lacking = {row.name for row in rows if row.waiting and row.trackers == 0}
    if lacking:
        lacking -= reporting(context, [each for each in configs if each.queue in lacking])
    return KmqQueues(
        title="KMQ queues",
        command=context.command("topics", "list"),
        search=search,
        paged=where,
        queues=tuple(replace(row, lacks_tracker=row.name in lacking) for row in rows),
        unseen=tuple(unseen),
    )


def row_of(
    config: KmqConfig,
    counts: Mapping[str, int],
    groups: Mapping[str, Group],
    spans: Mapping[int, Span],
    *,
    knows_groups: bool,
) -> KmqQueueRow:
    """The row of a queue. `counts`: partitions by topic; `spans`: what no worker has begun, by partition;
    `knows_groups`: every node reported its groups."""

    def members(group: str) -> int | None:
        return len(groups[group].members) if group in groups else 0 if knows_groups else None

    is_known = len(spans) == counts[config.queue] and (knows_groups or config.group_id in groups)
    return KmqQueueRow(
        config.queue,
        counts[config.queue],
        counts[config.markers],
        config.dead_letters in counts,
        sum(each.count for each in spans.values()) if is_known else None,
        members(config.group_id),
        members(config.tracker_group_id),
    )


def reporting(context: Context, configs: Iterable[KmqConfig]) -> set[str]:
    """Those of the queues of which a tracker reports that it runs."""
    try:
        newest = reports_of(context, []).newest()
    except (RecordsHiddenError, BrokerError):
        return set()
    return {each.queue for each in configs if any(row.is_running for row in trackers_in(newest, each, context.now_ms))}


PAGE: Final = Page(name="kmq_queues", path="/kmq-queues", load=load, label="KMQ queues", key="q", refresh_s=10)
