"""Checks the topics of a queue and creates the missing ones.

The markers topic needs a partition with the same number for every partition of the queue. Errors of the cluster raise
KmqRefusedError, with one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ottla.kmq.config import KmqConfig, KmqRefusedError

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

METADATA_TIMEOUT_S = 30.0
MARKERS_CONFIG = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": "delete"}
"""The broker stamps every marker, so all deadlines use one clock, whatever the workers' clocks show."""


def properties_of(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """librdkafka's properties, made from properties or from addresses alone."""
    return {"bootstrap.servers": given} if isinstance(given, str) else dict(given)


def partition_counts(client: Any) -> dict[str, int]:
    """Partition counts by topic, for every topic of the cluster; `client`: any of confluent-kafka's clients. Raises
    KmqRefusedError."""
    from confluent_kafka import KafkaException

    try:
        topics = client.list_topics(timeout=METADATA_TIMEOUT_S).topics
    except KafkaException as error:
        raise KmqRefusedError(f"The cluster does not answer: {error.args[0].str()}.") from None
    return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}


def require_topics(client: Any, config: KmqConfig, *, dead_letters: bool) -> int:
    """The number of partitions of the queue. Raises KmqRefusedError if the topics are missing or do not fit."""
    counts = partition_counts(client)
    wanted = [config.queue, config.markers, *([config.dead_letters] if dead_letters else [])]
    absent = [name for name in wanted if name not in counts]
    if config.queue in absent:
        raise KmqRefusedError(f"There is no topic {config.queue}.")
    if absent:
        raise KmqRefusedError(
            f"The queue {config.queue} has no topic {' and no topic '.join(absent)}: "
            f"`ottla kmq create {config.queue}` makes what is missing."
        )
    if counts[config.queue] != counts[config.markers]:
        raise KmqRefusedError(
            f"{config.queue} has {counts[config.queue]} partitions and {config.markers} has {counts[config.markers]}: "
            "they must have the same number, because the markers of a partition are in the partition with the "
            "same number."
        )
    return counts[config.queue]


def differences(client: Any, config: KmqConfig, *, partitions: int | None, replication_factor: int | None) -> list[str]:
    """One sentence for each existing topic of the queue whose partition count or replication factor differs from the
    arguments; None matches any."""
    found = client.list_topics(timeout=METADATA_TIMEOUT_S).topics
    said: list[str] = []
    for name in (config.queue, config.markers, config.dead_letters):
        if name not in found or found[name].error is not None:
            continue
        count = len(found[name].partitions)
        if partitions not in (None, count):
            said.append(f"{name} has {counted(count, 'partition')}, not {partitions}.")
        replicas = len(found[name].partitions[0].replicas) if count else 0
        if replication_factor not in (None, replicas):
            said.append(f"{name} has {counted(replicas, 'replica')}, not {replication_factor}.")
    return said


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def create_topics(
    admin: AdminClient, config: KmqConfig, *, partitions: int = 1, replication_factor: int = -1
) -> list[str]:
    """Create those of the three topics that are missing, and return their names.

    If the queue exists, the markers topic gets the same number of partitions. Raises KmqRefusedError if a topic cannot
    be created, or if the existing ones do not fit.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import NewTopic

    counts = partition_counts(admin)
    partitions = counts.get(config.queue, partitions)
    asked = [
        NewTopic(config.queue, partitions, replication_factor),
        NewTopic(config.markers, partitions, replication_factor, config=MARKERS_CONFIG),
        NewTopic(config.dead_letters, partitions, replication_factor),
    ]
    missing = [topic for topic in asked if topic.topic not in counts]
    for name, future in admin.create_topics(missing).items() if missing else ():
        try:
            future.result(METADATA_TIMEOUT_S)
        except KafkaException as error:
            raise KmqRefusedError(f"{name} could not be made: {error.args[0].str()}.") from None
    if not missing:
        require_topics(admin, config, dead_letters=True)
    return [topic.topic for topic in missing]
