"""Shows nodes and replicas that are behind, and how far; makes preferred replicas lead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.client import LATEST, TopicPartition
from ottla.client.errors import UnsupportedVersionError, check
from ottla.client.offsets import DEBUGGING_REPLICA
from ottla.console.config_authors import load_changes
from ottla.console.page import Change, Context, Done, InputError, Page, Paged, Part, Preview, View, paged
from ottla.console.pages import cluster_isr, cluster_moves
from ottla.console.reading import leaders_of, metadata_of_all, offsets
from ottla.doctor.words import count
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

TIMEOUT_MS: Final = 10_000
PREFERRED: Final = 0
"""The election of the first replica, if it is in sync."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node. `is_down`: it is registered and does not answer. `alone` counts the partitions that have no other replica
    in sync: they would be offline without it."""

    id: int
    address: str
    rack: str | None
    is_controller: bool
    is_down: bool
    leads: int
    preferred: int
    hosts: int
    in_sync: int
    alone: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster(View):
    """The nodes. `elsewhere` counts partitions that are led by another replica than the preferred one."""

    cluster_id: str
    nodes: tuple[NodeRow, ...]
    elsewhere: int
    behind: int


def load(context: Context) -> Cluster:
    """The nodes of the cluster."""
    try:
        known = context.client.send(DescribeClusterRequest(include_fenced_brokers=True))
    except UnsupportedVersionError:
        known = None
    topics = metadata_of_all(context).topics
    return cluster_of(known, metadata_of_all(context), topics, context.command("cluster", "describe"))


def cluster_of(known: Any, metadata: Any, topics: Iterable[Any], command: str) -> Cluster:
    """The view of the answers; `known` is None if the cluster does not serve DescribeCluster."""
    parts = [part for topic in topics if not topic.error_code for part in topic.partitions]
    if known is None:
        brokers = [(each.node_id, each, False) for each in metadata.brokers]
        cluster_id, controller = metadata.cluster_id or "", metadata.controller_id
    else:
        brokers = [(each.broker_id, each, each.is_fenced) for each in known.brokers]
        cluster_id, controller = known.cluster_id, known.controller_id
    nodes = [
        NodeRow(
            node_id,
            f"{broker.host}:{broker.port}",
            broker.rack,
            node_id == controller,
            is_down,
            sum(part.leader_id == node_id for part in parts),
            sum(part.replica_nodes[:1] == [node_id] for part in parts),
            sum(node_id in part.replica_nodes for part in parts),
            sum(node_id in part.isr_nodes for part in parts),
            sum(part.isr_nodes == [node_id] for part in parts),
        )
        for node_id, broker, is_down in sorted(brokers, key=lambda each: each[0])
    ]
    return Cluster(
        title="Cluster",
        command=command,
        cluster_id=cluster_id,
        nodes=tuple(nodes),
        elsewhere=len(led_elsewhere(topics)),
        behind=sum(len(part.isr_nodes) < len(part.replica_nodes) for part in parts),
    )


def led_elsewhere(topics: Iterable[Any]) -> list[TopicPartition]:
    """The partitions whose preferred replica is in sync and does not lead."""
    return sorted(
        (topic.name, part.partition_index)
        for topic in topics
        if not topic.error_code
        for part in topic.partitions
        if part.replica_nodes and part.replica_nodes[0] in part.isr_nodes and part.leader_id != part.replica_nodes[0]
    )


# ---- replicas behind -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BehindRow:
    """A replica that is not in sync. `records` is its distance to the leader's end; None if one of both is unknown."""

    topic: str
    partition: int
    leader: int | None
    in_sync: tuple[int, ...]
    node: int
    records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind(View):
    """The replicas that are not in sync, a page of them."""

    paged: Paged
    replicas: tuple[BehindRow, ...]


def load_behind(context: Context) -> Behind:
    """The replicas that are not in sync, and their distance to the leader."""
    topics = [topic for topic in metadata_of_all(context).topics if not topic.error_code]
    lagging = sorted(
        ((topic.name, part.partition_index), node_id)
        for topic in topics
        for part in topic.partitions
        for node_id in part.replica_nodes
        if node_id not in part.isr_nodes
    )
    where, shown = paged(lagging, context.number("page", 1))
    parts = {(topic.name, part.partition_index): part for topic in topics for part in topic.partitions}
    wanted = {each for each, _ in shown}
    leaders = {each: leader for each, leader in leaders_of(topics).items() if each in wanted}
    unseen: list[str] = []  # a node that is down reports nothing, which the page says anyway
    ends = offsets(context, leaders, unseen=unseen)
    own: dict[tuple[TopicPartition, int], int] = {}
    for node_id in sorted({node_id for _, node_id in shown}):
        of_node = {each: node_id for each, node in shown if node == node_id}
        found = offsets(context, of_node, LATEST, replica=DEBUGGING_REPLICA, unseen=unseen)
        own |= {(each, node_id): end for each, end in found.items()}
    rows = [
        BehindRow(
            each[0],
            each[1],
            parts[each].leader_id if parts[each].leader_id >= 0 else None,
            tuple(parts[each].isr_nodes),
            node_id,
            max(0, ends[each] - own[each, node_id]) if each in ends and (each, node_id) in own else None,
        )
        for each, node_id in shown
    ]
    command = context.command("cluster", "describe")
    return Behind(title="Replicas that are not in sync", command=command, paged=where, replicas=tuple(rows))


# ---- preferred leaders ---------------------------------------------------------------------------------------------


def elect_preview(context: Context) -> Preview:
    """The partitions that would get another leader. Raises InputError."""
    topics = metadata_of_all(context).topics
    found = led_elsewhere(topics)
    if not found:
        raise InputError("Each partition is led by its preferred replica, or that replica is not in sync.")
    by_place = {(topic.name, part.partition_index): part for topic in topics for part in topic.partitions}
    rows = tuple((*each, by_place[each].leader_id, by_place[each].replica_nodes[0]) for each in found[:200])
    return Preview(
        "cluster",
        (f"Makes the preferred replica the leader of {count(len(found), 'partition')}. Clients follow.",),
        columns=("Topic", "Partition", "Leader now", "Leader after"),
        rows=rows,
        facts=found,
        command=context.command("topics", "elect-leaders"),
    )


def elect(context: Context) -> Done:
    """Make preferred replicas lead."""
    found = led_elsewhere(metadata_of_all(context).topics)
    by_topic: dict[str, list[int]] = {}
    for topic, index in found:
        by_topic.setdefault(topic, []).append(index)
    asked = [TopicPartitions(topic, indexes) for topic, indexes in by_topic.items()]
    answer = context.client.send(ElectLeadersRequest(PREFERRED, asked, TIMEOUT_MS))
    check(answer.error_code, "the election")
    errors = [row.error_code for each in answer.replica_election_results for row in each.partition_result]
    failed = [each for each in errors if each not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)]
    sentence = f"The preferred replica leads {count(len(found) - len(failed), 'partition')} more."
    if failed:
        sentence += f" {count(len(failed), 'partition')} kept another leader: {ErrorCode(failed[0]).name}."
    return Done(sentence, "/cluster", {"partitions": len(found), "failed": len(failed)})


PAGE: Final = Page(
    name="cluster",
    path="/cluster",
    load=load,
    label="Cluster",
    key="c",
    refresh_s=5,
    parts=(
        Part("behind", "Replicas that are not in sync", load_behind, refresh_s=5),
        Part("isr", "In-sync replicas in the last hour", cluster_isr.load, refresh_s=30),
        Part("moves", "Moves", cluster_moves.load, refresh_s=5),
        Part("throttle", "Throttle of moves", cluster_moves.load_throttle, refresh_s=30),
        Part("configs", "Changes of nodes' configs and of quotas", load_changes, refresh_s=30),
    ),
    changes=(
        Change("elect", "Make preferred replicas lead", elect_preview, elect, is_destructive=False),
        Change("cancel-move", "Cancel the move", cluster_moves.cancel_preview, cluster_moves.cancel),
        Change("cancel-moves", "Cancel all moves", cluster_moves.cancel_all_preview, cluster_moves.cancel_all),
        Change(
            "finish-moves", "Finish the moves", cluster_moves.finish_preview, cluster_moves.finish, is_destructive=False
        ),
    ),
)
