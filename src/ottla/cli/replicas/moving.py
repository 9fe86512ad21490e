"""Carries out moves of replicas: starts them, throttles them, shows their progress, and finally elects the preferred
leaders.

It uses the requests of Kafka's own tools (AlterPartitionReassignments, ElectLeaders). balance.py makes the plans, and
throttles.py sets the throttles.

If the command is interrupted, the cluster continues the moves, with their throttle; `ottla topics reassign --verify`
removes it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.cli.cluster.facts import Placed, placed_of
from ottla.cli.output import CommandError, counted, say
from ottla.cli.replicas import throttles
from ottla.cli.replicas.balance import Move, Replicas, TopicPartition

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.connection import Connection

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


def where(client: Client, client_of: Callable[[str], Client]) -> tuple[dict[int, str | None], list[Replicas]]:
    """The racks of the active nodes, and the replicas of every partition; for a partition that is being moved, its
    future replicas. Waits until the cluster notices a node that was just killed. Raises ClientError."""
    from ottla.client import ClientError
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    until = time.monotonic() + KNOWN_S
    while True:
        brokers = client.send(DescribeClusterRequest()).brokers
        try:
            sizes = sizes_of(brokers, client_of)
            break
        except ClientError:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_S)
    moved = under_way(client)
    found = {(part.topic, part.partition): part.replicas for part in placed_of(client)}
    places = [
        Replicas(place, moved[place].after if place in moved else replicas, sizes.get(place, 0))
        for place, replicas in found.items()
    ]
    return {broker.broker_id: broker.rack for broker in brokers}, places


def sizes_of(brokers: Iterable[Any], client_of: Callable[[str], Client]) -> dict[TopicPartition, int]:
    """The bytes of each partition, on the node that has the most of it. Raises ClientError."""
    sizes: dict[TopicPartition, int] = {}
    for broker in brokers:
        for place, size in sizes_on(broker, client_of).items():
            sizes[place] = max(size, sizes.get(place, 0))
    return sizes


def sizes_on(broker: Any, client_of: Callable[[str], Client]) -> dict[TopicPartition, int]:
    """The bytes of each partition on this node. Raises ClientError."""
    from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    with client_of(f"{broker.host}:{broker.port}") as client:
        results = client.send(DescribeLogDirsRequest(topics=None)).results
    topics = (topic for each in results for topic in each.topics)
    return {(topic.name, part.partition_index): part.partition_size for topic in topics for part in topic.partitions}


# ---- carrying out moves --------------------------------------------------------------------------------------------


def carry_out(
    client: Client, moves: Sequence[Move], throttle: int | None, asked: Collection[TopicPartition] = ()
) -> int:
    """Move replicas and wait until the moves end, including moves in progress of the partitions `asked`; then elect the
    preferred leaders.

    `throttle`: bytes a second that each node sends and receives for the moves. Returns the number of partitions that
    were waited for. Raises ClientError, CommandError.
    """
    moved = under_way(client)
    begun = sorted(moved.keys() & set(asked) - {move.place for move in moves})
    if begun:
        say(f"Waiting for moves that are already in progress there: {counted(len(begun), 'partition')}.", err=True)
    waited = [move._replace(before=moved[move.place].before) if move.place in moved else move for move in moves]
    waited += [Move(place, moved[place].before, moved[place].after) for place in begun]
    if not waited:
        return 0
    topics = {move.place[0] for move in waited}
    try:
        if throttle is not None:
            throttles.limit(client, waited, throttle)
        begin(client, moves)
    except CommandError:
        if throttle is not None:
            lift(client, topics)
        raise
    finish(client, [move.place for move in waited])
    if throttle is not None:
        lift(client, topics)
    wait_until_known(client, waited)
    elect(client, [move.place for move in waited])
    return len(waited)


def begin(client: Client, moves: Sequence[Move]) -> None:
    """Ask the controller to start these moves. Raises CommandError with the first that it rejects."""
    ask(client, [(move.place, move.after) for move in moves])


def cancel(client: Client, moved: Mapping[TopicPartition, Moved]) -> None:
    """Cancel the moves of these partitions, and remove their throttles. Raises CommandError."""
    if moved:
        ask(client, [(place, None) for place in sorted(moved)])
    lift(client, {name for name, _ in moved})


def lift(client: Client, topics: Iterable[str] = ()) -> list[str]:
    """Remove leftover throttles: all of them if no move is in progress, otherwise those of these topics that have none.

    Returns the nodes and topics that had some. Raises ClientError, CommandError.
    """
    moved = under_way(client)
    if not moved:
        return throttles.lift(client, throttles.left(client))
    busy = {name for name, _ in moved}
    return throttles.lift(client, {(throttles.TOPIC, name) for name in topics if name not in busy})


def ask(client: Client, targets: Sequence[tuple[TopicPartition, Sequence[int] | None]]) -> None:
    """Request new replicas for these partitions; None cancels a move. Raises CommandError."""
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
            raise CommandError(f"{name} could not be moved: {why.rstrip('.')}.")


def finish(client: Client, places: Iterable[TopicPartition]) -> None:
    """Wait until the moves of all these partitions end, and show their progress."""
    wanted = set(places)
    with shown(len(wanted)) as show:
        try:
            while left := wanted & set(under_way(client)):
                show(len(wanted) - len(left))
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            say(
                "The cluster continues the moves. `ottla topics reassign --verify` shows their progress, and "
                "removes their throttle when they are complete.",
                err=True,
            )
            raise
        show(len(wanted))


def wait_until_known(client: Client, moves: Sequence[Move]) -> None:
    """Wait until every node has received the metadata after these moves; other commands may move the partitions
    again."""
    from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

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
    from ottla.client import ClientError

    until = time.monotonic() + KNOWN_S
    for node in throttles.serving(client):
        with suppress(ClientError):
            while not has_heard(client.broker(node)) and time.monotonic() < until:
                time.sleep(LOOK_S)


def finish_earlier(client: Client) -> None:
    """Wait for moves that were started earlier, and remove their throttles. Raises ClientError, CommandError."""
    moved = under_way(client)
    if moved:
        say(f"Waiting first for moves that are already in progress: {counted(len(moved), 'partition')}.", err=True)
        finish(client, moved)
        lift(client, {name for name, _ in moved})


def under_way(client: Client) -> dict[TopicPartition, Moved]:
    """The partitions that are being moved, and their replicas. Raises ClientError, CommandError."""
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


def elect(client: Client, places: Iterable[TopicPartition]) -> None:
    """Elect the preferred replicas of these partitions, if they are in sync."""
    from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

    for some in cut(list(places), PARTITIONS_ASKED):
        asked: dict[str, list[int]] = {}
        for name, index in some:
            asked.setdefault(name, []).append(index)
        topics = [TopicPartitions(name, partitions) for name, partitions in asked.items()]
        client.send(ElectLeadersRequest(topic_partitions=topics, timeout_ms=30_000))


# ---- output --------------------------------------------------------------------------------------------------------


@contextmanager
def shown(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere; the yielded function takes the number that is done."""
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
    """The partitions that this node leads. Raises ClientError."""
    return [part for part in placed_of(client) if part.leader == node]
