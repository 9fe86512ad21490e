"""DescribeProducers, key 61, version 0: the producers that partitions remember, and their open transactions.

What is skipped: nothing. `current_txn_start_offset` is -1 as long as transactions are not served.

Source: KafkaApis.handleDescribeProducersRequest, ReplicaManager.activeProducerState; KIP-664.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.metadata.topic_names import fault_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node


def handle(node: Node, request: Request) -> DescribeProducersResponse:
    body: DescribeProducersRequest = request.body
    return DescribeProducersResponse(topics=[_topic(node, request, asked) for asked in body.topics])


def _topic(node: Node, request: Request, asked: TopicRequest) -> TopicResponse:
    fault = fault_of(asked.name)
    if fault is not None:
        return _all(asked, ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
    if not node.access.on_topic(request, Operation.READ, asked.name):
        return _all(asked, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if node.image.topics.get(asked.name) is None:
        return _all(asked, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return TopicResponse(asked.name, [_partition(node, asked.name, index) for index in asked.partition_indexes])


def _all(asked: TopicRequest, error: ErrorCode, sentence: str | None = None) -> TopicResponse:
    return TopicResponse(
        asked.name,
        [PartitionResponse(index, error, sentence or error.message) for index in asked.partition_indexes],
    )


def _partition(node: Node, topic: str, index: int) -> PartitionResponse:
    partition = node.leadership.led(topic, index)
    if isinstance(partition, ErrorCode):
        return PartitionResponse(index, partition)
    return PartitionResponse(
        index,
        active_producers=[
            ProducerState(
                entry.producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
            for entry in partition.log.producers.entries.values()
        ],
    )
