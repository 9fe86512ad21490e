"""DescribeProducers, key 61, version 0: the producers that partitions remember, and their open transactions.

Every replica answers from its own state, not only the leader. Not supported: nothing.

Source: KafkaApis.handleDescribeProducersRequest, ReplicaManager.activeProducerState; KIP-664.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, Work, steps_of
from ottla.log.producers import ProducerEntry
from ottla.metadata.topic_names import fault_of
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_PRODUCERS,
    versions=(0, 0),
    acl=((Operation.READ, ResourceType.TOPIC),),
    needs_lease=True,
)


def handle(node: Core, request: Request) -> DescribeProducersResponse | Parked:
    is_long = steps_of(request.body.topics, "partition_indexes") > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request, is_long), is_long=is_long)


def _answer(node: Core, request: Request, is_long: bool) -> Work:
    """In a long request each partition is answered once: it may have thousands of producers."""
    wanted: list[tuple[str, Iterable[int]]] = [(asked.name, asked.partition_indexes) for asked in request.body.topics]
    if is_long:
        once: dict[str, dict[int, None]] = {}
        for name, indexes in wanted:
            once.setdefault(name, {}).update(dict.fromkeys(indexes))
        wanted = list(once.items())
    told: Any = EncodedStructs(request.version)
    steps = 0
    for name, indexes in wanted:
        steps += 1
        error, sentence = _fault(node, request, name)
        partitions: Any = EncodedStructs(request.version)
        for index in indexes:
            if error:
                part, producers = PartitionResponse(index, error, sentence), []
            else:
                part, producers = _partition(node, name, index)
            ready: Any = EncodedStructs(request.version)
            for first in range(0, len(producers), SLICE_STEPS):
                some = producers[first : first + SLICE_STEPS]
                ready.add(map(_state, some))
                steps += len(some)
                if steps >= SLICE_STEPS:
                    steps = 0
                    yield
            part.active_producers = ready
            partitions.add((part,))
            steps += 1
            if steps >= SLICE_STEPS:
                steps = 0
                yield
        told.add((TopicResponse(name, partitions),))
    return DescribeProducersResponse(topics=told)


def _fault(node: Core, request: Request, name: str) -> tuple[ErrorCode, str | None]:
    """The error for a topic whose producers are not returned."""
    sentence = fault_of(name)
    if sentence is not None:
        return ErrorCode.INVALID_TOPIC_EXCEPTION, sentence
    error = ErrorCode.NONE
    if not node.access.on_topic(request, Operation.READ, name):
        error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif node.image.topics.get(name) is None:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return error, error.message


def _partition(node: Core, topic: str, index: int) -> tuple[PartitionResponse, list[ProducerEntry]]:
    partition = node.leadership.led(topic, index, of_any_replica=True)
    if isinstance(partition, ErrorCode):
        return PartitionResponse(index, partition), []
    return PartitionResponse(index), list(partition.log.producers.entries.values())


def _state(entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        entry.producer_id,
        entry.epoch,
        entry.last_sequence,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )
