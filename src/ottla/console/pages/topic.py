"""Shows one topic: its partitions with leaders, replicas, offsets and sizes, and its configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import LATEST, TopicPartition
from ottla.client.errors import check
from ottla.console.config_authors import Configs, configs_view
from ottla.console.page import Change, Context, Done, Page, Paged, Part, Preview, View, paged, url
from ottla.console.reading import (
    READ_COMMITTED,
    extents,
    leaders_of,
    offsets,
    rates,
    sizes,
    topic_of,
)
from ottla.doctor.words import count, size
from ottla.escaping import visible
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.uuids import uuid_text

TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition. `leader` is None if it has none; `behind` are the replicas that are not in sync. Offsets,
    rates and sizes are None if the leader does not report them. `held` counts records behind an open transaction.
    `rate`: records a second in the last minute."""

    index: int
    leader: int | None
    replicas: tuple[int, ...]
    behind: tuple[int, ...]
    leader_epoch: int
    start: int | None
    end: int | None
    held: int | None
    rate: float | None
    size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic(View):
    """A topic, and a page of its partitions."""

    name: str
    topic_id: str
    is_internal: bool
    partition_count: int
    replicas: int
    under_replicated: int
    without_leader: int
    records: int | None
    rate: float | None
    size: int | None
    paged: Paged
    partitions: tuple[PartitionRow, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> Topic:
    """The topic that the address names."""
    topic = topic_of(context, context.need("name"))
    unseen: list[str] = []
    leaders = leaders_of([topic])
    starts, ends = extents(context, leaders, unseen)
    stable = offsets(context, leaders, LATEST, isolation=READ_COMMITTED, unseen=unseen)
    arriving = rates(context, leaders, ends, unseen)
    on_disk = sizes(context, leaders, unseen=unseen)
    rows = [partition_of(topic.name, part, starts, ends, stable, arriving, on_disk) for part in topic.partitions]
    where, shown = paged(sorted(rows, key=lambda row: row.index), context.number("page", 1))
    records = [None if row.start is None or row.end is None else row.end - row.start for row in rows]
    return Topic(
        title=f"Topic {visible(topic.name)}",
        command=context.command("topics", "describe", topic.name),
        name=topic.name,
        topic_id=uuid_text(topic.topic_id),
        is_internal=topic.is_internal,
        partition_count=len(rows),
        replicas=max((len(row.replicas) for row in rows), default=0),
        under_replicated=sum(bool(row.behind) for row in rows),
        without_leader=sum(row.leader is None for row in rows),
        records=None if None in records else sum(each for each in records if each is not None),
        rate=None if any(row.rate is None for row in rows) else sum(row.rate or 0 for row in rows),
        size=None if any(row.size is None for row in rows) else sum(row.size or 0 for row in rows),
        paged=where,
        partitions=tuple(shown),
        unseen=tuple(unseen),
    )


def partition_of(
    topic: str,
    part: Any,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    stable: dict[TopicPartition, int],
    arriving: dict[TopicPartition, float],
    on_disk: dict[TopicPartition, int],
) -> PartitionRow:
    """The row of a partition of a metadata answer."""
    place = topic, part.partition_index
    end, committed = ends.get(place), stable.get(place)
    return PartitionRow(
        part.partition_index,
        part.leader_id if part.leader_id >= 0 else None,
        tuple(part.replica_nodes),
        tuple(each for each in part.replica_nodes if each not in part.isr_nodes),
        part.leader_epoch,
        starts.get(place),
        end,
        None if end is None or committed is None else max(0, end - committed),
        arriving.get(place),
        on_disk.get(place),
    )


def load_configs(context: Context) -> Configs:
    """The configs of the topic that the address names."""
    return configs_view(context, ConfigResourceType.TOPIC, "topic")


# ---- delete --------------------------------------------------------------------------------------------------------


def delete_preview(context: Context) -> Preview:
    """Counts what the cluster would lose with the topic."""
    topic = topic_of(context, context.need("name"))
    leaders = leaders_of([topic])
    starts, ends = extents(context, leaders)
    records = sum(ends[place] - starts.get(place, 0) for place in ends)
    on_disk = sum(sizes(context, leaders).values())
    warnings = ["The records cannot be brought back. Groups lose their positions in this topic."]
    if topic.is_internal:
        warnings.insert(0, "This is an internal topic: the cluster keeps its own state in it.")
    return Preview(
        topic.name,
        (
            f"Deletes the topic {visible(topic.name)} with {count(len(topic.partitions), 'partition')}, "
            f"{count(records, 'record')} and {size(on_disk)} on the leaders' disks.",
        ),
        tuple(warnings),
        facts=bytes(topic.topic_id),
        command=context.command("topics", "delete", topic.name),
    )


def delete(context: Context) -> Done:
    """Delete the topic."""
    topic = topic_of(context, context.need("name"))
    state = DeleteTopicState(name=topic.name)
    request = DeleteTopicsRequest(topics=[state], topic_names=[topic.name], timeout_ms=TIMEOUT_MS)
    (answer,) = context.client.send(request).responses
    check(answer.error_code, f"topic {visible(topic.name)}", answer.error_message)
    details = {"topic": topic.name, "topic_id": uuid_text(topic.topic_id)}
    return Done(f"Deleted the topic {visible(topic.name)}.", url("/topics"), details)


PAGE: Final = Page(
    name="topic",
    path="/topic",
    load=load,
    under="/topics",
    refresh_s=5,
    parts=(Part("configs", "Configs", load_configs, refresh_s=30),),
    changes=(Change("delete", "Delete the topic", delete_preview, delete),),
)
