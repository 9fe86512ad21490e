"""Plans a topic to be created, including the broker's own ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ottla.broker.config.values import Settings
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC


class NewTopic(NamedTuple):
    """A topic to be created, completely validated."""

    name: str
    partitions: int
    overrides: Mapping[str, str] = MappingProxyType({})
    topic_id: bytes | None = None
    replication_factor: int = 1
    assignments: tuple[tuple[int, ...], ...] = ()
    """The replicas of each partition, if the request assigns them; a standalone node ignores both."""


def new_internal(settings: Settings, name: str) -> NewTopic:
    """An internal topic as Kafka creates it (KafkaApis, AutoTopicCreationManager)."""
    prefix, overrides = {
        CONSUMER_OFFSETS_TOPIC: ("offsets.topic", {"cleanup.policy": "compact", "compression.type": "producer"}),
        TRANSACTION_STATE_TOPIC: (
            "transaction.state.log",
            {"cleanup.policy": "compact", "compression.type": "uncompressed"},
        ),
        SHARE_GROUP_STATE_TOPIC: (
            "share.coordinator.state.topic",
            # A snapshot of a fragmented share partition takes 20 bytes a run.
            {"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": str(16 << 20)},
        ),
    }[name]
    overrides["segment.bytes"] = str(settings[f"{prefix}.segment.bytes"])
    if name != CONSUMER_OFFSETS_TOPIC:
        overrides["min.insync.replicas"] = str(settings[f"{prefix}.min.isr"])
    factor = settings[f"{prefix}.replication.factor"]
    return NewTopic(name, settings[f"{prefix}.num.partitions"], overrides, replication_factor=factor)


COPIES = 3
_PREFIXES = ("default", "offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
_WITH_MIN_ISR = ("transaction.state.log", "share.coordinator.state.topic")


def replication_factors(nodes: int) -> dict[str, int]:
    """The settings with which a cluster of this size keeps three copies of everything, or as many as it has nodes. One
    copy of the coordinators' state may be missing, as with Kafka's defaults."""
    copies = min(COPIES, nodes)
    factors = {f"{prefix}.replication.factor": copies for prefix in _PREFIXES}
    return factors | {f"{prefix}.min.isr": max(copies - 1, 1) for prefix in _WITH_MIN_ISR}
