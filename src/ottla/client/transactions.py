"""Answers operators' questions about transactions (KIP-664): lists, describes, finds hanging ones and aborts them.

A transaction hangs if a partition has it open but no coordinator knows it. It blocks every reader of committed records
in that partition, and no coordinator will end it. Since KIP-890 new ones cannot occur. Older logs, or a lost
`__transaction_state`, may contain some.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import LATEST, Client, TopicPartition
from ottla.client.errors import check
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

TRANSACTION: Final = 1
"""The coordinator's key type."""
READ_COMMITTED: Final = 1
"""The isolation level."""
FENCE_WAIT_S: Final = 30.0
FENCE_PAUSE_S: Final = 0.05
UNDER_WAY: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id in the list of its coordinator."""

    name: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition. `last_ms`: the timestamp of its newest batch, milliseconds since
    1970."""

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
    """The transactional ids of every coordinator, by name. Raises ClientError."""
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
    """The TransactionState of a transactional id. Raises ClientError."""
    answer = client.coordinator(name, TRANSACTION).send(DescribeTransactionsRequest([name]))
    (state,) = answer.transaction_states
    check(state.error_code, f"the transaction of {name}")
    return state


def open_transactions(client: Client, topics: Iterable[str]) -> list[OpenTransaction]:
    """The open transactions in all partitions of these topics. Raises ClientError."""
    return [
        opened
        for name in topics
        for partition in range(len(client.topic(name).leaders))
        for opened in open_in(client, name, partition)
    ]


def open_in(client: Client, name: str, partition: int) -> list[OpenTransaction]:
    """The open transactions in one partition. Raises ClientError."""
    request = DescribeProducersRequest([TopicRequest(name, [partition])])

    def ask() -> Any:
        (topic,) = client.leader(name, partition).send(request).topics
        (part,) = topic.partitions
        check(part.error_code, f"the producers of {name}-{partition}", part.error_message)
        return part

    return [
        OpenTransaction(
            name,
            partition,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.current_txn_start_offset,
            each.last_timestamp,
        )
        for each in client.repeat(ask).active_producers
        if each.current_txn_start_offset >= 0
    ]


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A partition whose readers of committed records wait at `last_stable_offset`, and the transaction that they wait
    for.

    `producer_id` is None if the transaction has just ended. `name` and `start_ms` (milliseconds since 1970) are None if
    no coordinator knows the transaction: then it hangs.
    """

    topic: str
    partition: int
    last_stable_offset: int
    log_end_offset: int
    producer_id: int | None = None
    name: str | None = None
    start_ms: int | None = None


def held_back(client: Client, places: Iterable[TopicPartition]) -> list[HeldBack]:
    """Those of the partitions that a transaction blocks, in their order. Raises ClientError."""
    wanted = dict.fromkeys(places, LATEST)
    stable = client.list_offsets_of(wanted, isolation_level=READ_COMMITTED)
    ends = client.list_offsets_of(wanted)
    blocked = {place: (at, ends[place]) for place, at in stable.items() if at < ends[place]}

    def ask() -> list[HeldBack]:
        leaders = {place: client.known_topic(place[0]).leaders[place[1]] for place in blocked}
        return blockers(client, blocked, leaders)

    return client.repeat(ask)


def blockers(
    client: Client, blocked: Mapping[TopicPartition, tuple[int, int]], leaders: Mapping[TopicPartition, int]
) -> list[HeldBack]:
    """Which transactions block partitions, whose last stable offsets and ends are given. One request to each leader,
    two to each coordinator. Raises ClientError."""
    by_node: dict[int, dict[str, list[int]]] = {}
    for topic, partition in blocked:
        by_node.setdefault(leaders[topic, partition], {}).setdefault(topic, []).append(partition)
    producers: dict[TopicPartition, int] = {}
    for node_id, topics in by_node.items():
        request = DescribeProducersRequest([TopicRequest(name, rows) for name, rows in topics.items()])
        for topic in client.broker(node_id).send(request).topics:
            for part in topic.partitions:
                check(part.error_code, f"the producers of {topic.name}-{part.partition_index}", part.error_message)
                opened = [each for each in part.active_producers if each.current_txn_start_offset >= 0]
                first = min(opened, key=lambda each: each.current_txn_start_offset, default=None)
                if first is not None:
                    producers[topic.name, part.partition_index] = first.producer_id
    states = _states_of(client, sorted(set(producers.values())))
    found: list[HeldBack] = []
    for (topic, partition), (stable, end) in blocked.items():
        producer_id = producers.get((topic, partition))
        state = None if producer_id is None else states.get(producer_id)
        name, start_ms = (None, None) if state is None else (state.transactional_id, state.transaction_start_time_ms)
        found.append(HeldBack(topic, partition, stable, end, producer_id, name, start_ms))
    return found


def _states_of(client: Client, producer_ids: Sequence[int]) -> dict[int, Any]:
    """The TransactionState of each of these producers with an open transaction: two requests to each coordinator."""
    if not producer_ids:
        return {}
    by_node: dict[int, list[str]] = {}
    for each in list_transactions(client, UNDER_WAY, producer_ids):
        by_node.setdefault(each.coordinator, []).append(each.name)
    return {
        state.producer_id: state
        for node_id, names in by_node.items()
        for state in client.broker(node_id).send(DescribeTransactionsRequest(names)).transaction_states
        if not state.error_code
    }


def coordinated(client: Client, opened: Iterable[OpenTransaction]) -> dict[OpenTransaction, Any]:
    """The TransactionState of each transaction that a coordinator knows as ongoing in its partition. Raises
    ClientError."""
    suspects = list(opened)
    if not suspects:
        return {}
    known: dict[tuple[int, str, int], Any] = {}
    for listed in list_transactions(client, UNDER_WAY, sorted({each.producer_id for each in suspects})):
        state = describe_transaction(client, listed.name)
        known |= {
            (listed.producer_id, topic.topic, index): state for topic in state.topics for index in topic.partitions
        }
    by_place = {each: (each.producer_id, each.topic, each.partition) for each in suspects}
    return {each: known[place] for each, place in by_place.items() if place in known}


def hanging(client: Client, opened: Iterable[OpenTransaction]) -> list[OpenTransaction]:
    """The transactions that no coordinator knows as ongoing in their partition. Raises ClientError."""
    suspects = list(opened)
    known = coordinated(client, suspects)
    return [each for each in suspects if each not in known]


def fence_producer(client: Client, name: str, timeout_ms: int) -> None:
    """Abort the open transaction of a transactional id and wait for its markers. The id gets a higher producer epoch,
    so its present producer can neither write nor commit any more. Raises ClientError."""
    request = InitProducerIdRequest(name, timeout_ms)
    until = time.monotonic() + FENCE_WAIT_S
    while True:
        answer = client.send_to_coordinator(name, request, key_type=TRANSACTION)
        if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS or time.monotonic() > until:
            check(answer.error_code, f"the transaction of {name}")
            return
        time.sleep(FENCE_PAUSE_S)


def abort_transaction(client: Client, opened: OpenTransaction) -> None:
    """Write the abort marker of a hanging transaction, which no coordinator will write. Raises ClientError."""
    marker = WritableTxnMarker(
        producer_id=opened.producer_id,
        producer_epoch=opened.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(opened.topic, [opened.partition])],
        coordinator_epoch=max(opened.coordinator_epoch, 0),
    )

    def ask() -> None:
        answer = client.leader(opened.topic, opened.partition).send(WriteTxnMarkersRequest([marker]))
        (result,) = answer.markers
        error = result.topics[0].partitions[0].error_code
        check(error, f"the transaction of producer {opened.producer_id} in {opened.topic}-{opened.partition}")

    client.repeat(ask)
