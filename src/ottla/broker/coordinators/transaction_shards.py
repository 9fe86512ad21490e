"""Shows the transaction coordinator's shards their node: partitions' leaders, and fresh producer ids."""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.config.machines import transaction_settings
from ottla.broker.config.values import Settings
from ottla.machine import Call, Entropy, WallClock
from ottla.metadata.features import TRANSACTION_VERSION
from ottla.metadata.producer_ids import ProducerIds
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTransaction
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.txn.refusals import refuse
from ottla.txn.shard import TransactionShard


class TransactionNodeView:
    """The `NodeView` of a node."""

    def __init__(self, metadata: Metadata, producer_ids: ProducerIds) -> None:
        self._metadata = metadata
        self._producer_ids = producer_ids

    @property
    def transaction_version(self) -> int:
        return self._metadata.image.level_of(TRANSACTION_VERSION)

    def leader_of(self, topic: str, index: int) -> int | None:
        known = self._metadata.image.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return None
        return known.partitions[index].leader

    def new_producer_id(self) -> int | None:
        return self._producer_ids.take()


def writes(call: Call) -> bool:
    """Whether a client's call writes to the log of its coordinator, unless it is refused.

    Source: TransactionLog.java (EnforcedRequiredAcks): such a write is refused like one with acks=all.
    """
    match call.body:
        case AddPartitionsToTxnTransaction(verify_only=verify_only):
            return not verify_only
        case body:
            return isinstance(body, InitProducerIdRequest | EndTxnRequest)


class TransactionShards:
    """Makes transaction shards that see their node; a `coordinators.shards.ShardClass`."""

    def __init__(self, metadata: Metadata, producer_ids: ProducerIds, settings: Settings) -> None:
        self._settings = settings
        self._view = TransactionNodeView(metadata, producer_ids)

    def of(
        self, entropy: Entropy, notes: Callable[[str], None], wall: WallClock, leader_epoch: int
    ) -> TransactionShard:
        return TransactionShard(transaction_settings(self._settings), self._view, leader_epoch, notes, wall)

    def refuse(self, call: Call, error: ErrorCode) -> object:
        return refuse(call, error)

    def topics_deleted(self, names: tuple[str, ...]) -> Call | None:
        """Markers that a topic can't accept any more are given up when they are retried."""
        return None
