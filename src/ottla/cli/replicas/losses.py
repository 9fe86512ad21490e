"""Finds what an unclean election would lose: which replica would lead, how far its log reaches, and which replicas are
known to reach further.

Knows how the cluster chooses (the replica whose log ends last, by leader epoch and offset) and which requests show
where logs end. Does not elect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.cluster.facts import standing_of
from ottla.cli.output import counted

if TYPE_CHECKING:
    from ottla.client import Client, TopicPartition

DEBUGGING, LATEST = -2, -1
"""The replica id of clients that look into any replica, and the timestamp that asks for the end of a log."""


class End(NamedTuple):
    """Where the log of a replica ends. `committed`: the high watermark that its leader last reported to it, -1 if it
    does not know one."""

    epoch: int
    offset: int
    committed: int = -1


class ElectionState(NamedTuple):
    """A partition before the election. `counted_on`: the replicas that are in sync or eligible to lead, or were the
    last ones to be so. `ends`: where the logs of those replicas end that answer; `up`: the nodes that are up."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    counted_on: tuple[int, ...]
    ends: Mapping[int, End]
    up: frozenset[int] = frozenset()


class Loss(NamedTuple):
    """The loss of one partition. `leader` is -1 if no replica can lead; `records` is the greatest number of
    acknowledged records that are known to be lost; `sentence` tells a person."""

    topic: str
    partition: int
    leader: int
    end_offset: int
    records: int
    sentence: str


def losses(client: Client, places: Iterable[TopicPartition]) -> list[Loss]:
    """The losses of these partitions if any replica may lead them. Partitions that lose nothing are left out. Raises
    ClientError."""
    return [found for each in _standings(client, list(places)) if (found := loss_of(each)) is not None]


def loss_of(part: ElectionState) -> Loss | None:
    """The loss of this partition; None if no replica is ahead of its leader."""
    name, ends = f"partition {part.topic}-{part.partition}", part.ends
    live = [node for node in part.replicas if node in ends]
    if part.leader >= 0:
        leader = part.leader
        if leader not in ends:
            return None
    elif live:
        leader = max(live, key=lambda node: ends[node][:2])
    else:
        return Loss(part.topic, part.partition, -1, -1, 0, f"{name}: no replica is available, so that none can lead")
    end = ends[leader].offset
    ahead = {node: ends[node].offset for node in live if node != leader and ends[node].offset > end}
    down = [] if part.leader >= 0 else [node for node in part.replicas if node not in ends]
    committed = max(each.committed for each in ends.values())
    if part.leader >= 0 and not ahead:
        return None
    reasons = [f"the log of node {node} ends at {offset}" for node, offset in ahead.items()]
    lost = max([0, *(offset - end for offset in ahead.values())])
    for node in down:
        silent = f"node {node}, {'which cannot use its log' if node in part.up else 'which is down'},"
        if node not in part.counted_on:
            reasons.append(f"{silent} may have records that node {leader} lacks")
        elif committed > end:
            reasons.append(f"{silent} was in sync up to at least {committed}")
        else:
            reasons.append(f"{silent} was in sync and may have more records")
    if committed > end:
        lost = max(lost, committed - end)
        if not any(node in part.counted_on for node in down):
            reasons.append(f"records up to {committed} were committed")
    would = "leads" if part.leader >= 0 else "would lead"
    reach = f"{name}: node {leader} {would} with offsets up to {end}"
    outcome = f": up to {counted(lost, 'acknowledged record')} {'is' if lost == 1 else 'are'} lost" if lost else ""
    if not reasons:
        reasons.append("no replica is known to have more")
    return Loss(part.topic, part.partition, leader, end, lost, f"{reach}; {'; '.join(reasons)}{outcome}")


# ---- asking --------------------------------------------------------------------------------------------------------


def _standings(client: Client, places: list[TopicPartition]) -> list[ElectionState]:
    from ottla.client import ClientError
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    known = standing_of(client, sorted({topic for topic, _ in places}))
    ends: dict[TopicPartition, dict[int, End]] = {place: {} for place in places}
    brokers = client.send(DescribeClusterRequest()).brokers
    for broker in brokers:
        here = [place for place in places if place in known and broker.broker_id in known[place].replica_nodes]
        with suppress(ClientError):  # a node that does not answer cannot lead
            for place, end in _ends_on(client, broker.broker_id, here).items():
                ends[place][broker.broker_id] = end
    return [
        ElectionState(
            *place,
            known[place].leader_id,
            tuple(known[place].replica_nodes),
            _counted_on(known[place]),
            ends[place],
            frozenset(broker.broker_id for broker in brokers),
        )
        for place in places
        if place in known
    ]


def _counted_on(part: Any) -> tuple[int, ...]:
    eligible = [*part.isr_nodes, *(part.eligible_leader_replicas or ())]
    return tuple(eligible or part.last_known_elr or ())


def _ends_on(client: Client, node_id: int, places: list[TopicPartition]) -> dict[TopicPartition, End]:
    """Where the logs of these partitions end on this node. Raises ClientError."""
    from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
    from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    if not by_topic:
        return {}
    node = client.broker(node_id)
    asked = [
        ListOffsetsTopic(topic, [ListOffsetsPartition(index, timestamp=LATEST) for index in indexes])
        for topic, indexes in by_topic.items()
    ]
    answer = node.send(ListOffsetsRequest(replica_id=DEBUGGING, topics=asked))
    ends = {
        (topic.name, part.partition_index): End(part.leader_epoch, part.offset)
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code == 0
    }
    rows = [DescribableLogDirTopic(topic, indexes) for topic, indexes in by_topic.items()]
    for directory in node.send(DescribeLogDirsRequest(rows)).results:
        for topic in directory.topics:
            for part in topic.partitions:
                end = ends.get((topic.name, part.partition_index))
                if end is not None and part.offset_lag >= 0 and not part.is_future_key:
                    ends[topic.name, part.partition_index] = end._replace(committed=end.offset + part.offset_lag)
    return ends
