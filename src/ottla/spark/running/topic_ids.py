"""Records which topics a table was filled from, by their ids: a topic that was deleted and created again has a new id.

Each topic has one small file (HASH.json) with the ids of all topics of that name, oldest first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ottla.spark.platform.durable import write_json
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import stream_options
from ottla.spark.running.run import RunOptions, source_options


@dataclass(frozen=True, slots=True)
class TopicIds:
    """The ids that a folder stores, as Kafka writes them; "" if a broker had none."""

    folder: Path

    def ids(self, topic: str) -> list[str]:
        """The ids of the topics of this name, the last one's last; none where it was never noted."""
        try:
            return json.loads(self._file(topic).read_bytes())["ids"]
        except FileNotFoundError:
            return []

    def keep(self, topic: str, ids: Sequence[str]) -> None:
        """Replace the ids of a topic, durably."""
        write_json(self._file(topic), {"topic": topic, "ids": list(ids)})

    def is_another(self, topic: str, topic_id: str) -> bool:
        """Whether a topic is not the last one noted under its name, as far as that is known."""
        return bool(topic_id) and self.ids(topic)[-1:] not in ([], [""], [topic_id])

    def _file(self, topic: str) -> Path:
        return self.folder / f"{hashlib.sha256(topic.encode()).hexdigest()[:32]}.json"


def ids_at(options: RunOptions, topics: Sequence[str]) -> dict[str, str]:
    """Return the ids of those topics that exist now; "" if the broker has no topic ids."""
    cluster = Cluster(stream_options(source_options(options, topics)))
    try:
        return cluster.topic_ids(topics)
    finally:
        cluster.close()


def require_same(options: RunOptions, topics: Sequence[str], table: Path) -> None:
    """Store which topics a table is filled from. Raises PipelineFailedError if the id of a topic has changed."""
    known = TopicIds(table / "_topics")
    found = ids_at(options, topics)
    if others := sorted(topic for topic in found if known.is_another(topic, found[topic])):
        verb = "were" if len(others) > 1 else "was"
        raise PipelineFailedError(
            f"{', '.join(others)} {verb} deleted and created again since {table} was filled: offsets start from "
            "0 again, and "
            "new records would be confused with old ones. Give another --table."
        )
    for topic, topic_id in found.items():
        if topic_id and known.ids(topic) != [topic_id]:
            known.keep(topic, [topic_id])
