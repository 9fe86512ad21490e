"""What operators ask about transactions (KIP-664): which there are, where they stand, which hang, and to end those.

A transaction hangs where a partition has one open that no coordinator knows of: it holds back every reader of
committed records there, and nobody will end it. Since KIP-890 none comes to be; logs from before, or a lost
`__transaction_state`, may have some.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import Client
from ottla.client.errors import check
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TRANSACTION: Final = 1
"""The kind of coordinator."""
UNDER_WAY: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id as its coordinator names it."""

    name: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition. `last_ms`: of its newest batch, milliseconds since 1970."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int


def list_transactions(
    client: Client, states: Sequence[str] = (), producer_ids: Sequence[int] = (), longer_than_ms: int = -1
) -> list[Listed]:
    """The transactional ids of every coordinator, by name. Raises ClientFailure."""
    client.metadata([])
    found: list[Listed] = []
    for node_id in client.broker_ids():
        request = ListTransactionsRequest(list(states), list(producer_ids), longer_than_ms)
        answer = client.broker(node_id).send(request)
        check(answer.error_code, f"the transactions of node {node_id}")
        found += [
            Listed(each.transactional_id, node_id, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ]
    return sorted(found, key=lambda each: each.name)


def describe_transaction(client: Client, name: str) -> Any:
    """The TransactionState of a transactional id. Raises ClientFailure."""
    answer = client.coordinator(name, TRANSACTION).send(DescribeTransactionsRequest([name]))
    (state,) = answer.transaction_states
    check(state.error_code, f"the transaction of {name}")
    return state


def open_transactions(client: Client, topics: Iterable[str]) -> list[OpenTransaction]:
    """Those that are open in any partition of these topics. Raises ClientFailure."""
    found: list[OpenTransaction] = []
    for name in topics:
        for partition in range(len(client.topic(name).leaders)):
            request = DescribeProducersRequest([TopicRequest(name, [partition])])
            (topic,) = client.leader(name, partition).send(request).topics
            (part,) = topic.partitions
            check(part.error_code, f"the producers of {name}-{partition}", part.error_message)
            found += [
                OpenTransaction(
                    name,
                    partition,
                    each.producer_id,
                    each.producer_epoch,
                    each.coordinator_epoch,
                    each.current_txn_start_offset,
                    each.last_timestamp,
                )
                for each in part.active_producers
                if each.current_txn_start_offset >= 0
            ]
    return found


def hanging(client: Client, opened: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """Those of which no coordinator knows that they are under way in that partition. Raises ClientFailure."""
    suspects = list(opened)
    if not suspects:
        return []
    known: set[tuple[int, str, int]] = set()
    for listed in list_transactions(client, UNDER_WAY, sorted({each.producer_id for each in suspects})):
        state = describe_transaction(client, listed.name)
        known |= {(listed.producer_id, topic.topic, index) for topic in state.topics for index in topic.partitions}
    return [each for each in suspects if (each.producer_id, each.topic, each.partition) not in known]


def abort_transaction(client: Client, opened: OpenTransaction) -> None:
    """Write the marker that its coordinator will not write. Raises ClientFailure."""
    marker = WritableTxnMarker(
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(opened.topic, [opened.partition])],
        coordinator_epoch=max(opened.coordinator_epoch, 0),
    )
    answer = client.leader(opened.topic, opened.partition).send(WriteTxnMarkersRequest([marker]))
    (result,) = answer.markers
    error = result.topics[0].partitions[0].error_code
    check(error, f"the transaction of producer {opened.producer_id} in {opened.topic}-{opened.partition}")
