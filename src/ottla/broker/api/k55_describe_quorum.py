"""DescribeQuorum, key 55, versions 0 to 2: the leader and the voters of the cluster's metadata.

There is no Raft here. The nodes share one metadata store, so the answer for `__cluster_metadata` is a quorum of one:
the controller leads in its epoch, and its log is as long as the store has commits. While there is no controller, the
partition has the error NOT_LEADER_OR_FOLLOWER, so clients retry.

Versions: 1 times of fetches, 2 directory ids, sentences and the nodes' addresses (KIP-853).

Source: KafkaRaftClient.handleDescribeQuorumRequest; KIP-595, KIP-836.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.cluster.members import NOBODY
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    ReplicaState,
    RequestTopicData,
    ResponsePartitionData,
    ResponseTopicData,
)
from ottla.protocol.messages.describe_quorum import Node as QuorumNode

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_QUORUM,
    versions=(0, 2),
    acl=((Operation.DESCRIBE, ResourceType.CLUSTER),),
)


METADATA_TOPIC = "__cluster_metadata"
METADATA_EPOCH = 1
"""The only epoch of a node that shares its store with no other one."""


def handle(node: Core, request: Request) -> Any:
    body: DescribeQuorumRequest = request.body
    if not node.access.on_cluster(request, Operation.DESCRIBE):
        return DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not body.topics:
        return DescribeQuorumResponse()
    if not _asks_for_the_quorum(body.topics):
        return node.slices.each_partition(request, _unknown)
    controllers = node.members.of(request.identity.address, [node.members.controller_id])
    return DescribeQuorumResponse(
        topics=[ResponseTopicData(METADATA_TOPIC, [_quorum(node)])],
        nodes=[QuorumNode(each.node_id, [Listener("CONTROLLER", each.host, each.port)]) for each in controllers],
    )


def _asks_for_the_quorum(topics: list[RequestTopicData]) -> bool:
    if len(topics) != 1 or topics[0].topic_name != METADATA_TOPIC:
        return False
    return [each.partition_index for each in topics[0].partitions] == [0]


def _quorum(node: Core) -> ResponsePartitionData:
    commits, leader = node.image.generation, node.members.controller_id
    if leader == NOBODY:
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ResponsePartitionData(error_code=error, error_message=error.message, leader_id=NOBODY)
    claim = node.image.controller
    return ResponsePartitionData(
        leader_id=leader,
        leader_epoch=METADATA_EPOCH if claim is None else claim.epoch,
        high_watermark=commits,
        current_voters=[ReplicaState(leader, log_end_offset=commits)],
    )


def _unknown(request: Request) -> DescribeQuorumResponse:
    body: DescribeQuorumRequest = request.body
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeQuorumResponse(
        topics=[
            ResponseTopicData(
                asked.topic_name,
                [ResponsePartitionData(each.partition_index, error, error.message) for each in asked.partitions],
            )
            for asked in body.topics
        ]
    )
