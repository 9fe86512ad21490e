"""A controller for simulated clusters, by hand: one host that never fails, with the rules of the cluster's metadata.

It registers nodes that start, fences those that are silent, elects leaders, and serves AlterPartition. It writes rows
into the store that all nodes share, and tells each node of them in its own time. Knows metadata only; what stands in a
log it never sees.

Source: KIP-497, KIP-841, KIP-903, KIP-966; Kafka's ReplicationControlManager.java.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ottla.broker.channel import Channel
from ottla.broker.effects import CommitOutcome, Effect, Parked, Reading, Unread
from ottla.log.files import FileSlice
from ottla.machine import Millis, Unanswered
from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.image import MetadataImage, changed, delta_since
from ottla.metadata.memory import MemoryStore
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord, NodeState
from ottla.metadata.row_kinds import encoded
from ottla.metadata.store import Put
from ottla.metadata.topics import PartitionRecord, TopicImage, TopicRecord, key_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import RequestHeader, decode_request_header, encode_response
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

CONTROLLER_ID = 100


class HandController:
    """The node that runs on the controller's host; `committed` is called after each commit."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.image = MetadataImage()
        self._commit({CONTROLLER_KEY: ControllerRecord(CONTROLLER_ID, "by hand", 1)})

    # ---- metadata --------------------------------------------------------------------------------------------------

    def _commit(self, rows: Mapping[str, Any]) -> None:
        self.store.commit([Put(key, encoded(record)) for key, record in rows.items()])
        self.catch_up()

    def catch_up(self) -> None:
        """See what was committed, by whomever."""
        self.image = changed(self.image, delta_since(self.store, self.image))

    def create_topic(self, name: str, topic_id: bytes, configs: dict[str, str], placed: list[tuple[int, ...]]) -> None:
        """A topic whose partitions have these replicas; the first of each leads."""
        records = tuple(PartitionRecord(replicas, replicas, replicas[0]) for replicas in placed)
        self._commit({key_of(name): TopicRecord(topic_id, configs, records)})

    def _change(self, changes: Mapping[tuple[str, int], PartitionRecord]) -> None:
        by_name: dict[str, dict[int, PartitionRecord]] = {}
        for (name, index), record in changes.items():
            by_name.setdefault(name, {})[index] = record
        rows: dict[str, TopicRecord] = {}
        for name, records in by_name.items():
            topic = self.image.topics[name].record
            partitions = tuple(records.get(index, each) for index, each in enumerate(topic.partitions))
            rows[key_of(name)] = replace(topic, partitions=partitions)
        if rows:
            self._commit(rows)

    def _broker_epoch(self, node_id: int) -> int | None:
        record = self.image.nodes.get(str(node_id))
        return None if record is None or record.state is not NodeState.ACTIVE else record.broker_epoch

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def register(self, node_id: int, life: int, *, intact: bool) -> None:
        """A node begins a new life. What the last one led or was in sync with is over, as the last one is gone; one
        that has lost bytes (`intact` False) is eligible for nothing that it held (KIP-966)."""
        self.fence(node_id)
        record = NodeRecord("host", 9092, incarnation=f"{node_id}/{life}")
        self._commit({f"{NODE_PREFIX}{node_id}": record})
        if not intact:
            self._forget(node_id)
        self._elect()

    def is_given_up(self, node_id: int) -> bool:
        """Whether nobody has heard of this node since it was fenced."""
        record = self.image.nodes.get(str(node_id))
        return record is not None and record.state is NodeState.FENCED

    def fence(self, node_id: int) -> None:
        """Nobody hears of this node any more."""
        record = self.image.nodes.get(str(node_id))
        if record is None or record.state is NodeState.FENCED:
            return
        self._commit({f"{NODE_PREFIX}{node_id}": replace(record, state=NodeState.FENCED)})
        changes: dict[tuple[str, int], PartitionRecord] = {}
        for topic in self.image.topics.values():
            for index, placed in enumerate(topic.partitions):
                left = self._without(topic, placed, node_id)
                if left is not None:
                    changes[topic.name, index] = left
        self._change(changes)
        self._elect()

    def _without(self, topic: TopicImage, placed: PartitionRecord, node_id: int) -> PartitionRecord | None:
        """The partition when that node is gone; None: as it was. The last one in sync stays eligible (KIP-966)."""
        if node_id not in placed.isr and placed.leader != node_id:
            return None
        isr = tuple(each for each in placed.isr if each != node_id)
        min_isr = min(int(topic.configs.get("min.insync.replicas", "1")), len(placed.replicas))
        elr = (*placed.elr, node_id) if node_id in placed.isr and len(isr) < min_isr else placed.elr
        changed_record = replace(placed, isr=isr, elr=elr, partition_epoch=placed.partition_epoch + 1)
        if placed.leader == node_id:
            changed_record = replace(changed_record, leader=-1, leader_epoch=placed.leader_epoch + 1)
        return changed_record

    def _forget(self, node_id: int) -> None:
        changes: dict[tuple[str, int], PartitionRecord] = {}
        for topic in self.image.topics.values():
            for index, placed in enumerate(topic.partitions):
                if node_id in placed.elr:
                    elr = tuple(each for each in placed.elr if each != node_id)
                    changes[topic.name, index] = replace(placed, elr=elr, partition_epoch=placed.partition_epoch + 1)
        self._change(changes)

    def _elect(self) -> None:
        """A leader for every partition that has none, where somebody may be it: in sync, or eligible and alive."""
        changes: dict[tuple[str, int], PartitionRecord] = {}
        for topic in self.image.topics.values():
            for index, placed in enumerate(topic.partitions):
                if placed.leader == -1:
                    leader = self._candidate(placed)
                    if leader is not None:
                        changes[topic.name, index] = self._led_by(placed, leader)
        self._change(changes)

    def _candidate(self, placed: PartitionRecord) -> int | None:
        for eligible in (placed.isr, placed.elr):
            for node_id in placed.replicas:
                if node_id in eligible and self._broker_epoch(node_id) is not None:
                    return node_id
        return None

    def _led_by(self, placed: PartitionRecord, leader: int) -> PartitionRecord:
        isr = placed.isr if leader in placed.isr else (leader,)
        elr = tuple(each for each in placed.elr if each not in isr)
        return replace(placed.led_anew(leader), isr=isr, elr=elr)

    def move_leader(self, name: str, index: int, leader: int) -> None:
        """Another one of the in-sync replicas leads from now on, or the same anew."""
        placed = self.image.topics[name].partitions[index]
        assert leader in placed.isr
        self._change({(name, index): placed.led_anew(leader)})

    # ---- AlterPartition --------------------------------------------------------------------------------------------

    def _alter(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        if self._broker_epoch(request.broker_id) != request.broker_epoch:
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        topics: list[ResponseTopicData] = []
        for topic in request.topics:
            parts = [self._alter_one(request.broker_id, topic.topic_id, part) for part in topic.partitions]
            topics.append(ResponseTopicData(topic.topic_id, parts))
        return AlterPartitionResponse(topics=topics)

    def _alter_one(self, leader: int, topic_id: bytes, asked: RequestPartitionData) -> ResponsePartitionData:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None:
            return ResponsePartitionData(asked.partition_index, ErrorCode.UNKNOWN_TOPIC_ID)
        placed = topic.partitions[asked.partition_index]
        isr = tuple(each.broker_id for each in asked.new_isr_with_epochs)
        error = self._why_not(leader, placed, asked, isr)
        if error is not None:
            return ResponsePartitionData(asked.partition_index, error)
        if sorted(isr) != sorted(placed.isr):
            min_isr = min(int(topic.configs.get("min.insync.replicas", "1")), len(placed.replicas))
            left = [each for each in (*placed.elr, *placed.isr) if each not in isr]
            elr = tuple(left) if len(isr) < min_isr else ()
            placed = replace(placed, isr=isr, elr=elr, partition_epoch=placed.partition_epoch + 1)
            self._change({(topic.name, asked.partition_index): placed})
        return ResponsePartitionData(
            asked.partition_index, 0, placed.leader, placed.leader_epoch, list(placed.isr), 0, placed.partition_epoch
        )

    def _why_not(
        self, leader: int, placed: PartitionRecord, asked: RequestPartitionData, isr: tuple[int, ...]
    ) -> ErrorCode | None:
        if asked.leader_epoch > placed.leader_epoch or asked.partition_epoch > placed.partition_epoch:
            return ErrorCode.NOT_CONTROLLER
        if asked.leader_epoch < placed.leader_epoch or placed.leader != leader:
            return ErrorCode.FENCED_LEADER_EPOCH
        if sorted(isr) == sorted(placed.isr):
            return None  # already so: an answer was lost (KAFKA-14144)
        if asked.partition_epoch < placed.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if leader not in isr or any(each not in placed.replicas for each in isr):
            return ErrorCode.INVALID_REQUEST
        for each in asked.new_isr_with_epochs:
            epoch = self._broker_epoch(each.broker_id)
            if epoch is None or each.broker_epoch not in (-1, epoch):
                return ErrorCode.INELIGIBLE_REPLICA
        return None

    # ---- as a node -------------------------------------------------------------------------------------------------

    def receive(self, now: Millis, channel: Channel, frame: memoryview) -> list[bytes] | Parked:
        header, position = decode_request_header(frame)
        request, _ = AlterPartitionRequest.decode(frame, position, header.api_version)
        answer = self._alter(request)
        return [
            bytes(encode_response(RequestHeader(header.api_key, header.api_version, header.correlation_id), answer))
        ]

    def start(self, now: Millis) -> None: ...

    def stop(self, now: Millis) -> None: ...

    def disconnected(self, now: Millis, connection: int) -> None: ...

    def deadline(self) -> Millis | None:
        return None

    def tick(self, now: Millis) -> None: ...

    def take_effects(self, now: Millis) -> list[Effect]:
        return []

    def synced(self, now: Millis, token: int, failures: Mapping[int, str]) -> None: ...

    def answered(self, now: Millis, token: int, answer: bytes | Unanswered) -> None: ...

    def committed(self, now: Millis, token: int, outcome: CommitOutcome) -> None: ...

    def reread(self, now: Millis, token: int, answer: Reading | Unread) -> None: ...

    def wall_clock_is(self, now: Millis, ahead_ms: int) -> None: ...

    def not_stored(self, path: str) -> None: ...

    def unreadable(self, part: FileSlice, error: OSError) -> None: ...
