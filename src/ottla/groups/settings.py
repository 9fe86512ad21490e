"""Holds the configuration that a group coordinator reads, as plain values with units."""

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A member whose first JoinGroup waits longer is dropped, because its client may have disconnected unnoticed."""

_MINUTE_MS = 60 * 1000


@dataclass(slots=True)
class GroupSettings:
    """Defaults are Kafka's (GroupCoordinatorConfig), except for the delay of a first rebalance. `group_size_max` counts
    members; other sizes are in bytes. Only `batch_size_max` changes while a shard runs: it is what the log accepts."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 100
    group_size_max: int = 2**31 - 1
    offset_metadata_size_max: int = 4_096
    batch_size_max: int = 1_048_588
    offsets_retention_ms: int = 7 * 24 * 60 * _MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * _MINUTE_MS
