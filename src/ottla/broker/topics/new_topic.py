"""Plans a topic to be made, the broker's own ones too."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.broker.config.values import Settings
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made: everything about it has been checked."""

    name: str
    partitions: int
    overrides: dict[str, str] = field(default_factory=dict[str, str])
    topic_id: bytes | None = None


def new_internal(settings: Settings, name: str) -> NewTopic:
    """How Kafka makes its internal topics (KafkaApis, AutoTopicCreationManager)."""
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
    return NewTopic(name, settings[f"{prefix}.num.partitions"], overrides)
