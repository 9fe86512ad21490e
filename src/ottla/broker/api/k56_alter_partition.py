"""AlterPartition, key 56, versions 2 to 3: a leader reports its in-sync replicas to the controller.

The handler checks each partition separately, and writes the valid changes in one batch. The batch is guarded by the
controller's claim and by the rows of the joining nodes: a node that has registered again does not join. Only nodes of
the cluster are served, which have proved that. A standalone node has no controller and answers NOT_CONTROLLER.
Clients do not use this API: ApiVersions does not list it.

Versions: 3 broker epochs of the members (KIP-903).

Not supported: nothing.

Source: ControllerApis.handleAlterPartitionRequest, ReplicationControlManager.alterPartition; KIP-497, KIP-841,
KIP-903.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.cluster.duties import topic_row
from ottla.broker.cluster.isr_changes import ANY_EPOCH, IsrProposal, altered
from ottla.broker.cluster.metadata import Planned, RowBatch
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.machine import Millis
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.store import StoreError, VersionGuard
from ottla.metadata.topics import PartitionRecord, TopicImage
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ALTER_PARTITION,
    versions=(2, 3),
    between_nodes=True,
    internal=True,
)

_BROKER_EPOCHS_SINCE = 3


def handle(node: Core, request: Request) -> AlterPartitionResponse | Parked:
    if not node.peers.trusts(request.identity, request.client_id):
        return AlterPartitionResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return node.slices.begin(request, _answer(node, request), is_long=False)


def _answer(node: Core, request: Request) -> Work:
    try:
        return (yield lambda now: _altering(node, request, now))
    except StoreError as failed:
        node.notes(f"the in-sync replicas of node {request.body.broker_id} could not be written: {failed}")
        return AlterPartitionResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)


def _altering(node: Core, request: Request, now: Millis) -> Planned:
    """The plan. It uses the newest image, so it runs again if another writer was faster."""
    body: AlterPartitionRequest = request.body
    membership = node.membership
    if membership is None or not node.members.is_controller:
        return AlterPartitionResponse(error_code=ErrorCode.NOT_CONTROLLER)
    sender = node.image.nodes.get(str(body.broker_id))
    if sender is None or sender.broker_epoch != body.broker_epoch:
        return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
    changed: dict[bytes, list[PartitionRecord]] = {}
    topics: list[ResponseTopicData] = []
    for asked in body.topics:
        topic = node.image.topics_by_id.get(asked.topic_id)
        answers = [_partition(node, request, topic, each, changed) for each in asked.partitions]
        topics.append(ResponseTopicData(asked.topic_id, answers))
    rows = [topic_row(node.image.topics_by_id[topic_id], placed) for topic_id, placed in changed.items()]
    if rows:
        yield RowBatch(rows, (), [*node.members.guards(rows), *_joining(node, changed)])
    return AlterPartitionResponse(topics=topics)


def _joining(node: Core, changed: dict[bytes, list[PartitionRecord]]) -> list[VersionGuard]:
    """Guards that keep a node from joining if its row has changed since this was planned."""
    nodes, topics = node.image.nodes, node.image.topics_by_id
    joining = {
        str(member)
        for topic_id, partitions in changed.items()
        for before, after in zip(topics[topic_id].partitions, partitions, strict=True)
        for member in after.isr
        if member not in before.isr
    }
    return [VersionGuard(f"{NODE_PREFIX}{name}", nodes[name].version) for name in sorted(joining)]


def _partition(
    node: Core,
    request: Request,
    topic: TopicImage | None,
    asked: RequestPartitionData,
    changed: dict[bytes, list[PartitionRecord]],
) -> ResponsePartitionData:
    """The result of one partition; if the partition changes, it is added to `changed`."""
    index = asked.partition_index
    if topic is None:
        return ResponsePartitionData(index, ErrorCode.UNKNOWN_TOPIC_ID)
    partitions = changed.get(topic.id, list(topic.partitions))
    if not 0 <= index < len(partitions):
        return ResponsePartitionData(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert node.membership is not None
    rules = node.membership.controller.rules_of(topic)
    place = topic.id, index
    nodes = {node_id: record for node_id, record in node.members.serving().items() if record.may_count(place)}
    after = altered(partitions[index], _proposal(request, asked), nodes, rules)
    if isinstance(after, ErrorCode):
        return ResponsePartitionData(index, after)
    if after is not partitions[index]:
        partitions[index] = after
        changed[topic.id] = partitions
        if after.leader != request.body.broker_id:  # it was the last that a move waited for, and the leader has to go
            return ResponsePartitionData(index, ErrorCode.NEW_LEADER_ELECTED)
    return ResponsePartitionData(
        index, 0, after.leader, after.leader_epoch, list(after.isr), int(after.recovering), after.partition_epoch
    )


def _proposal(request: Request, asked: RequestPartitionData) -> IsrProposal:
    if request.version >= _BROKER_EPOCHS_SINCE:
        isr = [(member.broker_id, member.broker_epoch) for member in asked.new_isr_with_epochs]
    else:
        isr = [(member, ANY_EPOCH) for member in asked.new_isr]
    return IsrProposal(
        request.body.broker_id, asked.leader_epoch, asked.partition_epoch, isr, bool(asked.leader_recovery_state)
    )
