"""Transactions whose coordinator, partitions and groups are led by different nodes, some of which die: as stories."""

from dataclasses import replace
from typing import Any

import pytest

from ottla.log.answers import Isolation
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.protocol.records.record import Record, build_batch
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.cluster import TOPIC
from tests.harness.sim.cluster_asking import AskedCluster
from tests.harness.sim.hand_cluster import TOPIC_ID

NAME, GROUP = "tx", "g"
SEEDS = (0, pytest.param(1, marks=pytest.mark.long))


class Producer:
    """A transactional producer of the first version, which asks whoever leads and insists."""

    def __init__(self, cluster: AskedCluster) -> None:
        self.cluster = cluster
        self.sequences = {0: 0, 1: 0}
        answer = self.at_coordinator(InitProducerIdRequest(NAME, 60_000), 4)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def at_coordinator(self, message: Any, version: int) -> Any:
        retried = (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS)
        good = lambda answer: answer.error_code not in retried  # noqa: E731
        leader = lambda: self.cluster.leader_of(TRANSACTION_STATE_TOPIC)  # noqa: E731
        answer = self.cluster.ask_until(leader, message, good, version)
        assert answer.error_code == E.NONE, answer
        return answer

    def add(self, *indexes: int) -> None:
        def errors(answer: Any) -> set[int]:
            (topic,) = answer.results_by_topic_v3_and_below
            return {each.partition_error_code for each in topic.results_by_partition}

        message = AddPartitionsToTxnRequest(NAME, self.id, self.epoch, [AddPartitionsToTxnTopic(TOPIC, list(indexes))])
        leader = lambda: self.cluster.leader_of(TRANSACTION_STATE_TOPIC)  # noqa: E731
        is_through = lambda answer: errors(answer) != {E.CONCURRENT_TRANSACTIONS}  # noqa: E731
        assert errors(self.cluster.ask_until(leader, message, is_through, 3)) == {E.NONE}

    def request(self, index: int) -> ProduceRequest:
        batch = build_batch(
            [Record(timestamp_ms=self.cluster.world.clock.wall_ms, key=b"k", value=b"in a transaction")],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[index],
            transactional=True,
        )
        return ProduceRequest(
            NAME, -1, 5_000, [TopicProduceData(TOPIC, TOPIC_ID, [PartitionProduceData(index, batch)])]
        )

    def write(self, index: int = 0) -> None:
        good = lambda answer: answer.responses[0].partition_responses[0].error_code == E.NONE  # noqa: E731
        self.cluster.ask_until(lambda: self.cluster.leader_of(TOPIC, index), self.request(index), good, 11)
        self.sequences[index] += 1

    def end(self, *, commit: bool = True) -> None:
        self.at_coordinator(EndTxnRequest(NAME, self.id, self.epoch, commit), 3)

    def commit_offset(self, offset: int) -> None:
        leader = self.cluster.leader_of(TRANSACTION_STATE_TOPIC)
        assert leader is not None
        assert self.cluster.ask(leader, AddOffsetsToTxnRequest(NAME, self.id, self.epoch, GROUP), 3).error_code == 0
        topics = [TxnOffsetCommitRequestTopic(TOPIC, [TxnOffsetCommitRequestPartition(0, offset)])]
        self.cluster.ask_until(
            lambda: self.cluster.leader_of(CONSUMER_OFFSETS_TOPIC),
            TxnOffsetCommitRequest(NAME, GROUP, self.id, self.epoch, topics=topics),
            lambda answer: answer.topics[0].partitions[0].error_code == E.NONE,
            3,
        )


def committed_offset(cluster: AskedCluster) -> int:
    """What the group's coordinator says of its stable offset."""
    wanted = OffsetFetchRequestGroup(GROUP, topics=[OffsetFetchRequestTopics(TOPIC, partition_indexes=[0])])
    answer = cluster.ask_until(
        lambda: cluster.leader_of(CONSUMER_OFFSETS_TOPIC),
        OffsetFetchRequest(groups=[wanted], require_stable=True),
        lambda answer: answer.groups[0].error_code == 0 and answer.groups[0].topics[0].partitions[0].error_code == 0,
        8,
    )
    return int(answer.groups[0].topics[0].partitions[0].committed_offset)


def log(cluster: AskedCluster, node_id: int, index: int = 0) -> Any:
    return cluster.node(node_id).replicas.by_name[TOPIC].partitions[index].log


def is_settled(cluster: AskedCluster, index: int = 0) -> bool:
    """Whether nothing is open any more at the partition's leader."""
    leader = cluster.leader_of(TOPIC, index)
    if leader is None or not cluster.hosts[leader].up:
        return False
    found = log(cluster, leader, index)
    return bool(found.last_stable_offset == found.log_end_offset == found.high_watermark)


def cut(cluster: AskedCluster, a: int, b: int) -> None:
    """What a sends to b gets lost from now on."""
    cluster.world.network.cut_path(f"node-{a}", f"node-{b}")


@pytest.fixture(params=SEEDS)
def cluster(request: pytest.FixtureRequest) -> AskedCluster:
    """The partitions of the topic are led by 1 and 2, transactions by 3, groups by 2."""
    return AskedCluster(request.param, partitions=2, led_by={TRANSACTION_STATE_TOPIC: 3, CONSUMER_OFFSETS_TOPIC: 2})


def test_every_role_is_another_nodes(cluster: AskedCluster) -> None:
    producer = Producer(cluster)
    for commit, offset in ((True, 5), (False, 9), (True, 7)):
        producer.add(0, 1)
        producer.write(0)
        producer.write(1)
        producer.commit_offset(offset)
        assert not is_settled(cluster, 0)
        producer.end(commit=commit)
        cluster.until(lambda: is_settled(cluster, 0) and is_settled(cluster, 1))
        assert committed_offset(cluster) == (offset if commit else 5)
    cluster.settle()


def test_a_prepared_transaction_is_ended_by_the_next_coordinator_that_nobody_has_asked(cluster: AskedCluster) -> None:
    producer = Producer(cluster)
    producer.add(0)
    producer.write(0)
    cut(cluster, 3, 1)
    leader = cluster.leader_of(TRANSACTION_STATE_TOPIC)
    producer.end()
    assert leader == cluster.leader_of(TRANSACTION_STATE_TOPIC) == 3
    assert not is_settled(cluster)
    cluster.kill(3)
    cluster.until(lambda: is_settled(cluster))
    assert producer.at_coordinator(EndTxnRequest(NAME, producer.id, producer.epoch, True), 3)
    cluster.settle()


def test_a_transaction_that_nobody_ends_is_aborted_by_the_next_coordinator(cluster: AskedCluster) -> None:
    producer = Producer(cluster)
    producer.add(0)
    producer.write(0)
    cluster.kill(3)
    cluster.run(30_000)
    assert not is_settled(cluster)
    cluster.until(lambda: is_settled(cluster), 40_000)


def test_markers_do_not_wait_for_a_leader_that_stands_still_and_was_given_up(cluster: AskedCluster) -> None:
    producer = Producer(cluster)
    producer.add(0, 1)
    producer.write(0)
    producer.write(1)
    life = cluster.hosts[1].life
    assert life is not None
    life.pause()
    producer.end()
    cluster.run(100)
    cluster.fence(1)
    cluster.until(lambda: is_settled(cluster, 0) and is_settled(cluster, 1), 2_000)
    cluster.settle()


def test_a_batch_is_verified_by_the_next_coordinator_where_the_last_one_stands_still(cluster: AskedCluster) -> None:
    producer = Producer(cluster)
    producer.add(0)
    life = cluster.hosts[3].life
    assert life is not None
    life.pause()
    asking = cluster.begin_asking(1, producer.request(0), 11)
    cluster.run(100)
    cluster.fence(3)
    cluster.until(lambda: asking.over, 2_000)
    assert asking.answer.responses[0].partition_responses[0].error_code in (E.NONE, E.NOT_ENOUGH_REPLICAS)
    producer.write(0)
    producer.end()
    cluster.until(lambda: is_settled(cluster))
    cluster.settle()


@pytest.mark.parametrize("dies", ["before the end", "before the marker"])
def test_offsets_of_a_transaction_outlive_their_coordinator(cluster: AskedCluster, dies: str) -> None:
    producer = Producer(cluster)
    producer.add(0)
    producer.write(0)
    producer.commit_offset(7)
    if dies == "before the marker":
        cut(cluster, 3, 2)
        producer.end()
        cluster.kill(2)
        cluster.world.network.mend()
    else:
        cluster.kill(2)
        producer.end()
    cluster.until(lambda: cluster.leader_of(CONSUMER_OFFSETS_TOPIC) not in (2, None))
    assert committed_offset(cluster) == 7
    cluster.settle()


def test_a_coordinator_that_was_replaced_ends_nothing(cluster: AskedCluster) -> None:
    """It has not heard so, and its clients believe in it."""
    producer = Producer(cluster)
    producer.add(0)
    producer.write(0)
    for other in (1, 2):
        cut(cluster, 3, other)
        cut(cluster, other, 3)
    cluster.deaf.add(3)
    asking = cluster.begin_asking(3, EndTxnRequest(NAME, producer.id, producer.epoch, True), 3)
    cluster.run(100)
    cluster.fence(3)
    cluster.until(lambda: cluster.leader_of(TRANSACTION_STATE_TOPIC) not in (3, None))
    producer.end(commit=False)
    cluster.until(lambda: is_settled(cluster))
    assert not asking.over
    aborted = log(cluster, 1).read(0, 1 << 20, Isolation.TXN_COMMITTED).aborted
    assert [each.producer_id for each in aborted] == [producer.id]
    cluster.settle()
    assert asking.answer is None or asking.answer.error_code != E.NONE


def test_what_was_verified_under_an_earlier_leadership_opens_nothing(cluster: AskedCluster) -> None:
    """The coordinator's word is late, and the transaction was ended at another leader meanwhile."""
    producer = Producer(cluster)
    producer.add(0)
    cut(cluster, 3, 1)
    asking = cluster.begin_asking(1, producer.request(0), 11)
    cluster.run(100)
    cluster.controller.move_leader(TOPIC, 0, 2)
    cluster.tell_all()
    producer.end(commit=False)
    cluster.until(lambda: is_settled(cluster) and log(cluster, 2).log_end_offset > 0)
    cluster.until(lambda: log(cluster, 1).log_end_offset > 0)
    cluster.controller.move_leader(TOPIC, 0, 1)
    cluster.tell_all()
    cluster.run(100)
    assert not asking.over
    cluster.world.network.mend()
    cluster.until(lambda: asking.over)
    assert asking.answer.responses[0].partition_responses[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    cluster.until(lambda: is_settled(cluster))
    cluster.settle()


def elect_uncleanly(cluster: AskedCluster, node_id: int) -> None:
    """This node leads the first partition from now on, whatever it lacks: an operator prefers that to none, and nothing
    counts as committed that it has not."""
    end = log(cluster, node_id).log_end_offset
    marks = cluster.checker._committed[0]
    marks.update({epoch: min(mark, end) for epoch, mark in marks.items()})
    placed = cluster.controller.image.partition(TOPIC, 0)
    assert placed is not None
    led = replace(placed.led_anew(node_id), isr=(node_id,), elr=(), recovering=True)
    cluster.controller._change({(TOPIC, 0): led})
    cluster.tell_all()


def test_a_marker_that_an_unclean_election_cuts_is_found_and_written_again(cluster: AskedCluster) -> None:
    """The coordinator has long ended the transaction, and no reader of committed records gets past it (KAFKA-20716):
    who asks the leader sees it open, who asks the coordinator does not, and an operator ends it."""
    producer = Producer(cluster)
    producer.add(0)
    producer.write(0)
    cluster.until(lambda: log(cluster, 2).log_end_offset == 1)
    cut(cluster, 1, 2)
    cut(cluster, 2, 1)
    producer.end()
    cluster.until(lambda: is_settled(cluster), 10_000)
    for node_id in (1, 3):
        cluster.kill(node_id)
    cluster.run(1_000)
    cluster.world.network.mend()
    elect_uncleanly(cluster, 2)
    cluster.until(lambda: cluster.leader_of(TOPIC) == 2)
    cluster.begin(1)
    cluster.begin(3)
    cluster.until(lambda: cluster.leader_of(TRANSACTION_STATE_TOPIC) is not None)
    cluster.run(5_000)
    assert log(cluster, 2).last_stable_offset == 0 < log(cluster, 2).high_watermark
    described = cluster.ask(2, DescribeProducersRequest([TopicRequest(TOPIC, [0])]))
    (open_there,) = described.topics[0].partitions[0].active_producers
    assert (open_there.producer_id, open_there.current_txn_start_offset) == (producer.id, 0)
    (known,) = cluster.ask_until(
        lambda: cluster.leader_of(TRANSACTION_STATE_TOPIC),
        DescribeTransactionsRequest([NAME]),
        lambda answer: answer.transaction_states[0].error_code == E.NONE,
    ).transaction_states
    assert (known.transaction_state, known.topics) == ("CompleteCommit", [])
    marker = WritableTxnMarker(producer.id, producer.epoch, False, [WritableTxnMarkerTopic(TOPIC, [0])], 1_000)
    cluster.ask(2, WriteTxnMarkersRequest([marker]), 1)
    cluster.until(lambda: is_settled(cluster))
    cluster.settle()


def begin_with_an_end_that_nobody_else_has(cluster: AskedCluster) -> Any:
    """The leader's log after a kill, whose snapshot of producers stands behind a marker that the others lack."""
    producer = Producer(cluster)
    producer.add(0)
    producer.write(0)
    producer.write(0)
    cluster.run(6_000)  # the checkpoint of high watermarks has these
    cut(cluster, 1, 2)
    producer.end()
    found = log(cluster, 1)
    cluster.until(lambda: found.log_end_offset == 3)
    assert (found.high_watermark, found.last_stable_offset) == (2, 0)
    found.roll(cluster.world.clock.now_ms)
    cluster.kill(1)
    cut(cluster, 2, 1)
    cut(cluster, 3, 1)
    cluster.begin(1)
    cluster.run(100)
    return log(cluster, 1)


def test_a_restart_keeps_in_mind_an_end_that_nobody_else_has(cluster: AskedCluster) -> None:
    found = begin_with_an_end_that_nobody_else_has(cluster)
    assert (found.log_end_offset, found.high_watermark, found.last_stable_offset) == (3, 2, 0)
    cluster.world.network.mend()
    cluster.until(lambda: is_settled(cluster))
    cluster.settle()


def test_a_restart_that_forgets_an_end_is_found(cluster: AskedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.log.producers._ended_in", lambda *_: iter(()))
    with pytest.raises(InvariantError, match=r"13: .*the end of its transaction"):
        begin_with_an_end_that_nobody_else_has(cluster)
