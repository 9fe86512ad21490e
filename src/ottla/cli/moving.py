"""Carries out moves of replicas: begins them, limits their bytes a second, shows how far they are, has the preferred
replicas lead in the end.

Knows the requests that Kafka's own tools make (AlterPartitionReassignments, throttle configs, ElectLeaders). Does not
know why anything is moved: balance.py does.

Who interrupts this leaves the cluster at work, with its limit; the next one that waits ends both.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.cli.balance import Move, Place, Replicas
from ottla.cli.cluster_facts import Placed, placed_of
from ottla.cli.output import Failure, say

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.connection import Connection

T = TypeVar("T")
PARTITIONS_ASKED = 500
"""How many partitions one request moves."""
LOOK_S = 0.2
BROKER, TOPIC = 4, 2
SET, DELETE = 0, 1
RATES: tuple[str, ...] = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: tuple[str, ...] = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")


class Moved(NamedTuple):
    """A partition that is being moved: all replicas it has now, those that come, and those that will go."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def where(client: Client, client_of: Callable[[str], Client]) -> tuple[dict[int, str | None], list[Replicas]]:
    """The racks of the nodes that serve, and the replicas of every partition. Raises ClientFailure."""
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    brokers = client.send(DescribeClusterRequest()).brokers
    sizes: dict[Place, int] = {}
    for broker in brokers:
        for place, size in sizes_on(broker, client_of).items():
            sizes[place] = max(size, sizes.get(place, 0))
    places = [
        Replicas((part.topic, part.partition), part.replicas, sizes.get((part.topic, part.partition), 0))
        for part in placed_of(client)
    ]
    return {broker.broker_id: broker.rack for broker in brokers}, places


def sizes_on(broker: Any, client_of: Callable[[str], Client]) -> dict[Place, int]:
    """The bytes of each partition on this node. Raises ClientFailure."""
    from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    with client_of(f"{broker.host}:{broker.port}") as client:
        results = client.send(DescribeLogDirsRequest(topics=None)).results
    topics = (topic for each in results for topic in each.topics)
    return {(topic.name, part.partition_index): part.partition_size for topic in topics for part in topic.partitions}


# ---- carrying out --------------------------------------------------------------------------------------------------


def carry_out(client: Client, moves: Sequence[Move], throttle: int | None) -> None:
    """Move, and wait for the end of it; the preferred replicas lead then. `throttle`: bytes a second that each node
    sends and takes for it. Raises ClientFailure, Failure."""
    if not moves:
        return
    if throttle is not None:
        limit(client, moves, throttle)
    begin(client, moves)
    finish(client, [move.place for move in moves])
    if throttle is not None:
        unlimit(client, {move.place[0] for move in moves})
    elect(client, [move.place for move in moves])


def begin(client: Client, moves: Sequence[Move]) -> None:
    """Have the controller begin these moves. Raises Failure with the first that it refuses."""
    ask(client, [(move.place, move.after) for move in moves])


def cancel(client: Client, moved: Mapping[Place, Moved]) -> None:
    """Have these replicas back where they were, and take the limits away. Raises Failure."""
    if moved:
        ask(client, [(place, None) for place in sorted(moved)])
        unlimit(client, {name for name, _ in moved})


def ask(client: Client, targets: Sequence[tuple[Place, Sequence[int] | None]]) -> None:
    """Have the replicas of these partitions moved there; None: where they were. Raises Failure."""
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )

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
            raise Failure(f"{name} could not be moved: {why.rstrip('.')}.")


def finish(client: Client, places: Iterable[Place]) -> None:
    """Wait until none of these is being moved any more, and show how far that is."""
    wanted = set(places)
    with shown(len(wanted)) as show:
        try:
            while left := wanted & set(under_way(client)):
                show(len(wanted) - len(left))
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            say(
                "The cluster goes on with the moves: `ottla cluster rebalance --execute` waits for their end.", err=True
            )
            raise
        show(len(wanted))


def finish_earlier(client: Client) -> None:
    """Wait for the moves that others have begun, and take their limits away. Raises ClientFailure, Failure."""
    moved = under_way(client)
    if moved:
        say(f"{len(moved)} partitions are being moved already: that is waited for first.", err=True)
        finish(client, moved)
        unlimit(client, {name for name, _ in moved})


def under_way(client: Client) -> dict[Place, Moved]:
    """The partitions that are being moved, and their replicas. Raises ClientFailure, Failure."""
    from ottla.client.errors import check
    from ottla.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

    answer = client.send(ListPartitionReassignmentsRequest(topics=None, timeout_ms=30_000))
    check(answer.error_code, "moves under way", answer.error_message)
    return {
        (topic.name, part.partition_index): Moved(
            tuple(part.replicas), tuple(part.adding_replicas), tuple(part.removing_replicas)
        )
        for topic in answer.topics
        for part in topic.partitions
    }


def elect(client: Client, places: Iterable[Place]) -> None:
    """Have these partitions led by their preferred replica, where that is in sync."""
    from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

    for some in cut(list(places), PARTITIONS_ASKED):
        asked: dict[str, list[int]] = {}
        for name, index in some:
            asked.setdefault(name, []).append(index)
        topics = [TopicPartitions(name, partitions) for name, partitions in asked.items()]
        client.send(ElectLeadersRequest(topic_partitions=topics, timeout_ms=30_000))


# ---- limits --------------------------------------------------------------------------------------------------------


def limit(client: Client, moves: Sequence[Move], rate: int) -> None:
    """Let the nodes that these moves concern copy so many bytes a second for them. Raises Failure."""
    concerned = {node for move in moves for node in (*move.before, *move.after)}
    for node in serving(client) & concerned:
        alter(client.broker(node), {(BROKER, str(node)): dict.fromkeys(RATES, str(rate))})
    topics: dict[str, tuple[list[str], list[str]]] = {}
    for move in moves:
        name, index = move.place
        sending, taking = topics.setdefault(name, ([], []))
        sending += [f"{index}:{node}" for node in move.before]
        taking += [f"{index}:{node}" for node in move.after if node not in move.before]
    of_topics = {
        (TOPIC, name): {key: ",".join(pairs) for key, pairs in zip(REPLICAS, sides, strict=True)}
        for name, sides in topics.items()
    }
    alter(client, of_topics)


def unlimit(client: Client, topics: Iterable[str]) -> None:
    """Take the limits away again. Raises Failure."""
    for node in serving(client):
        alter(client.broker(node), {(BROKER, str(node)): dict.fromkeys(RATES)})
    alter(client, {(TOPIC, name): dict.fromkeys(REPLICAS) for name in sorted(topics)})


def serving(client: Client) -> set[int]:
    """The nodes that serve. Raises ClientFailure."""
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    return {broker.broker_id for broker in client.send(DescribeClusterRequest()).brokers}


def alter(to: Client | Connection, configs: Mapping[tuple[int, str], Mapping[str, str | None]]) -> None:
    """Set these configs, or take them away where the value is None; a node is told its own. Raises Failure."""
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    resources = [
        AlterConfigsResource(
            kind,
            name,
            [AlterableConfig(key, DELETE if value is None else SET, value) for key, value in of_one.items()],
        )
        for (kind, name), of_one in configs.items()
    ]
    for each in to.send(IncrementalAlterConfigsRequest(resources=resources)).responses:
        if each.error_code:
            why = each.error_message or ErrorCode(each.error_code).message
            raise Failure(f"The limit could not be set at {each.resource_name}: {why.rstrip('.')}.")


# ---- what a person sees --------------------------------------------------------------------------------------------


@contextmanager
def shown(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere; what is given takes how many are done."""
    if not sys.stdout.isatty():
        yield lambda done: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("moving"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)


def cut(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def led_by(client: Client, node: int) -> list[Placed]:
    """The partitions that this node leads. Raises ClientFailure."""
    return [part for part in placed_of(client) if part.leader == node]
