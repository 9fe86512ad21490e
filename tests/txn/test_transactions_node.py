"""Transactions on a node without a server: what becomes of them when requests are late, or the node dies at a bad time.

The scenarios bear the numbers of the faults that Kafka had (KAFKA-nnnn).
"""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.client_identity import Identity
from ottla.log.answers import Appended, StorageError
from ottla.log.log import Log
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_stage import DiskStage, NodeStage

NAME, GROUP, TOPIC = "tx", "g", "t"


class Producer:
    """A transactional producer. `version`: 1 adds its partitions first, 2 has an epoch for each transaction."""

    def __init__(self, stage: NodeStage, version: int = 1) -> None:
        self.stage = stage
        self.version = version
        stage.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[NAME]), 4)
        self.begin_anew()

    def begin_anew(self) -> None:
        answer = self.stage.ask(InitProducerIdRequest(NAME, 60_000), 5)
        if answer.error_code == E.CONCURRENT_TRANSACTIONS:  # what was open is aborted first
            answer = self.stage.ask(InitProducerIdRequest(NAME, 60_000), 5)
        assert answer.error_code == E.NONE
        self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def add(self, index: int = 0) -> E:
        topics = [AddPartitionsToTxnTopic(TOPIC, [index])]
        answer = self.stage.ask(AddPartitionsToTxnRequest(NAME, self.id, self.epoch, topics), 3)
        return E(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

    def request(self, value: bytes, sequence: int | None = None) -> ProduceRequest:
        batch = build_batch(
            [Record(timestamp_ms=self.stage.now, key=b"k", value=value)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence if sequence is None else sequence,
            transactional=True,
        )
        return ProduceRequest(
            NAME, -1, 1_000, [TopicProduceData(TOPIC, partition_data=[PartitionProduceData(0, batch)])]
        )

    @property
    def produce_version(self) -> int:
        return 12 if self.version == 2 else 9

    def write(self, value: bytes) -> E:
        answer = self.stage.ask(self.request(value), self.produce_version)
        error = E(answer.responses[0].partition_responses[0].error_code)
        self.sequence += error is E.NONE
        return error

    def end(self, *, commit: bool = True) -> E:
        answer = self.stage.ask(EndTxnRequest(NAME, self.id, self.epoch, commit), 5 if self.version == 2 else 3)
        if self.version == 2 and answer.error_code == E.NONE:
            self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0
        return E(answer.error_code)

    def commit_offset(self, offset: int) -> E:
        topics = [TxnOffsetCommitRequestTopic(TOPIC, [TxnOffsetCommitRequestPartition(0, offset)])]
        request = TxnOffsetCommitRequest(NAME, GROUP, self.id, self.epoch, topics=topics)
        answer = self.stage.ask(request, 5 if self.version == 2 else 3)
        return E(answer.topics[0].partitions[0].error_code)

    @property
    def state(self) -> str:
        answer = self.stage.ask(DescribeTransactionsRequest([NAME]))
        return str(answer.transaction_states[0].transaction_state)


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    made = NodeStage(tmp_path)
    made.create(TOPIC, 2, {})
    return made


def stable(stage: NodeStage) -> tuple[int, int]:
    """(last stable offset, high watermark)."""
    log = stage.node.replicas.get(TOPIC, 0).log  # type: ignore[union-attr]
    log.check()
    return log.last_stable_offset, log.high_watermark


def fetch(*, max_wait_ms: int = 0, offset: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=1,
        topics=[FetchTopic(TOPIC, partitions=[part])],
    )


def committed(stage: NodeStage, *, stable: bool = True) -> tuple[int, E]:
    wanted = OffsetFetchRequestGroup(GROUP, topics=[OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])])
    (group,) = stage.ask(OffsetFetchRequest(groups=[wanted], require_stable=stable), 8).groups
    part = group.topics[0].partitions[0]
    return part.committed_offset, E(part.error_code)


class AllButWriting:
    """Allows everything but to write to topics."""

    def allows(self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return (operation, resource_type) != (Operation.WRITE, ResourceType.TOPIC)


def test_a_topic_that_the_client_may_not_write_to_comes_into_no_transaction(stage: NodeStage) -> None:
    producer = Producer(stage, version=2)
    stage.node.access.authorizer = AllButWriting()
    assert producer.write(b"a") is E.TOPIC_AUTHORIZATION_FAILED
    assert producer.state == "Empty"


@pytest.mark.parametrize("version", [1, 2])
def test_the_last_stable_offset_follows_transactions(stage: NodeStage, version: int) -> None:
    producer = Producer(stage, version)
    for commit in (True, False, True):
        before = stable(stage)
        if version == 1:
            assert producer.add() is E.NONE
        assert producer.write(b"a") is producer.write(b"b") is E.NONE
        assert stable(stage) == (before[0], before[1] + 2)
        assert producer.end(commit=commit) is E.NONE
        assert stable(stage) == (before[0] + 3, before[1] + 3)
        assert producer.state == ("CompleteCommit" if commit else "CompleteAbort")


def test_14053_what_was_long_under_way_opens_nothing(stage: NodeStage) -> None:
    """A batch arrives after the abort of the transaction that it belongs to: nobody would end what it opened."""
    producer = Producer(stage)
    producer.add()
    late = producer.request(b"late")
    assert producer.end(commit=False) is E.NONE
    answer = stage.ask(late, 9)
    assert answer.responses[0].partition_responses[0].error_code == E.INVALID_TXN_STATE
    assert stable(stage) == (1, 1)


def test_14053_the_guard_is_void_after_a_marker(stage: NodeStage) -> None:
    """The coordinator said yes, and the marker came before the batch could be appended."""
    producer = Producer(stage)
    producer.add()
    producers = stage.node.replicas.get(TOPIC, 0).log.producers  # type: ignore[union-attr]
    guard = producers.guard(producer.id, producer.epoch, 0, stage.node.wall.at(stage.now), second_version=False)
    assert guard is not None
    producer.end(commit=False)
    again = producers.guard(producer.id, producer.epoch, 0, stage.node.wall.at(stage.now), second_version=False)
    assert again is not guard


@pytest.mark.parametrize("version", [1, 2])
def test_a_node_that_is_killed_loses_no_transaction(stage: NodeStage, version: int) -> None:
    producer = Producer(stage, version)
    if version == 1:
        producer.add()
    producer.write(b"a")
    stage.restart(clean=False)
    stage.run()
    assert stable(stage) == (0, 1)
    assert producer.write(b"b") is E.NONE
    assert producer.end() is E.NONE
    assert stable(stage) == (3, 3)


def test_5121_a_marker_that_is_not_durable_frees_nobody() -> None:
    """With fsync durability a transaction ends for readers when its marker is on the disk, and EndTxn before is told
    nothing that a power cut takes back."""
    stage = DiskStage(ottla_durability="fsync")
    stage.create(TOPIC, 2, {})
    producer = Producer(stage)
    producer.add()
    producer.write(b"a")
    stage.hold_syncs = True
    asked = stage.send(EndTxnRequest(NAME, producer.id, producer.epoch, True), 3)
    assert not asked.answered
    assert stable(stage) == (0, 1)
    stage.sync()  # the prepared state
    stage.settle()
    assert asked.answer.error_code == E.NONE
    assert stable(stage) == (0, 1)
    while stage.syncs:
        stage.sync()
        stage.settle()
    assert stable(stage) == (2, 2)


@pytest.mark.parametrize("syncs", range(4))
def test_a_prepared_transaction_ends_after_a_power_cut(syncs: int) -> None:
    """The power goes after so many fsyncs since the end was asked for."""
    stage = DiskStage(ottla_durability="fsync")
    stage.create(TOPIC, 2, {})
    producer = Producer(stage)
    producer.add()
    producer.write(b"a")
    stage.hold_syncs = True
    asked = stage.send(EndTxnRequest(NAME, producer.id, producer.epoch, True), 3)
    for _ in range(syncs):
        if stage.syncs:
            stage.sync()
        stage.settle()
    stage.hold_syncs = False
    answered = asked.answered
    stage.restart(power_cut=True, clean=False)
    stage.run(1_000)
    if not answered:
        assert producer.end() is E.NONE
    assert producer.state == "CompleteCommit"
    last_stable_offset, high_watermark = stable(stage)
    assert last_stable_offset == high_watermark >= 2  # the marker may have been written twice


@pytest.mark.parametrize("version", [1, 2])
def test_a_node_that_coordinates_what_it_writes_answers_at_once(stage: NodeStage, version: int) -> None:
    """Nothing of a small transaction waits for the node's next tick."""
    stage.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
    producer = Producer(stage, version)
    whose = (NAME, producer.id, producer.epoch)
    offsets = [TxnOffsetCommitRequestTopic(TOPIC, [TxnOffsetCommitRequestPartition(0, 5)])]
    commit = TxnOffsetCommitRequest(NAME, GROUP, *whose[1:], topics=offsets)
    requests: list[tuple[Any, int]] = [
        (producer.request(b"a"), producer.produce_version),
        (commit, 5 if version == 2 else 3),
        (EndTxnRequest(*whose, True), 5 if version == 2 else 3),
    ]
    if version == 1:
        producer.add()
        stage.ask(AddOffsetsToTxnRequest(*whose, GROUP), 3)
    for message, message_version in requests:
        assert stage.send(message, message_version).answered, type(message).__name__
    assert stable(stage) == (2, 2)
    assert committed(stage) == (5, E.NONE)


def test_what_waits_for_the_disk_goes_on_when_that_is_done() -> None:
    """With fsync durability a partition is added when that is on the disk, and the record comes behind it, without a
    tick of the node."""
    stage = DiskStage(ottla_durability="fsync")
    stage.create(TOPIC, 2, {})
    producer = Producer(stage, 2)
    stage.hold_syncs = True
    asked = stage.send(producer.request(b"a"), 12)
    for _ in ("the transaction has the partition", "the record is there"):
        while stage.syncs:
            stage.sync()
            stage.settle()
    assert asked.answer.responses[0].partition_responses[0].error_code == E.NONE


def test_without_verification_the_second_version_still_adds_its_partitions(tmp_path: Path) -> None:
    """Else nobody would end what it writes. In the first version the partition takes what comes, as Kafka's."""
    stage = NodeStage(tmp_path, transaction_partition_verification_enable="false")
    stage.create(TOPIC, 2, {})
    stage.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
    second = Producer(stage, 2)
    assert second.write(b"a") is second.commit_offset(3) is second.end() is E.NONE
    assert stable(stage) == (2, 2)
    assert committed(stage) == (3, E.NONE)
    first = Producer(stage)
    assert first.write(b"b") is E.NONE
    assert stable(stage) == (2, 3)


def test_a_disk_that_is_full_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that can't write that a transaction is complete starts over, and comes to the same point."""
    stage = DiskStage()
    stage.create(TOPIC, 2, {})
    producer = Producer(stage)
    producer.add()
    producer.write(b"a")
    index = stage.node.coordinators.transactions.partition_for(NAME)
    states = stage.node.replicas.get(TRANSACTION_STATE_TOPIC, index).log  # type: ignore[union-attr]
    written, original = 0, Log.append_as_leader

    def append(self: Log, batch: memoryview, **named: Any) -> Appended:
        nonlocal written
        written += self is states
        if self is states and 1 < written <= 20:
            raise StorageError("no space left on device")
        return original(self, batch, **named)

    monkeypatch.setattr(Log, "append_as_leader", append)
    assert producer.end() is E.NONE
    stage.run(450)
    assert 2 < written < 10
    stage.run(5_000)
    assert written == 21
    assert producer.state == "CompleteCommit"
    assert stable(stage) == (2 + 19, 2 + 19)  # each time its marker was written once more


def test_a_reader_of_committed_records_waits_while_a_transaction_is_open(stage: NodeStage) -> None:
    """It is not answered, empty, each time that records come which it may not see."""
    producer = Producer(stage)
    producer.add()
    producer.write(b"a")
    asked = stage.send(fetch(max_wait_ms=10_000), 12)
    producer.write(b"b")
    stage.append(TOPIC)
    assert not asked.answered
    producer.end()
    assert asked.answered
    part = asked.answer.responses[0].partitions[0]
    assert (part.last_stable_offset, part.high_watermark) == (4, 4)
    assert part.records


@pytest.mark.parametrize("version", [1, 2])
def test_17507_offsets_are_there_when_the_transaction_is_over(stage: NodeStage, version: int) -> None:
    stage.ask(FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
    producer = Producer(stage, version)
    for offset, commit in ((5, True), (9, False), (11, True)):
        before = committed(stage)
        if version == 1:
            assert producer.commit_offset(offset) is E.INVALID_TXN_STATE
            answer = stage.ask(AddOffsetsToTxnRequest(NAME, producer.id, producer.epoch, GROUP), 3)
            assert answer.error_code == E.NONE
        assert producer.commit_offset(offset) is E.NONE
        assert committed(stage) == (-1, E.UNSTABLE_OFFSET_COMMIT)
        assert committed(stage, stable=False) == before
        assert producer.end(commit=commit) is E.NONE
        assert committed(stage) == ((offset, E.NONE) if commit else before)
    stage.restart(clean=False)
    stage.run()
    assert committed(stage) == (11, E.NONE)


def test_a_topic_that_is_deleted_holds_no_transaction_up(stage: NodeStage) -> None:
    producer = Producer(stage)
    producer.add(1)
    stage.delete(TOPIC)
    assert producer.end() is E.NONE
    stage.run(1_000)
    assert producer.state == "CompleteCommit"


def test_a_time_out_ends_what_nobody_ends(stage: NodeStage) -> None:
    producer = Producer(stage)
    producer.add()
    producer.write(b"a")
    stage.run(59_000)
    assert producer.state == "Ongoing"
    stage.run(2_000)
    assert producer.state == "CompleteAbort"
    assert stable(stage) == (2, 2)
    assert producer.write(b"b") is E.INVALID_PRODUCER_EPOCH
    assert producer.end() is E.PRODUCER_FENCED
    producer.begin_anew()
    assert producer.add() is producer.write(b"c") is producer.end() is E.NONE
