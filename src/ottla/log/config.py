"""Holds the topic configs of one partition's log, with Kafka's meaning and Kafka 4.3's defaults.

Values are parsed and validated (by `broker/config/values.py`), in snake_case of the Kafka name (`segment.bytes` is
`segment_bytes`). `min.insync.replicas` is a config of the partition, not of the log, and is not here.

Source: Kafka's LogConfig.java, TopicConfig.java, ServerLogConfigs.java.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

LONG_MAX: Final = 2**63 - 1
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS

CompressionType = Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]
TimestampType = Literal["CreateTime", "LogAppendTime"]


class LogConfig(NamedTuple):
    """One partition's settings. Sizes in bytes, times in milliseconds, -1 is "no limit" for the two retentions."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = (1 << 20) + 12
    message_timestamp_type: TimestampType = "CreateTime"
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_after_max_ms: int = HOUR_MS
    compression_type: CompressionType = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX

    @property
    def compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """Milliseconds for which a segment is appended to; Kafka's LogConfig.maxSegmentMs and the jitter."""
        longest = min(self.segment_ms, self.max_compaction_lag_ms) if self.compacted else self.segment_ms
        return longest - self.segment_jitter_ms

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy
