"""Lists KMQ queues: the topics that have a markers topic, with their workers and trackers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.console.kmq_reading import groups_of, queue_names
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.console.reading import metadata_of_all
from ottla.doctor.snapshot import Group
from ottla.kmq.config import KmqConfig


@dataclass(frozen=True, slots=True)
class KmqQueueRow:
    """A queue. `markers` counts the partitions of the markers topic, which must be as many. `workers` and `trackers`
    count members; None if a node does not report its groups."""

    name: str
    partitions: int
    markers: int
    has_dead_letters: bool
    workers: int | None
    trackers: int | None


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
    counts = {each.name: len(each.partitions) for each in metadata_of_all(context).topics if not each.error_code}
    names = [each for each in queue_names(counts) if search.lower() in each.lower()]
    where, shown = paged(names, context.number("page", 1))
    configs = [KmqConfig(queue=each) for each in shown]
    groups = groups_of(context, configs, unseen) if configs else {}
    return KmqQueues(
        title="KMQ queues",
        command=context.command("topics", "list"),
        search=search,
        paged=where,
        queues=tuple(row_of(each, counts, groups, is_whole=not unseen) for each in configs),
        unseen=tuple(unseen),
    )


def row_of(config: KmqConfig, counts: Mapping[str, int], groups: Mapping[str, Group], *, is_whole: bool) -> KmqQueueRow:
    """The row of a queue. `counts`: partitions by topic; `is_whole`: every node reported its groups."""

    def members(group: str) -> int | None:
        return len(groups[group].members) if group in groups else 0 if is_whole else None

    return KmqQueueRow(
        config.queue,
        counts[config.queue],
        counts[config.markers],
        config.dead_letters in counts,
        members(config.group_id),
        members(config.tracker_group_id),
    )


PAGE: Final = Page(name="kmq_queues", path="/kmq-queues", load=load, label="KMQ queues", key="q", refresh_s=10)
