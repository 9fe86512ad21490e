"""Defines what a transaction coordinator reads: its configuration, as plain values with units, and its node."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Defaults are Kafka's (TransactionStateManagerConfig)."""

    timeout_ms_max: int = 900_000
    id_expiration_ms: int = 604_800_000
    id_expiration_interval_ms: int = 3_600_000


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
