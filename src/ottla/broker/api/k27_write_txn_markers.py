"""WriteTxnMarkers, key 27, versions 1 to 2: end transactions in partitions that this node leads.

The handler appends a marker to each named partition, and answers when all of them are committed. By then the group
coordinator has applied the transaction's offsets in `__consumer_offsets` (KAFKA-17507). Transaction coordinators send
this request, including this node's own, as do operators who abort a hanging transaction (KIP-664). A partition with
fewer in-sync replicas than `min.insync.replicas` refuses its marker, as it refuses records with acks=all.

Many markers are written in slices, to the last one even if the sender disconnects. In a partition that was never
written, the marker creates the directory and files. So a slice ends after its time, however few markers it wrote.

Versions: 2 the transaction's version, which decides what epoch a marker may have (KIP-1228).

Not supported: nothing.

Source: KafkaApis.handleWriteTxnMarkersRequest; KIP-98, KIP-664, KIP-890.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api_spec import ApiSpec
from ottla.broker.effects import Parked
from ottla.broker.parking import ParkedWork
from ottla.broker.partitions.partition import Partition
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, SubRequest, Work, steps_of
from ottla.log.answers import AppendRefusedError, StorageError
from ottla.log.cost import TimeSlice
from ottla.machine import Millis, Ticket
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.records.control import EndTransactionMarker

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.WRITE_TXN_MARKERS,
    versions=(1, 2),
    acl=(
        (Operation.ALTER, ResourceType.CLUSTER),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
    needs_lease=True,
    between_nodes=True,
    loaded_with=TRANSACTION_STATE_TOPIC,
)


COMMITTED_WITHIN_MS: Final = 30_000
"""A marker that is not committed by then is answered REQUEST_TIMED_OUT, and written again (request.timeout.ms)."""


class ParkedMarkers(ParkedWork):
    """Markers that wait for the high watermark. `waits_for`: the offset it must reach, and the results that wait for
    it."""

    __slots__ = ("answer", "node", "waits_for")

    def __init__(
        self,
        node: Core,
        answer: WriteTxnMarkersResponse,
        waits_for: dict[Partition, tuple[int, list[WritableTxnMarkerPartitionResult]]],
    ) -> None:
        self.node = node
        self.answer = answer
        self.waits_for = waits_for

    def committed(self, now: Millis, ticket: Ticket, partition: Partition) -> None:
        self.waits_for.pop(partition, None)
        if not self.waits_for:
            self.node.parking.answer(now, ticket, self.answer)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        self._give_up(now, ticket, ErrorCode.REQUEST_TIMED_OUT)

    def lost(self, now: Millis, ticket: Ticket, partition: Partition, error: ErrorCode) -> None:
        self._give_up(now, ticket, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _give_up(self, now: Millis, ticket: Ticket, error: ErrorCode) -> None:
        for _, results in self.waits_for.values():
            for each in results:
                each.error_code = error
        self.node.parking.answer(now, ticket, self.answer)

    def abandon(self, ticket: Ticket) -> None:
        """Nothing to undo."""


AT_ONCE: Final = 8
"""This few steps need no slices, whatever files they create."""


def handle(node: Core, request: Request) -> Any:
    body: WriteTxnMarkersRequest = request.body
    steps = sum(1 + steps_of(marker.topics, "partition_indexes") for marker in body.markers)
    if steps <= AT_ONCE:
        return _answered(node, None, request)
    return node.slices.begin(request, _in_slices(node, request), is_long=steps > SLICE_STEPS, outlives=True)


def _in_slices(node: Core, request: Request) -> Work:
    results: dict[int, WritableTxnMarkerResult] = {}
    steps, time_slice = 0, node.environment.time_slice()
    for marker in request.body.markers:
        result = results.setdefault(marker.producer_id, WritableTxnMarkerResult(marker.producer_id, []))
        for topic in marker.topics:
            told = WritableTxnMarkerTopicResult(topic.name, [])
            result.topics.append(told)
            while len(told.partitions) < len(topic.partition_indexes):
                if steps >= SLICE_STEPS or time_slice.is_over:
                    yield
                    steps, time_slice = 0, node.environment.time_slice()
                done = len(told.partitions)
                some = copy(marker)
                some.topics = [WritableTxnMarkerTopic(topic.name, topic.partition_indexes[done : done + SLICE_STEPS])]
                serve = partial(_answered, node, time_slice)
                answer: WriteTxnMarkersResponse = yield SubRequest(
                    request, WriteTxnMarkersRequest([some]), serve, is_light=True
                )
                told.partitions += answer.markers[0].topics[0].partitions
                steps += 1 + len(told.partitions) - done
    return WriteTxnMarkersResponse(list(results.values()))


def _answered(node: Core, time_slice: TimeSlice | None, request: Request) -> WriteTxnMarkersResponse | Parked:
    """The answer for these markers: for those that the slice had time for, and for one at least."""
    body: WriteTxnMarkersRequest = request.body
    may_act = node.access.quiet.on_cluster(request, Operation.ALTER) or node.access.on_cluster(
        request, Operation.CLUSTER_ACTION
    )
    waits_for: dict[Partition, tuple[int, list[WritableTxnMarkerPartitionResult]]] = {}
    results: dict[int, WritableTxnMarkerResult] = {}
    for marker in body.markers:
        result = results.setdefault(marker.producer_id, WritableTxnMarkerResult(marker.producer_id, []))
        for topic in marker.topics:
            told = WritableTxnMarkerTopicResult(topic.name, [])
            result.topics.append(told)
            for index in topic.partition_indexes:
                if told.partitions and time_slice is not None and time_slice.is_over:
                    break
                error = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                found: Partition | None = None
                if may_act:
                    found, error = _write(node, request.now, marker, topic.name, index)
                answer = WritableTxnMarkerPartitionResult(index, error)
                told.partitions.append(answer)
                if found is not None and found.log.high_watermark < found.log.log_end_offset:
                    _, waiting = waits_for.get(found, (0, []))
                    waits_for[found] = found.log.log_end_offset, [*waiting, answer]
    answer = WriteTxnMarkersResponse(list(results.values()))
    if not waits_for:
        return answer
    parked = ParkedMarkers(node, answer, waits_for)
    ticket = node.parking.park(request, request.now + COMMITTED_WITHIN_MS, parked)
    for partition, (required, _) in list(waits_for.items()):
        partition.wait_for_commit(required, ticket)
    return Parked(ticket)


def _write(
    node: Core, now: Millis, marker: WritableTxnMarker, topic: str, index: int
) -> tuple[Partition | None, ErrorCode]:
    """Append one marker: the partition that has it, or why there is none."""
    partition = node.leadership.led(topic, index)
    if isinstance(partition, ErrorCode):
        return None, partition
    if not partition.has_enough_replicas:
        return None, ErrorCode.NOT_ENOUGH_REPLICAS
    end = EndTransactionMarker(marker.transaction_result, marker.coordinator_epoch)
    whose = (marker.producer_id, marker.producer_epoch, end, marker.transaction_version)
    try:
        if topic == CONSUMER_OFFSETS_TOPIC:
            appended = node.coordinators.groups.append_marker(now, index, *whose)
            if isinstance(appended, ErrorCode):
                return None, appended
        else:
            partition.append_marker(now, *whose)
    except AppendRefusedError as refused:
        return None, refused.error_code
    except StorageError:
        return None, ErrorCode.KAFKA_STORAGE_ERROR
    return partition, ErrorCode.NONE
