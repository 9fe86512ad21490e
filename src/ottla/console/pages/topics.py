"""Lists topics: names first, fifty a page, offsets and sizes of those rows only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import TopicPartition
from ottla.client.errors import check
from ottla.console.page import Change, Context, Done, Field, InputError, Page, Paged, Preview, View, paged, url
from ottla.console.reading import extents, leaders_of, metadata_of_all, rates, sizes
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest

TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic. `records` counts offsets between starts and ends, which is more than the records of a compacted topic;
    `rate` is the number of records a second in the last minute. These and `size` are None if a leader does not report
    them."""

    name: str
    partitions: int
    replicas: int
    under_replicated: int
    without_leader: int
    records: int | None
    rate: float | None
    size: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics(View):
    """A page of topics, and what was searched."""

    search: str
    with_internal: bool
    only_unhealthy: bool
    paged: Paged
    topics: tuple[TopicRow, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> Topics:
    """The topics of one page."""
    search, internal = context.query.get("q", ""), bool(context.query.get("internal"))
    unhealthy = bool(context.query.get("unhealthy"))
    answer = metadata_of_all(context)
    found = matching(answer.topics, search, internal=internal, unhealthy=unhealthy)
    where, shown = paged(found, context.number("page", 1))
    unseen: list[str] = []
    leaders = leaders_of(shown)
    starts, ends = extents(context, leaders, unseen)
    arriving = rates(context, leaders, ends, unseen)
    on_disk = sizes(context, leaders, unseen=unseen)
    rows = tuple(row_of(topic, starts, ends, arriving, on_disk) for topic in shown)
    return Topics(
        title="Topics",
        command=context.command("topics", "list", *(["--internal"] if internal else [])),
        search=search,
        with_internal=internal,
        only_unhealthy=unhealthy,
        paged=where,
        topics=rows,
        unseen=tuple(unseen),
    )


def matching(topics: Iterable[Any], search: str, *, internal: bool = False, unhealthy: bool = False) -> list[Any]:
    """The topics of a metadata answer whose name contains the search, by name."""
    return sorted(
        (
            topic
            for topic in topics
            if topic.name is not None
            and search.lower() in topic.name.lower()
            and (internal or not topic.is_internal)
            and (not unhealthy or any(is_unhealthy(part) for part in topic.partitions))
        ),
        key=lambda topic: topic.name,
    )


def is_unhealthy(part: Any) -> bool:
    return part.leader_id < 0 or len(part.isr_nodes) < len(part.replica_nodes)


def row_of(
    topic: Any,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    arriving: dict[TopicPartition, float],
    on_disk: dict[TopicPartition, int],
) -> TopicRow:
    """The row of a topic of a metadata answer."""
    places = [(topic.name, part.partition_index) for part in topic.partitions]
    is_known = all(place in starts and place in ends for place in places)
    return TopicRow(
        topic.name,
        len(places),
        max((len(part.replica_nodes) for part in topic.partitions), default=0),
        sum(len(part.isr_nodes) < len(part.replica_nodes) for part in topic.partitions),
        sum(part.leader_id < 0 for part in topic.partitions),
        sum(ends[place] - starts[place] for place in places) if is_known else None,
        sum(arriving[place] for place in places) if all(place in arriving for place in places) else None,
        sum(on_disk[place] for place in places) if all(place in on_disk for place in places) else None,
        ErrorCode(topic.error_code).name if topic.error_code else None,
    )


# ---- create --------------------------------------------------------------------------------------------------------


def create_fields(_: Context) -> tuple[Field, ...]:
    return (
        Field("name", "Name", required=True),
        Field("partitions", "Partitions", "number", hint="Empty: num.partitions of the cluster."),
        Field("replicas", "Replicas", "number", hint="Empty: default.replication.factor of the cluster."),
    )


def wanted_topic(context: Context) -> CreatableTopic:
    """The topic that the form asks for. Raises InputError."""
    name = context.form.get("name", "").strip()
    if not name:
        raise InputError("A topic needs a name.")
    numbers: list[int] = []
    for each in ("partitions", "replicas"):
        text = context.form.get(each, "").strip()
        if text and not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= 100_000):
            raise InputError(f"{each.capitalize()} must be a number from 1 to 100,000.")
        numbers.append(int(text) if text else -1)
    return CreatableTopic(name, num_partitions=numbers[0], replication_factor=numbers[1])


def create_preview(context: Context) -> Preview:
    """Describes the new topic."""
    topic = wanted_topic(context)
    partitions = topic.num_partitions if topic.num_partitions > 0 else "the cluster's default number of"
    replicas = topic.replication_factor if topic.replication_factor > 0 else "the cluster's default number of"
    options = [
        *(["--partitions", str(topic.num_partitions)] if topic.num_partitions > 0 else []),
        *(["--replication-factor", str(topic.replication_factor)] if topic.replication_factor > 0 else []),
    ]
    return Preview(
        topic.name,
        (f"Creates the topic {topic.name} with {partitions} partitions and {replicas} replicas.",),
        command=context.command("topics", "create", topic.name, *options),
    )


def create(context: Context) -> Done:
    """Create the topic."""
    topic = wanted_topic(context)
    (answer,) = context.client.send(CreateTopicsRequest(topics=[topic], timeout_ms=TIMEOUT_MS)).topics
    check(answer.error_code, f"topic {topic.name}", answer.error_message)
    return Done(f"Created the topic {topic.name}.", url("/topic", name=topic.name), {"topic": topic.name})


PAGE: Final = Page(
    name="topics",
    path="/topics",
    load=load,
    label="Topics",
    key="t",
    refresh_s=10,
    changes=(Change("create", "Create a topic", create_preview, create, create_fields, is_destructive=False),),
)
