"""Defines a shard's view of state that is not in its records: topics, and the configuration of groups.

A shard gets one `MetadataView` when it is created, and uses it in its decisions. `apply` never does, so that replay
depends on the log alone.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Protocol, TypeAlias

from ottla.machine import Millis

Topics: TypeAlias = dict[str, tuple[bytes, int]]
"""Id and number of partitions of topics that exist, by name."""


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """One share group's configuration, as far as membership needs it. Defaults are Kafka's (GroupConfig)."""

    session_timeout_ms: Millis = 45_000
    heartbeat_interval_ms: Millis = 5_000
    assignment_interval_ms: Millis = 1_000
    members_max: int = 200


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """One consumer group's configuration, as far as the coordinator needs it."""

    session_timeout_ms: Millis = 45_000
    heartbeat_interval_ms: Millis = 5_000
    assignment_interval_ms: Millis = 100
    members_max: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    regex_refresh_interval_ms: Millis = 600_000
    migration_policy: str = "bidirectional"


class MetadataView(Protocol):
    @property
    def topics_version(self) -> object:
        """A value that changes whenever topics may have changed."""
        ...

    def topic(self, name: str) -> tuple[bytes, int] | None:
        """Id and number of partitions; None if there is no such topic."""
        ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def topic_names(self) -> Collection[str]: ...

    def share_group_config(self, group_id: str) -> ShareGroupConfig: ...

    def consumer_group_config(self, group_id: str) -> ConsumerGroupConfig: ...

    def heartbeating(self) -> int:
        """The approximate number of consumer group members that send heartbeats to this node."""
        ...


def topics_of(metadata: MetadataView, names: Iterable[str]) -> Topics:
    """The topics of these names that exist."""
    found = ((name, metadata.topic(name)) for name in names)
    return {name: topic for name, topic in found if topic is not None}


def topics_hash(topics: Mapping[str, tuple[bytes, int]]) -> int:
    """A 63-bit hash of the existing topics that members subscribe to (name to id and partitions); 0 without topics."""
    if not topics:
        return 0
    text = repr(sorted(topics.items())).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest()) >> 1


class _NoMetadata:
    """No topics, and Kafka's defaults."""

    topics_version: object = None

    def topic(self, name: str) -> tuple[bytes, int] | None:
        return None

    def topic_name(self, topic_id: bytes) -> str | None:
        return None

    def topic_names(self) -> Collection[str]:
        return ()

    def share_group_config(self, group_id: str) -> ShareGroupConfig:
        return ShareGroupConfig()

    def consumer_group_config(self, group_id: str) -> ConsumerGroupConfig:
        return ConsumerGroupConfig()

    def heartbeating(self) -> int:
        return 0


NO_METADATA: Final[MetadataView] = _NoMetadata()
