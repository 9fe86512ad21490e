"""What share groups must know that no record of theirs says: which topics there are, and how a group is configured.

A shard is given one `Surroundings` when it is made, and asks it while it decides; `apply` never does, so that replay
depends on the log alone.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from ottla.machine import Millis


@dataclass(frozen=True, slots=True)
class ShareTiming:
    """One group's configuration, as far as membership needs it. Defaults are Kafka's (GroupConfig)."""

    session_timeout_ms: Millis = 45_000
    heartbeat_interval_ms: Millis = 5_000
    assignment_interval_ms: Millis = 1_000
    members_max: int = 200


class Surroundings(Protocol):
    def topic(self, name: str) -> tuple[bytes, int] | None:
        """Id and number of partitions; None where there is no such topic."""
        ...

    def share_timing(self, group_id: str) -> ShareTiming: ...


class _Empty:
    """No topics, and Kafka's defaults."""

    def topic(self, name: str) -> tuple[bytes, int] | None:
        return None

    def share_timing(self, group_id: str) -> ShareTiming:
        return ShareTiming()


NO_SURROUNDINGS: Final[Surroundings] = _Empty()
