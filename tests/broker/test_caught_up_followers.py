"""A follower's fetch names many partitions and reads those that have moved: of the others it is told nothing, and is
known to be caught up with them."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import fetch_reading
from ottla.broker.replication.replication import Replication
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData, ReplicaState
from ottla.replica.isr_history import Cause
from tests.broker.test_leading import NODE, send
from tests.broker.test_nearby_replicas import tell_nodes
from tests.harness import other_writer
from tests.harness.node_stage import NodeStage

PARTITIONS = 20
MOVED = 7


class Follower:
    """Node 2, which follows every partition of t in one session."""

    def __init__(self, stage: NodeStage) -> None:
        self.stage = stage
        self.session_id = self.epoch = 0
        self.read: list[int] = []
        self.fetch(dict.fromkeys(range(PARTITIONS), 1))
        assert self.fetch() == {}, "it was told where each begins and ends"

    def fetch(self, asked: dict[int, int] | None = None, broker_epoch: int | None = None) -> dict[int, PartitionData]:
        """What it is told, by partition; `asked`: the offsets that it is at now where that is news."""
        stage = self.stage
        if broker_epoch is None:
            broker_epoch = stage.node.image.nodes["2"].broker_epoch
        parts = [FetchPartition(index, 1, at, -1, 0, 1 << 20) for index, at in (asked or {}).items()]
        body = FetchRequest(
            None,
            -1,
            ReplicaState(2, broker_epoch),
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=[FetchTopic(topic_id=stage.node.image.topics["t"].id, partitions=parts)] if parts else [],
        )
        self.read.clear()
        answer = send(stage, body, NODE).answer
        self.session_id, self.epoch = answer.session_id, self.epoch + 1
        return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follower:
    """Node 1 leads all partitions of t, with a record in each; nodes 2 and 3 are in sync."""
    stage = NodeStage(tmp_path)
    stage.create("t", PARTITIONS)
    tell_nodes(stage)
    for index in range(PARTITIONS):
        stage.append("t", index)
        place(stage, index, isr=(1, 2, 3), leader_epoch=1)
    made = Follower(stage)
    read_one = fetch_reading.read_one

    def noted(node: Any, fetch: Any, asked: Any, *rest: Any) -> Any:
        made.read.append(asked.index)
        return read_one(node, fetch, asked, *rest)

    monkeypatch.setattr(fetch_reading, "read_one", noted)
    return made


def place(stage: NodeStage, index: int, **changes: Any) -> None:
    wanted = {"leader": 1, "replicas": (1, 2, 3)} | changes
    other_writer.place(stage.node, stage.store, stage.now, "t", index, **wanted)


def partition_of(follower: Follower, index: int = MOVED) -> Any:
    return follower.stage.node.replicas.by_name["t"].partitions[index]


def test_the_node_remembers_how_far_a_follower_was_behind_when_it_left(follower: Follower) -> None:
    stage = follower.stage
    stage.append("t", MOVED)
    stage.append("t", MOVED)
    stage.run(2_000)
    follower.fetch()
    asked = stage.send(DescribeObservationsRequest())
    stage.run()
    (behind,) = [each for each in asked.answer.followers if each.node_id == 2]
    assert (behind.topic_name, behind.partition_index, behind.node_id) == ("t", MOVED, 2)
    assert (behind.is_in_sync, behind.records_behind, behind.silent_ms) == (True, 2, 0)
    never = [each for each in asked.answer.followers if each.node_id == 3]
    assert {(each.records_behind, each.silent_ms) for each in never} == {(-1, -1)}
    for index in range(PARTITIONS):
        place(stage, index, isr=(1, 3), leader_epoch=1)
    asked = stage.send(DescribeObservationsRequest())
    stage.run()
    (change,) = asked.answer.isr_changes
    assert (change.node_id, change.cause, change.partition_count) == (2, Cause.REMOVED, PARTITIONS)
    assert (change.topic_name, change.partition_index, change.records_behind) == ("t", MOVED, 2)
    assert {each.is_in_sync for each in asked.answer.followers if each.node_id == 2} == {False}


def test_what_has_not_moved_is_not_read(follower: Follower) -> None:
    assert follower.fetch() == {}
    assert follower.read == []


def test_only_what_has_moved_is_read(follower: Follower) -> None:
    follower.stage.append("t", MOVED)
    told = follower.fetch()
    assert follower.read == [MOVED]
    assert list(told) == [MOVED]
    assert told[MOVED].records
    assert follower.fetch({MOVED: 2}) == {}
    assert follower.read == [MOVED], "it says where it is now"
    assert follower.fetch() == {}
    assert follower.read == []


def test_it_is_told_of_the_high_watermark_that_another_follower_moves(follower: Follower) -> None:
    follower.stage.append("t", MOVED)
    follower.fetch()
    follower.fetch({MOVED: 2})
    partition = partition_of(follower)
    assert partition.log.high_watermark == 1
    epoch = follower.stage.node.image.nodes["3"].broker_epoch
    follower.stage.node.replication.fetched(follower.stage.now, partition, 3, epoch, 2, 0, 2)
    assert follower.fetch()[MOVED].high_watermark == 2


def test_it_is_told_of_a_new_start_of_the_log(follower: Follower) -> None:
    partition_of(follower).log.delete_records_before(1)
    assert follower.fetch()[MOVED].log_start_offset == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"leader": 3, "leader_epoch": 2, "isr": (1, 2, 3)}, E.FENCED_LEADER_EPOCH),
        ({"leader": 1, "leader_epoch": 2, "isr": (1, 2, 3)}, E.FENCED_LEADER_EPOCH),
        ({"replicas": (1, 3), "isr": (1, 3), "leader_epoch": 1}, E.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_it_is_told_that_it_follows_no_more(follower: Follower, change: dict[str, Any], error: E) -> None:
    place(follower.stage, MOVED, **change)
    assert follower.fetch()[MOVED].error_code == error


def test_it_is_told_of_a_topic_that_is_gone(follower: Follower) -> None:
    follower.stage.delete("t")
    assert {part.error_code for part in follower.fetch().values()} == {E.UNKNOWN_TOPIC_ID}


def test_a_leader_that_has_lost_its_cluster_says_so(follower: Follower) -> None:
    follower.stage.node.leadership.suspended = True
    assert {part.error_code for part in follower.fetch().values()} == {E.NOT_LEADER_OR_FOLLOWER}


def test_it_is_known_to_be_caught_up(follower: Follower) -> None:
    """It stays in sync when records come after a long rest, however few times its partitions were read."""
    stage, partition = follower.stage, partition_of(follower)
    place(stage, MOVED, isr=(1, 2), leader_epoch=1)
    follower.fetch()
    for _ in range(100):
        stage.run(500)
        follower.fetch()
        assert follower.read == []
    known = partition.followers.followers[2]
    assert known.caught_up_ms == known.last_fetch_ms == stage.now
    stage.append("t", MOVED)
    assert partition.followers.shrink(stage.now, partition.log.log_end_offset) is None


def test_a_new_life_of_it_is_looked_at(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[int] = []
    monkeypatch.setattr(Replication, "fetched", lambda *args: noted.append(args[4]))
    epoch = follower.stage.node.image.nodes["2"].broker_epoch + 1
    follower.fetch(broker_epoch=epoch)
    assert noted == [epoch] * PARTITIONS


def test_who_is_not_in_sync_is_looked_at_each_time(follower: Follower) -> None:
    place(follower.stage, MOVED, isr=(1, 3), leader_epoch=1)
    follower.fetch()
    assert follower.read == [MOVED]
    follower.fetch()
    assert follower.read == [MOVED], "it wants to join"
