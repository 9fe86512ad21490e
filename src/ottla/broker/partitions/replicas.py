"""Lists the replicas on this node: which partitions of which topics have a log here.

Each one is found by its index and its topic's name or id. The number of partitions and their leaders, on which the
whole cluster agrees, are in the metadata image. A topic without any partition on this node is not in these tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.broker.partitions.partition import Partition
from ottla.log.config import LogConfig


class LocalTopic:
    """A topic that has replicas on this node, by index."""

    __slots__ = ("id", "log_config", "name", "partitions")

    def __init__(self, name: str, topic_id: bytes, log_config: LogConfig) -> None:
        self.name = name
        self.id = topic_id
        self.log_config = log_config
        self.partitions: dict[int, Partition] = {}


class Replicas:
    """All of a node's. `by_key` has each topic twice, by its name and by its id, as requests may use either.

    `behind`: names of topics whose replicas here may not match the metadata image yet."""

    __slots__ = ("behind", "by_key", "by_name")

    def __init__(self) -> None:
        self.by_name: dict[str, LocalTopic] = {}
        self.by_key: dict[str | bytes, LocalTopic] = {}
        self.behind: set[str] = set()

    def __iter__(self) -> Iterator[Partition]:
        for topic in self.by_name.values():
            yield from topic.partitions.values()

    def get(self, topic: str | bytes, index: int) -> Partition | None:
        """The replica of the topic of this name or id."""
        found = self.by_key.get(topic)
        return None if found is None else found.partitions.get(index)

    def add(self, topic: LocalTopic) -> None:
        """Partitions of this topic are placed on this node."""
        self.by_name[topic.name] = self.by_key[topic.name] = self.by_key[topic.id] = topic

    def remove(self, topic: LocalTopic) -> None:
        """None of its partitions is here any more."""
        del self.by_name[topic.name], self.by_key[topic.name], self.by_key[topic.id]
