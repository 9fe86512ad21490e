"""Starts, lists and cancels moves of replicas, and elects preferred leaders.

It uses the requests of Kafka's own tools (AlterPartitionReassignments, ElectLeaders). balance.py makes the plans, and
throttles.py sets the throttles. The cluster carries the moves out, with their throttle, whether or not their client
still runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ottla.client.client import Client
from ottla.client.connection import Connection
from ottla.client.errors import ClientError, check
from ottla.client.placement import throttles
from ottla.client.placement.balance import Move, Replicas, TopicPartition
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

T = TypeVar("T")
PARTITIONS_ASKED = 500
"""How many partitions one request moves."""
LOOK_S = 0.2
KNOWN_S = 5.0


class Moved(NamedTuple):
    """A partition that is being moved: all its present replicas, the new ones, and those to be removed."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.adding)

    @property
    def after(self) -> tuple[int, ...]:
        return tuple(node for node in self.replicas if node not in self.removing)


class Layout(NamedTuple):
    """The racks of the active nodes; the replicas of every partition, future ones if it is being moved; the moves in
    progress; the leader of each partition, -1 if it has none, and its replicas in sync."""

    racks: dict[int, str | None]
    places: list[Replicas]
    moved: dict[TopicPartition, Moved]
    leaders: dict[TopicPartition, int]
    in_sync: dict[TopicPartition, tuple[int, ...]]

    def may_lead(self, node: int) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas in sync of the partitions that this node leads."""
        return {place: self.in_sync[place] for place, leader in self.leaders.items() if leader == node}


def layout_of(client: Client) -> Layout:
    """The present layout. Waits until the cluster notices a node that was just killed. Raises ClientError."""
    until = time.monotonic() + KNOWN_S
    while True:
        brokers = client.send(DescribeClusterRequest()).brokers
        try:
            sizes = sizes_of(client, brokers)
            break
        except ClientError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_S)
    moved = under_way(client)
    parts = partitions_of(client)
    places = [
        Replicas(place, moved[place].after if place in moved else tuple(part.replica_nodes), sizes.get(place, 0))
        for place, part in parts.items()
    ]
    return Layout(
        {broker.broker_id: broker.rack for broker in brokers},
        places,
        moved,
        {place: part.leader_id for place, part in parts.items()},
        {place: tuple(part.isr_nodes) for place, part in parts.items()},
    )


def partitions_of(client: Client) -> dict[TopicPartition, Any]:
    """Every partition as the metadata describes it, by topic and index. Raises ClientError."""
    topics = client.metadata(None).topics
    return dict(sorted(((topic.name, part.partition_index), part) for topic in topics for part in topic.partitions))


def led_by(client: Client, node: int) -> dict[TopicPartition, tuple[int, ...]]:
    """The partitions that this node leads now, with their replicas in sync. Raises ClientError."""
    parts = partitions_of(client)
    return {place: tuple(part.isr_nodes) for place, part in parts.items() if part.leader_id == node}


def sizes_of(client: Client, brokers: Iterable[Any]) -> dict[TopicPartition, int]:
    """The bytes of each partition, on the node that has the most of it. Raises ClientError."""
    sizes: dict[TopicPartition, int] = {}
    for broker in brokers:
        for directory in client.broker(broker.broker_id).send(DescribeLogDirsRequest(topics=None)).results:
            for topic in directory.topics:
                for part in topic.partitions:
                    place = topic.name, part.partition_index
                    sizes[place] = max(part.partition_size, sizes.get(place, 0))
    return sizes


def under_way(client: Client) -> dict[TopicPartition, Moved]:
    """The partitions that are being moved, and their replicas. Raises ClientError."""
    answer = client.send(ListPartitionReassignmentsRequest(topics=None, timeout_ms=30_000))
    check(answer.error_code, "moves under way", answer.error_message)
    return {
        (topic.name, part.partition_index): Moved(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in answer.topics
        for part in topic.partitions
    }


# ---- changes -------------------------------------------------------------------------------------------------------


def start(client: Client, moves: Sequence[Move], throttle: int | None, waited: Sequence[Move] | None = None) -> None:
    """Start these moves. `throttle`: bytes a second that each node sends and receives for them, and for the moves
    `waited` (default: the same). Raises ClientError with the first move that the cluster rejects."""
    throttled = moves if waited is None else waited
    try:
        if throttle is not None:
            throttles.limit(client, throttled, throttle)
        ask(client, [(move.place, move.after) for move in moves])
    except throttles.RefusedError:
        if throttle is not None:
            lift(client, {move.place[0] for move in throttled})
        raise


def cancel(client: Client, places: Iterable[TopicPartition]) -> None:
    """Cancel the moves of these partitions, and remove their throttles. Raises ClientError."""
    cancelled = sorted(places)
    if cancelled:
        ask(client, [(place, None) for place in cancelled])
    lift(client, {name for name, _ in cancelled})


def lift(client: Client, topics: Iterable[str] = ()) -> list[str]:
    """Remove leftover throttles: all of them if no move is in progress, otherwise those of these topics that have none.

    Returns the nodes and topics that had some. Raises ClientError.
    """
    moved = under_way(client)
    if not moved:
        return throttles.lift(client, throttles.left(client))
    busy = {name for name, _ in moved}
    return throttles.lift(client, {(ConfigResourceType.TOPIC, name) for name in topics if name not in busy})


def ask(client: Client, targets: Sequence[tuple[TopicPartition, Sequence[int] | None]]) -> None:
    """Request new replicas for these partitions; None cancels a move. Raises ClientError."""
    for some in cut(targets, PARTITIONS_ASKED):
        asked: dict[str, list[ReassignablePartition]] = {}
        for (name, index), target in some:
            wanted = None if target is None else list(target)
            asked.setdefault(name, []).append(ReassignablePartition(index, wanted))
        topics = [ReassignableTopic(name, partitions) for name, partitions in asked.items()]
        answer = client.send(AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=30_000))
        told = [(topic.name, part) for topic in answer.responses for part in topic.partitions]
        ended = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        failed = [(f"{name}-{part.partition_index}", part) for name, part in told if part.error_code not in (0, ended)]
        if answer.error_code or failed:
            name, at_fault = failed[0] if failed else ("nothing", answer)
            why = at_fault.error_message or ErrorCode(at_fault.error_code).message
            raise throttles.RefusedError(at_fault.error_code, f"{name} could not be moved: {why.rstrip('.')}.")


def elect(client: Client, places: Iterable[TopicPartition]) -> None:
    """Elect the preferred replicas of these partitions, if they are in sync."""
    for some in cut(list(places), PARTITIONS_ASKED):
        asked: dict[str, list[int]] = {}
        for name, index in some:
            asked.setdefault(name, []).append(index)
        topics = [TopicPartitions(name, partitions) for name, partitions in asked.items()]
        client.send(ElectLeadersRequest(topic_partitions=topics, timeout_ms=30_000))


def hand_over(client: Client, node: int, wait_s: float) -> dict[TopicPartition, tuple[int, ...]]:
    """Elect the preferred replicas of the partitions that this node leads, until it leads none that another replica in
    sync could lead, or the time is over. Returns the partitions that it still leads, with their replicas in sync."""
    until = time.monotonic() + wait_s
    while led := led_by(client, node):
        may_go = [place for place, in_sync in led.items() if set(in_sync) - {node}]
        if not may_go or time.monotonic() > until:
            return led
        elect(client, may_go)
        time.sleep(LOOK_S)
    return {}


def cut(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


# ---- waiting -------------------------------------------------------------------------------------------------------


def wait_until_known(client: Client, moves: Sequence[Move]) -> None:
    """Wait until every node has received the metadata after these moves; other commands may move the partitions
    again."""
    wanted = {move.place: move.after for move in moves}
    names = sorted({name for name, _ in wanted})
    asked = MetadataRequest([MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)

    def has_heard(node: Connection) -> bool:
        topics = node.send(asked).topics
        told = {(each.name, part.partition_index): part for each in topics for part in each.partitions}
        return all(place in told and tuple(told[place].replica_nodes) == after for place, after in wanted.items())

    wait_for_all(client, has_heard)


def wait_for_all(client: Client, has_heard: Callable[[Connection], bool]) -> None:
    """Wait until every node has received a change, so that the next request to any node shows it. The wait for a node
    is bounded, because a node may stop."""
    until = time.monotonic() + KNOWN_S
    for node in throttles.serving(client):
        with suppress(ClientError):
            while not has_heard(client.broker(node)) and time.monotonic() < until:
                time.sleep(LOOK_S)
