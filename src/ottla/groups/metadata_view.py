"""What a shard of groups sees of its node that no record says: which topics there are, how a group is configured.

A shard is given one `MetadataView` when it is made, and asks it while it decides; `apply` never does, so that replay
depends on the log alone.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from ottla.machine import Millis


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """One share group's configuration, as far as membership needs it. Defaults are Kafka's (GroupConfig)."""

    session_timeout_ms: Millis = 45_000
    heartbeat_interval_ms: Millis = 5_000
    assignment_interval_ms: Millis = 1_000
    members_max: int = 200


class MetadataView(Protocol):
    def topic(self, name: str) -> tuple[bytes, int] | None:
        """Id and number of partitions; None where there is no such topic."""
        ...

    def share_group_config(self, group_id: str) -> ShareGroupConfig: ...


class _NoMetadata:
    """No topics, and Kafka's defaults."""

    def topic(self, name: str) -> tuple[bytes, int] | None:
        return None

    def share_group_config(self, group_id: str) -> ShareGroupConfig:
        return ShareGroupConfig()


NO_METADATA: Final[MetadataView] = _NoMetadata()
