"""Holds the configuration that a group coordinator reads, as plain values under Kafka's names."""

from dataclasses import dataclass
from typing import Any, Protocol

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A member whose first JoinGroup waits longer is dropped: it may have gone without anyone seeing it."""

_MINUTE_MS = 60 * 1000


class Settings(Protocol):
    """Whatever answers `settings["group.max.size"]` with a typed value."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Defaults are Kafka's (GroupCoordinatorConfig), but for the delay of a first rebalance."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 100
    group_size_max: int = 2**31 - 1
    offset_metadata_size_max: int = 4_096
    batch_size_max: int = 1_048_588
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS

    @staticmethod
    def of(settings: Settings) -> "GroupSettings":
        return GroupSettings(
            session_timeout_ms_min=settings["group.min.session.timeout.ms"],
            session_timeout_ms_max=settings["group.max.session.timeout.ms"],
            initial_rebalance_delay_ms=settings["group.initial.rebalance.delay.ms"],
            group_size_max=settings["group.max.size"],
            offset_metadata_size_max=settings["offset.metadata.max.bytes"],
            batch_size_max=settings["message.max.bytes"],
            offsets_retention_ms=settings["offsets.retention.minutes"] * _MINUTE_MS,
            offsets_retention_check_interval_ms=settings["offsets.retention.check.interval.ms"],
        )
