"""Defines the configuration that a transaction coordinator reads, as plain values; and what it sees of its node."""

from dataclasses import dataclass
from typing import Any, Protocol


class Settings(Protocol):
    """Whatever answers `settings["transaction.max.timeout.ms"]` with a typed value."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Defaults are Kafka's (TransactionStateManagerConfig)."""

    timeout_ms_max: int = 900_000
    id_expiration_ms: int = 604_800_000
    id_expiration_interval_ms: int = 3_600_000

    @staticmethod
    def of(settings: Settings) -> "TransactionSettings":
        return TransactionSettings(
            timeout_ms_max=settings["transaction.max.timeout.ms"],
            id_expiration_ms=settings["transactional.id.expiration.ms"],
            id_expiration_interval_ms=settings["transaction.remove.expired.transaction.cleanup.interval.ms"],
        )


NO_LEADER = -1


class NodeView(Protocol):
    """What a shard sees of its node while it decides, never while it applies."""

    @property
    def transaction_version(self) -> int:
        """The level of this feature: from 1 on every record is flexible, from 2 on the coordinator aborts what nobody
        ends in the second version of the protocol."""
        ...

    def leader_of(self, topic: str, index: int) -> int | None:
        """The node that leads this partition, NO_LEADER where none does now; None: there is no such partition."""
        ...

    def new_producer_id(self) -> int | None:
        """A producer id that nobody ever had; None where none can be had now."""
        ...
