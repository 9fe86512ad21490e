"""Holds the configuration that share partitions and the share coordinator read, as plain values with units."""

from typing import NamedTuple


class ShareSettings(NamedTuple):
    """The group configs that apply to every partition. Defaults are Kafka's; back-off and dead letters are off."""

    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    record_locks_max: int = 2_000
    renew_enabled: bool = True
    backoff_ms: int = 0
    backoff_ms_max: int = 60_000
    backoff_multiplier: float = 2.0
    dead_letters: bool = False

    def delay_ms(self, delivery_count: int) -> int:
        """How long a record is delayed that is returned after this many deliveries."""
        if not self.backoff_ms:
            return 0
        grown = self.backoff_ms * self.backoff_multiplier ** min(delivery_count - 1, 64)
        return int(min(grown, self.backoff_ms_max))

    @property
    def isolating_from(self) -> int:
        """After this many deliveries, each further delivery takes half of a run (KAFKA-17541)."""
        return max(2, -(-self.delivery_count_limit // 2))


class ShareStateSettings(NamedTuple):
    """How often the share coordinator writes whole snapshots. Defaults are Kafka's (ShareCoordinatorConfig)."""

    snapshot_updates: int = 500
    """The number of updates of a key after which a snapshot follows."""
    look_interval_ms: int = 300_000
    """How often the coordinator looks for keys without writes, whose snapshots have become old."""
