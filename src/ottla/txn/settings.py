"""Defines the configuration of a transaction coordinator, as plain values with units, and its view of the node."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The coordinator's settings. Defaults are Kafka's (TransactionStateManagerConfig)."""

    timeout_ms_max: int = 900_000
    id_expiration_ms: int = 604_800_000
    id_expiration_interval_ms: int = 3_600_000


NO_LEADER = -1


class NodeView(Protocol):
    """A shard's view of its node while it decides; `apply` never uses it."""

    @property
    def transaction_version(self) -> int:
        """The level of the feature. From 1 on every record is flexible. From 2 on the coordinator aborts transactions
        by the second version of the protocol."""
        ...

    def leader_of(self, topic: str, index: int) -> int | None:
        """The node that leads this partition; NO_LEADER without a leader; None if there is no such partition."""
        ...

    def new_producer_id(self) -> int | None:
        """A producer id that was never used; None if none is available now."""
        ...
