"""Reads KMQ queues for pages: their topics and groups, the markers, the dead letters, within bounds.

A queue is a topic with a markers topic. An address names what `ottla kmq create` would name otherwise; such names are
looked up in the cluster. Nothing here joins a group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import TopicPartition
from ottla.client.dead_letters import OFFSETS_BY_NAME, headers_of
from ottla.client.errors import ClientError, check
from ottla.console.access import RecordsHiddenError
from ottla.console.browsing.found import Found
from ottla.console.browsing.scan import scanned
from ottla.console.group_reading import coordinated, described
from ottla.console.page import Context, InputError, MissingError
from ottla.console.reading import extents, leaders_of, topic_of
from ottla.doctor.snapshot import Group
from ottla.escaping import visible
from ottla.kmq.config import MARKERS_SUFFIX, KmqConfig, KmqRefusedError
from ottla.kmq.events import EndReached, MarkersRead
from ottla.kmq.machine import MarkersPartition
from ottla.kmq.redrive import Done, Letter, letter_from, redrive_group
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics

MARKERS_MAX: Final = 100_000
"""Markers that a page reads, the newest of each partition."""
MARKERS_BYTES: Final = 16 << 20
LETTERS_BYTES: Final = 16 << 20
DONE_MAX: Final = 1_000_000
"""Offsets beyond the position of a redrive that were sent back."""


NAMES: Final = {
    "markers": "markers",
    "dead_letters": "dead_letters",
    "group": "group_id",
    "tracker_group": "tracker_group_id",
}
"""The names in an address that differ from the default ones, and their fields of KmqConfig."""


def config_named(context: Context) -> KmqConfig:
    """The queue that the address names; names of its topics and groups that it lacks are the default ones. Raises
    InputError."""
    given: dict[str, Any] = {field: context.query.get(name, "").strip() for name, field in NAMES.items()}
    try:
        return KmqConfig(queue=context.need("name"), **given)
    except KmqRefusedError as refused:
        raise InputError(str(refused)) from None


def names_of(config: KmqConfig) -> dict[str, str]:
    """The query of an address that names this queue."""
    usual = KmqConfig(queue=config.queue)
    other = {name: getattr(config, field) for name, field in NAMES.items()}
    return {
        "name": config.queue,
        **{name: value for name, value in other.items() if value != getattr(usual, NAMES[name])},
    }


def options_of(config: KmqConfig, *, of_workers: bool = True) -> list[str]:
    """The options by which commands name this queue; `of_workers`: whether the command has one for their group."""
    found: list[str] = []
    for name, value in names_of(config).items():
        if name != "name" and (of_workers or name != "group"):
            found += [f"--{name.replace('_', '-')}", value]
    return found


def queue_names(topics: Iterable[str]) -> list[str]:
    """The topics that have a markers topic, by name."""
    names = set(topics)
    return sorted(each for each in names if each and each + MARKERS_SUFFIX in names)


def groups_of(context: Context, configs: Sequence[KmqConfig], unseen: list[str]) -> dict[str, Group]:
    """The groups of queues: workers, trackers, redrives. A group that does not exist is missing."""
    wanted = {name for each in configs for name in (each.group_id, each.tracker_group_id, redrive_group(each))}
    listed = {each: node_id for each, node_id in coordinated(context, unseen).items() if each.name in wanted}
    return {each.name: each for each in described(context, listed, unseen)}


@dataclass(frozen=True, slots=True)
class QueueTopics:
    """The topics of a queue as the metadata describes them; `letters` is None without a dead-letter topic."""

    queue: Any
    markers: Any
    letters: Any

    @property
    def leaders(self) -> dict[TopicPartition, int]:
        return leaders_of(each for each in (self.queue, self.markers, self.letters) if each is not None)


def topics_of(context: Context, config: KmqConfig) -> QueueTopics:
    """The topics of a queue. Raises MissingError if there is no such queue."""
    queue = topic_of(context, config.queue)
    try:
        markers = topic_of(context, config.markers)
    except MissingError:
        raise MissingError(
            f"{visible(config.queue)} is no KMQ queue: there is no markers topic {visible(config.markers)}."
        ) from None
    (letters,) = context.client.metadata([config.dead_letters]).topics
    return QueueTopics(queue, markers, None if letters.error_code else letters)


def topic_of_letters(context: Context, config: KmqConfig) -> Any:
    """The dead-letter topic of a queue. Raises MissingError."""
    topic_of(context, config.queue)
    return topic_of(context, config.dead_letters)


# ---- markers -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """The markers of a partition that a tracker would read when it starts: from `position` up to `end`."""

    position: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.position


@dataclass(frozen=True, slots=True)
class Followed:
    """A partition of the markers topic after its markers were read. `stamps`: their timestamps by offset. `left_out`
    counts the markers before those that were read."""

    machine: MarkersPartition
    stamps: Mapping[int, int]
    left_out: int


def followed(context: Context, config: KmqConfig, spans: Mapping[int, Span], unseen: list[str]) -> dict[int, Followed]:
    """The partitions whose markers could be read to their end."""
    room = MARKERS_MAX // max(1, len(spans))
    starts = {index: max(each.position, each.end - room) for index, each in spans.items()}
    ends = {index: each.end for index, each in spans.items()}
    try:
        rows, positions, _ = scanned(context.client, config.markers, starts, ends, MARKERS_BYTES, unseen)
    except RecordsHiddenError as hidden:
        unseen.append(f"Messages in work: {hidden}")
        return {}
    unread = sorted(index for index in ends if positions[index] < ends[index])
    if unread:
        unseen.append(f"Markers of partition {', '.join(map(str, unread[:20]))}: they were not read to their end.")
    by_partition: dict[int, list[Found]] = {index: [] for index in spans if index not in unread}
    for each in rows:
        if each.partition in by_partition:
            by_partition[each.partition].append(each)
    return {
        index: follow(config, index, found, ends[index], starts[index] - spans[index].position)
        for index, found in by_partition.items()
    }


def follow(config: KmqConfig, partition: int, found: Sequence[Found], end: int, left_out: int = 0) -> Followed:
    """The tracker's machine after these markers. Its effects are dropped, so nothing is redelivered."""
    machine = MarkersPartition(partition, config)
    offsets = [each.record.offset for each in found]
    stamps = [each.record.timestamp_ms for each in found]
    if found:
        keys, values = [each.record.key for each in found], [each.record.value for each in found]
        machine.step(0, MarkersRead(offsets, stamps, keys, values))
    machine.step(0, EndReached(end))
    return Followed(machine, dict(zip(offsets, stamps, strict=True)), left_out)


# ---- dead letters --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Letters:
    """Dead letters of a queue that were read, and which of each partition were sent back. `is_over`: all were read."""

    letters: tuple[Letter, ...]
    done: Mapping[int, Done]
    is_over: bool

    def is_back(self, letter: Letter) -> bool:
        return letter.offset in self.done[letter.partition]


def read_letters(
    context: Context, config: KmqConfig, topic: Any, unseen: list[str], *, newest: int | None = None
) -> Letters:
    """Dead letters: the newest of each partition, or those that were not sent back, the oldest first."""
    lows, highs = extents(context, leaders_of([topic]), unseen)
    ends = {index: end for (_, index), end in highs.items() if (topic.name, index) in lows}
    done = progress_of(context, config, {index: lows[topic.name, index] for index in ends}, unseen)
    starts = {
        index: max(lows[topic.name, index], done[index].start if newest is None else end - newest)
        for index, end in ends.items()
    }
    rows, _, is_over = scanned(context.client, topic.name, starts, ends, LETTERS_BYTES, unseen)
    letters = [letter_in(each) for each in rows]
    if newest is None:
        letters = [each for each in letters if each.offset not in done[each.partition]]
    return Letters(tuple(letters), done, is_over)


def letter_in(found: Found) -> Letter:
    """The dead letter in a record."""
    record = found.record
    stamp = max(0, record.timestamp_ms)
    return letter_from(found.partition, record.offset, record.key, record.value, stamp, headers_of(record))


def progress_of(context: Context, config: KmqConfig, lows: Mapping[int, int], unseen: list[str]) -> dict[int, Done]:
    """Which dead letters of each partition were sent back, as the group of the redrives remembers."""
    done = {index: Done(low) for index, low in lows.items()}
    nodes = [node_id for each, node_id in coordinated(context, unseen).items() if each.name == redrive_group(config)]
    for node_id in nodes:
        broker = context.client.broker(node_id)
        topics = [OffsetFetchRequestTopics(config.dead_letters, partition_indexes=sorted(lows))]
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(redrive_group(config), topics=topics)])
        (group,) = broker.send(asked, min(broker.version_of(ApiKey.OFFSET_FETCH), OFFSETS_BY_NAME)).groups
        check(group.error_code, "the progress of redrives")
        for topic in group.topics:
            for part in topic.partitions:
                if part.error_code == ErrorCode.NONE and part.committed_offset >= 0:
                    done[part.partition_index] = done_from(
                        part.committed_offset, part.metadata or "", lows[part.partition_index]
                    )
    return done


def done_from(position: int, metadata: str, low: int) -> Done:
    """Read from a commit which records were sent back. Retention has removed those before `low`. Raises ClientError."""
    lengths = [run.partition("+")[2] for run in metadata.split(",")] if metadata else []
    if any(not each.isdecimal() for each in lengths) or sum(map(int, lengths)) > DONE_MAX:
        raise ClientError("The progress of redrives can't be read: its commit is not one of ottla kmq redrive.")
    done = Done(position, metadata)
    done.beyond = {each for each in done.beyond if each >= low}
    done.start = max(low, done.start)
    return done
