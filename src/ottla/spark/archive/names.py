"""Names topics in an archive: a topic that was deleted and created again is a new topic with a new name.

The archive keeps the ids of all topics of a name. The first keeps its name, the next is `clicks~2`: Kafka allows no "~"
in a topic's name.

Invariant: the records of two topics never have the same topic name, so (name, partition, offset) identifies one record.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ottla.client import TopicPartition
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.running.topic_ids import TopicIds


class MadeAgainError(PipelineFailedError):
    """Raised if a topic is not the one that was archived under its name."""

    def __init__(self, topics: Collection[str], names: Names) -> None:
        verb, they = ("were", "they were") if len(topics) > 1 else ("was", "it was")
        now = ", ".join(names.next_name(topic) for topic in sorted(topics))
        super().__init__(
            f"{', '.join(sorted(topics))} {verb} deleted and created again, or truncated, since {they} archived into "
            f"{names.table}: offsets start from 0 again. `--allow-loss` archives the present records, as {now} "
            "in the table."
        )


@dataclass(frozen=True, slots=True)
class Names(TopicIds):
    """The names in one archive. An id appears twice if the topic was truncated: its later records count as a new
    topic."""

    @property
    def table(self) -> Path:
        return self.folder.parent.parent

    def add(self, topic: str, topic_id: str) -> None:
        """Give the name's next number to a new topic."""
        self.keep(topic, [*(self.ids(topic) or [""]), topic_id])

    def learn(self, topic: str, topic_id: str) -> None:
        """Store the id of a topic that is archived for the first time. Raises MadeAgainError if the name has another
        id."""
        if self.is_another(topic, topic_id):
            raise MadeAgainError([topic], self)
        if not self.ids(topic):
            self.keep(topic, [topic_id])

    def called(self, topic: str) -> str:
        """Return the archive's name of the topic that currently has this name."""
        return numbered(topic, len(self.ids(topic)))

    def next_name(self, topic: str) -> str:
        return numbered(topic, max(len(self.ids(topic)), 1) + 1)

    def place(self, place: TopicPartition) -> TopicPartition:
        """A partition of the log, by its name here."""
        return self.called(place[0]), place[1]


def numbered(topic: str, number: int) -> str:
    return topic if number < 2 else f"{topic}~{number}"


def topic_of(name: str) -> str:
    """The topic that is or was called so."""
    return name.partition("~")[0]
