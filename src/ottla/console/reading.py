"""Reads facts of the cluster for pages: topics, positions, sizes, configs, with a bounded number of requests.

If a node does not answer, its facts are missing, and `unseen` gets a sentence. Nothing here creates a topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import EARLIEST, LATEST, TopicPartition
from ottla.client.errors import ClientError, check
from ottla.client.offsets import CONSUMER_REPLICA, offsets_requests
from ottla.client.read_together import read_together
from ottla.console.page import Context, MissingError
from ottla.escaping import visible
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

KEPT_S: Final = 2.0
"""Seconds for which the list of all topics is used again, by all sessions of a login: open pages ask once."""
READ_COMMITTED: Final = 1
SOURCES: Final = {
    1: "this topic",
    2: "this node, changed while running",
    3: "the cluster's default, changed while running",
    4: "the node's file",
    5: "default",
    8: "this group",
}
"""The origin of a config, by ConfigSource."""
DEFAULT: Final = 5
RATE_S: Final = 60
"""Seconds over which the rate of a partition is taken."""


def metadata_of_all(context: Context) -> Any:
    """The metadata of every topic, at most two seconds old."""

    def read() -> Any:
        answer = context.client.metadata(None)
        context.client.forget_topics()  # the answer has them; a session has several clients
        return answer

    answer = context.session.shared.metadata.get(KEPT_S, read, context.lease.limits.left_s())
    context.client.know_brokers(answer)
    return answer


def topic_of(context: Context, name: str) -> Any:
    """The metadata of one topic. Raises MissingError, and BrokerError if the user may not see it."""
    (topic,) = context.client.metadata([name]).topics
    if topic.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
        raise MissingError(f"There is no topic {visible(name)}.")
    check(topic.error_code, f"topic {visible(name)}")
    return topic


def leaders_of(topics: Iterable[Any]) -> dict[TopicPartition, int]:
    """The leader of each partition of some topics of a metadata answer, -1 where there is none."""
    return {(topic.name, part.partition_index): part.leader_id for topic in topics for part in topic.partitions}


def leaders_at(context: Context, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The leaders of these partitions, from new metadata of their topics. One that does not exist is missing."""
    wanted = set(places)
    if not wanted:
        return {}
    topics = context.client.metadata(sorted({topic for topic, _ in wanted})).topics
    return {place: leader for place, leader in leaders_of(topics).items() if place in wanted}


def offsets(
    context: Context,
    leaders: Mapping[TopicPartition, int],
    time_ms: int = LATEST,
    *,
    isolation: int = 0,
    replica: int = CONSUMER_REPLICA,
    unseen: list[str] | None = None,
) -> dict[TopicPartition, int]:
    """Offsets of partitions at a time, EARLIEST or LATEST: one request to each leader. With DEBUGGING_REPLICA, any
    replica reports the end of its own log."""
    found: dict[TopicPartition, int] = {}
    for node_id, request in offsets_requests(
        with_leader(leaders), time_ms, isolation=isolation, replica=replica
    ).items():
        try:
            found |= offsets_in(context.client.broker(node_id).send(request))
        except ClientError as failure:
            _note(unseen, f"Offsets on node {node_id}: {failure}")
    return found


def offsets_at(
    context: Context,
    leaders: Mapping[TopicPartition, int],
    times_ms: Sequence[int],
    unseen: list[str] | None = None,
) -> list[dict[TopicPartition, int]]:
    """Offsets of partitions at each of several times: one request to each leader of Ottla, one for each time to any
    other."""
    by_time = [offsets_requests(with_leader(leaders), each) for each in times_ms]
    nodes = sorted({node_id for each in by_time for node_id in each})
    answers = read_together(context.client, {node_id: [each[node_id] for each in by_time] for node_id in nodes})
    found: list[dict[TopicPartition, int]] = [{} for _ in times_ms]
    for node_id in nodes:
        for known, answer in zip(found, answers[node_id], strict=True):
            if isinstance(answer, ClientError):
                _note(unseen, f"Offsets on node {node_id}: {answer}")
            else:
                known |= offsets_in(answer)
    return found


def with_leader(leaders: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Those partitions that have a leader."""
    return {place: node_id for place, node_id in leaders.items() if node_id >= 0}


def offsets_in(answer: Any) -> dict[TopicPartition, int]:
    """The offsets in an answer to ListOffsets."""
    return {
        (topic.name, part.partition_index): part.offset
        for topic in answer.topics
        for part in topic.partitions
        if not part.error_code
    }


def sizes(
    context: Context, leaders: Mapping[TopicPartition, int], *, unseen: list[str] | None = None
) -> dict[TopicPartition, int]:
    """Bytes of partitions on their leaders' disks: one request to each leader."""
    by_node: dict[int, dict[str, list[int]]] = {}
    for (topic, index), node_id in leaders.items():
        if node_id >= 0:
            by_node.setdefault(node_id, {}).setdefault(topic, []).append(index)
    found: dict[TopicPartition, int] = {}
    for node_id, topics in by_node.items():
        rows = [DescribableLogDirTopic(name, indexes) for name, indexes in topics.items()]
        try:
            answer = context.client.broker(node_id).send(DescribeLogDirsRequest(rows))
            check(answer.error_code, "DescribeLogDirs")
        except ClientError as failure:
            _note(unseen, f"Sizes on node {node_id}: {failure}")
            continue
        for directory in answer.results:
            for topic in directory.topics:
                for part in topic.partitions:
                    if not part.is_future_key:
                        found[topic.name, part.partition_index] = part.partition_size
    return found


@dataclass(frozen=True, slots=True)
class Config:
    """A config of a resource, and its source. `value` is None for a secret. `set_by` and `set_ms`: the client that gave
    it this value, and when, if a node remembers it."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_read_only: bool
    documentation: str | None = None
    set_by: str = ""
    set_ms: int | None = None

    @property
    def time_ms(self) -> int | None:
        """The value as a time, if it is one."""
        is_time = self.name.endswith(".since.ms") and self.value is not None and self.value.isdigit()
        return int(self.value or 0) if is_time else None


def configs(context: Context, kind: int, name: str) -> tuple[Config, ...]:
    """The configs of a resource: those that differ from the default first. Raises BrokerError."""
    asked = DescribeConfigsRequest([DescribeConfigsResource(kind, name, None)], False, True)
    (result,) = context.client.send(asked).results
    check(result.error_code, f"the configs of {visible(name)}", result.error_message)
    found = [
        Config(
            each.name,
            None if each.is_sensitive else each.value,
            SOURCES.get(each.config_source, "unknown"),
            each.config_source == DEFAULT,
            each.read_only,
            each.documentation or None,
        )
        for each in result.configs
    ]
    return tuple(sorted(found, key=lambda each: (each.is_default, each.source != SOURCES[1], each.name)))


def extents(
    context: Context, leaders: Mapping[TopicPartition, int], unseen: list[str] | None = None
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The first offsets and the ends of partitions."""
    return offsets(context, leaders, EARLIEST, unseen=unseen), offsets(context, leaders, LATEST, unseen=unseen)


def _note(unseen: list[str] | None, sentence: str) -> None:
    if unseen is not None and sentence not in unseen:
        unseen.append(sentence)


def rates(
    context: Context,
    leaders: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    unseen: list[str] | None = None,
) -> dict[TopicPartition, float]:
    """Records a second of partitions in the last minute, by the timestamps of their records. `ends`: their log ends,
    read before."""
    earlier = offsets(context, leaders, context.now_ms - RATE_S * 1000, unseen=unseen)
    return {
        place: max(0, ends[place] - offset) / RATE_S if offset >= 0 else 0.0
        for place, offset in earlier.items()
        if place in ends
    }
