"""What a controller answers to who moves replicas, and what the nodes make of it that have or lose one."""

from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from ottla.broker.cluster.membership import Joining
from ottla.broker.partitions.partition import Partition
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord, NodeState
from ottla.metadata.store import Delete, Put
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    RequestPartitionData,
    RequestTopicData,
)
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.broker.test_leading import NODE, part_of, produce, produced, send
from tests.broker.test_leading import fetch as followers_fetch
from tests.harness import other_writer
from tests.harness.node_stage import NodeStage

ID = bytes(range(1, 17))


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    """Node 1 of a cluster and its controller; 2 and 3 are active, 4 is fenced. All three have t-0."""
    stage = NodeStage(tmp_path / "node", joining=Joining("here", 9092, "life-1", 1 << 40))
    membership = stage.node.membership
    assert membership is not None
    membership.confirmed(stage.now)
    membership.seen(stage.now, {1: "life-1"})
    stage.settle()
    rows = {
        f"{NODE_PREFIX}{node_id}": NodeRecord("there", 9092, incarnation=f"life-{node_id}", state=state).encode()
        for node_id, state in ((2, NodeState.ACTIVE), (3, NodeState.ACTIVE), (4, NodeState.FENCED))
    }
    stage.store.commit([Put(key, value) for key, value in rows.items()])
    membership.seen(stage.now, {node_id: f"life-{node_id}" for node_id in (1, 2, 3)})
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    stage.settle()
    assert stage.node.members.is_controller
    record = TopicRecord(ID, {"min.insync.replicas": "2"}, (PartitionRecord((1, 2, 3), (1, 2, 3), 1),))
    stage.store.commit([Put(key_of("t"), record.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert partition_of(stage).leads
    return stage


def partition_of(stage: NodeStage) -> Partition:
    return stage.node.replicas.by_name["t"].partitions[0]


def placed(stage: NodeStage, index: int = 0) -> PartitionRecord:
    return stage.node.image.topics["t"].partitions[index]


def move(stage: NodeStage, target: list[int] | None, *, index: int = 0, resize: bool = True, topic: str = "t") -> Any:
    asked = ReassignableTopic(topic, [ReassignablePartition(index, target)])
    answer = stage.ask(AlterPartitionReassignmentsRequest(allow_replication_factor_change=resize, topics=[asked]))
    assert answer.error_code == E.NONE
    return answer.responses[0].partitions[0]


def moving(stage: NodeStage, *named: tuple[str, list[int]]) -> Any:
    topics = [ListPartitionReassignmentsTopics(*each) for each in named] or None
    answer = stage.ask(ListPartitionReassignmentsRequest(topics=topics))
    return [
        (topic.name, part.partition_index, part.replicas, part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
    ]


def in_sync(stage: NodeStage, *isr: int) -> Any:
    """Node 1, as the leader, says who is in sync."""
    epochs = {int(name): record.broker_epoch for name, record in stage.node.image.nodes.items()}
    states = [BrokerState(each, epochs[each]) for each in isr]
    now = placed(stage)
    part = RequestPartitionData(0, now.leader_epoch, [], states, 0, now.partition_epoch)
    asked = send(stage, AlterPartitionRequest(1, epochs[1], [RequestTopicData(ID, [part])]), NODE)
    stage.run()
    return asked.answer.topics[0].partitions[0]


# ---- the controller ------------------------------------------------------------------------------------------------


def test_replicas_are_moved_and_listed_until_they_have_arrived(stage: NodeStage) -> None:
    assert moving(stage) == []
    in_sync(stage, 1, 2)
    assert move(stage, [3, 2]).error_code == E.NONE
    assert moving(stage) == moving(stage, ("t", [0, 9]), ("no", [0])) == [("t", 0, [3, 2, 1], [], [1])]
    assert moving(stage, ("t", [])) == moving(stage, ("u", [0])) == []
    # Node 1 is what has to go: it is told that somebody else leads.
    assert in_sync(stage, 1, 2, 3).error_code == E.NEW_LEADER_ELECTED
    assert placed(stage) == PartitionRecord((3, 2), (3, 2), 3, 1, placed(stage).partition_epoch)
    assert moving(stage) == []


def test_compaction_knows_of_replicas_that_are_away_or_yet_to_arrive(stage: NodeStage) -> None:
    """Tombstones and markers stay for these (`Compaction`)."""
    compactions, partition = stage.node.upkeep.compactions, partition_of(stage)
    assert compactions.in_sync(partition)
    in_sync(stage, 1, 2)
    assert not compactions.in_sync(partition)
    in_sync(stage, 1, 2, 3)
    assert compactions.in_sync(partition)
    move(stage, [4, 1, 2])
    assert not compactions.in_sync(partition)


def test_a_move_to_a_node_that_is_down_waits_for_it_and_may_be_cancelled(stage: NodeStage) -> None:
    assert move(stage, [4, 1, 2]).error_code == E.NONE
    assert moving(stage) == [("t", 0, [4, 1, 2, 3], [4], [3])]
    assert move(stage, [1, 2, 3, 4]).error_code == E.NONE, "another one takes its place"
    assert moving(stage) == [("t", 0, [1, 2, 3, 4], [4], [])]
    assert move(stage, None).error_code == E.NONE
    assert (placed(stage).replicas, placed(stage).isr, placed(stage).leader) == ((1, 2, 3), (1, 2, 3), 1)
    assert move(stage, None).error_code == E.NO_REASSIGNMENT_IN_PROGRESS


def test_cancelling_that_would_lose_records_is_refused(stage: NodeStage) -> None:
    other_writer.place(
        stage.node, stage.store, stage.now, "t", 0, replicas=(3, 2, 1), isr=(3,), leader=3, adding=(3, 2), removing=(1,)
    )
    refused = move(stage, None)
    assert refused.error_code == E.INVALID_REPLICA_ASSIGNMENT
    assert refused.error_message == (
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election."
    )


@pytest.mark.parametrize(
    ("target", "error", "sentence"),
    [
        ([], E.INVALID_REPLICA_ASSIGNMENT, "The manual partition assignment includes an empty replica list."),
        ([1, 9], E.INVALID_REPLICA_ASSIGNMENT, "includes broker 9, but no such broker is registered."),
        ([3, 1, 3], E.INVALID_REPLICA_ASSIGNMENT, "includes the broker 3 more than once."),
        ([-1], E.INVALID_REPLICA_ASSIGNMENT, "includes broker -1, but no such broker is registered."),
        ([1, 2], E.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 3 to 2"),
        (None, E.NO_REASSIGNMENT_IN_PROGRESS, ""),
    ],
)
def test_what_cannot_be_is_refused_as_kafka_does(
    stage: NodeStage, target: list[int] | None, error: E, sentence: str
) -> None:
    generation = stage.store.generation
    refused = move(stage, target, resize=False)
    assert (refused.error_code, (refused.error_message or "").endswith(sentence)) == (error, True)
    assert stage.store.generation == generation
    assert move(stage, [3, 1, 2], resize=False).error_code == E.NONE
    assert (
        move(stage, [1], index=7).error_code == move(stage, [1], topic="u").error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_nodes_that_are_down_have_replicas_where_there_are_too_few_others(stage: NodeStage) -> None:
    """They are behind those that can lead at once, and in sync when they are back (StripedReplicaPlacer)."""

    def made(name: str, factor: int) -> Any:
        return stage.ask(CreateTopicsRequest(topics=[CreatableTopic(name, 6, factor)])).topics[0]

    def grown(name: str, total: int) -> Any:
        return stage.ask(CreatePartitionsRequest([CreatePartitionsTopic(name, total, None)])).results[0]

    def placed_nodes(name: str) -> list[PartitionRecord]:
        return list(stage.node.image.topics[name].partitions)

    assert made("without", 3).error_code == E.NONE
    assert all(4 not in each.replicas for each in placed_nodes("without"))
    assert made("with", 4).error_code == grown("with", 9).error_code == E.NONE
    assert len(placed_nodes("with")) == 9
    for each in placed_nodes("with"):
        assert sorted(each.isr) == [1, 2, 3]
        assert each.replicas == (*each.isr, 4)
        assert each.leader == each.replicas[0]
    refused = made("more", 5)
    assert refused.error_code == E.INVALID_REPLICATION_FACTOR
    assert refused.error_message == (
        "Unable to replicate the partition 5 time(s): The target replication factor of 5 cannot be reached because "
        "only 4 broker(s) are registered."
    )


def test_partitions_are_given_to_nodes_by_hand(stage: NodeStage) -> None:
    """Also to one that is down, as long as another one of them can lead."""

    def made(name: str, *assigned: list[int]) -> Any:
        given = [CreatableReplicaAssignment(index, brokers) for index, brokers in enumerate(assigned)]
        return stage.ask(CreateTopicsRequest(topics=[CreatableTopic(name, -1, -1, given)])).topics[0]

    def grown(*assigned: list[int]) -> Any:
        given = [CreatePartitionsAssignment(brokers) for brokers in assigned]
        return stage.ask(CreatePartitionsRequest([CreatePartitionsTopic("t", 1 + len(assigned), given)])).results[0]

    assert made("u", [4, 2], [3, 1]).error_code == E.NONE
    partitions = stage.node.image.topics["u"].partitions
    assert [(each.replicas, each.isr, each.leader) for each in partitions] == [((4, 2), (2,), 2), ((3, 1), (3, 1), 3)]
    uneven, down = made("v", [1, 2], [3]), made("v", [1], [4])
    assert uneven.error_message.endswith(
        "1 replica(s), but this is not consistent with previous partitions, which have 2 replica(s)."
    )
    assert down.error_message == (
        "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled shutdown."
    )
    assert grown([1, 2]).error_message.endswith("which have 3 replica(s).")
    assert grown([4, 2, 1]).error_code == E.NONE
    assert (placed(stage, 1).isr, placed(stage, 1).leader) == ((2, 1), 2)


# ---- nodes that have a replica, or lose it -------------------------------------------------------------------------


def test_who_was_the_only_replica_begins_to_have_followers(stage: NodeStage) -> None:
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, replicas=(1,), isr=(1,), leader_epoch=1)
    assert produced(produce(stage)) == (E.NONE, 0)
    move(stage, [1, 2])
    assert (placed(stage).leader_epoch, partition_of(stage).leads) == (1, True)
    assert produced(produce(stage))[0] == E.NOT_ENOUGH_REPLICAS, "two shall be in sync now"
    assert part_of(followers_fetch(stage, 0)).records
    followers = partition_of(stage).followers
    assert followers is not None
    assert (followers.isr, followers.proposal) == ((1,), None)
    followers_fetch(stage, 1)
    stage.run()
    assert (placed(stage).isr, placed(stage).is_moving) == ((1, 2), False)
    waiting = produce(stage)
    assert not waiting.answered
    followers_fetch(stage, 2)
    assert produced(waiting) == (E.NONE, 1)


def test_a_directory_goes_with_its_replica_and_not_before(stage: NodeStage) -> None:
    directory = Path(str(stage.directory)) / "t-0"
    produce(stage, acks=1)
    in_sync(stage, 1, 2)
    move(stage, [2, 3])
    assert directory.exists()
    in_sync(stage, 1, 2, 3)
    stage.run(1000)
    assert placed(stage).replicas == (2, 3)
    assert not directory.exists()
    assert "t" not in stage.node.replicas.by_name


@pytest.mark.parametrize("others", [0, 1])
def test_a_replica_that_comes_back_at_once_begins_anew(stage: NodeStage, others: int) -> None:
    """The removal of the old directory must not take the new one away, whether or not the node has other partitions of
    the topic."""
    if others:
        stage.ask(CreatePartitionsRequest([CreatePartitionsTopic("t", 2, [CreatePartitionsAssignment([1, 2, 3])])]))
    produce(stage, acks=1)
    other_writer.place(
        stage.node, stage.store, stage.now, "t", 0, replicas=(2, 3), isr=(2, 3), leader=2, leader_epoch=1
    )
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, replicas=(2, 3, 1), adding=(1,))
    assert partition_of(stage).log.log_end_offset == 0
    stage.run(1000)
    assert partition_of(stage).log.failed is None
    assert not partition_of(stage).log.unopened


def test_a_replica_that_comes_back_does_not_begin_with_what_another_process_has_restored(stage: NodeStage) -> None:
    """The leader counts on a new replica for what it has fetched, so old records must not be there before."""
    directory, backup = Path(str(stage.directory)) / "t-0", Path(str(stage.directory)).parent / "backup"
    produce(stage, acks=1)
    copytree(directory, backup)
    other_writer.place(
        stage.node, stage.store, stage.now, "t", 0, replicas=(2, 3), isr=(2, 3), leader=2, leader_epoch=1
    )
    stage.run(1000)
    copytree(backup, directory)
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, replicas=(2, 3, 1), adding=(1,))
    assert partition_of(stage).log.log_end_offset == 0
    assert not partition_of(stage).log.unopened
    (stray,) = directory.parent.glob("t-0.*-stray")
    assert (stray / f"{0:020d}.log").stat().st_size > 0


def test_a_replica_that_was_moved_while_the_node_was_down_goes_with_its_start(stage: NodeStage) -> None:
    directory = Path(str(stage.directory)) / "t-0"
    produce(stage, acks=1)
    stage.end()
    record = TopicRecord(ID, {}, (PartitionRecord((2, 3), (2, 3), 2, 9, 99),))
    stage.store.commit([Put(key_of("t"), record.encode())])
    stage.joining = Joining("here", 9092, "life-1b", 1 << 40)
    stage.start()
    assert not directory.exists()


@pytest.mark.parametrize("made_again", ["before the start", "after the start"])
def test_a_new_topic_never_has_the_records_of_one_that_the_store_has_lost(stage: NodeStage, made_again: str) -> None:
    """The store was restored from a backup that is older than the topic; its name is used again."""
    produce(stage, acks=1)
    stage.end()
    new = TopicRecord(ID[::-1], {}, (PartitionRecord((1, 2), (1, 2), 2, 1, 1),))
    rows = [Put(key_of("t"), new.encode())] if made_again == "before the start" else [Delete(key_of("t"))]
    stage.store.commit(rows)
    stage.joining = Joining("here", 9092, "life-1b", 1 << 40)
    stage.start()
    if made_again == "after the start":
        assert any("holds topic t of which the metadata store knows nothing" in note for note in stage.notes)
        stage.store.commit([Put(key_of("t"), new.encode())])
        stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert partition_of(stage).log.log_end_offset == 0
    assert not partition_of(stage).log.unopened
    (stray,) = Path(str(stage.directory)).glob("t-0.*-stray")
    assert (stray / f"{0:020d}.log").stat().st_size > 0


def test_what_an_answer_of_the_controller_left_out_the_image_tells(stage: NodeStage) -> None:
    """Its answer to a leader names the in-sync replicas only; the image of the same epoch names all."""
    followers = partition_of(stage).followers
    assert followers is not None
    epoch = followers.partition_epoch
    assert not followers.metadata(stage.now, (1, 2, 3, 4), (1, 2, 3), followers.leader_epoch, epoch, 0)
    assert list(followers.followers) == [2, 3, 4]
    assert not followers.metadata(stage.now, (1, 2), (1, 2), followers.leader_epoch, epoch - 1, 0)
    assert list(followers.followers) == [2, 3, 4]


# ---- leaders that go back ------------------------------------------------------------------------------------------


def test_leaders_are_the_preferred_replicas_again_after_a_while(stage: NodeStage) -> None:
    """Where these are in sync, and as often as leader.imbalance.check.interval.seconds says."""
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, leader=2, leader_epoch=1)
    stage.run(299_000)
    assert placed(stage).leader == 2
    stage.run(2_000)
    assert (placed(stage).leader, placed(stage).leader_epoch) == (1, 2)
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, leader=2, leader_epoch=3, isr=(2, 3))
    stage.run(600_000)
    assert placed(stage).leader == 2, "node 1 is not in sync"


def test_leaders_stay_where_auto_leader_rebalance_is_off(stage: NodeStage) -> None:
    stage.settings["auto.leader.rebalance.enable"] = "false"
    stage.node.settings.current = stage.node.settings.current.__class__.load(stage.settings, {})
    other_writer.place(stage.node, stage.store, stage.now, "t", 0, leader=2, leader_epoch=1)
    stage.run(900_000)
    assert placed(stage).leader == 2


# ---- too few replicas in sync --------------------------------------------------------------------------------------


def test_a_transaction_coordinator_writes_nothing_below_min_isr(stage: NodeStage) -> None:
    """Kafka's transaction log enforces acks=all; groups use acks=1, and their answers wait for the high watermark."""

    def in_sync_are(isr: tuple[int, ...]) -> Partition:
        known = stage.node.image.topics.get(TRANSACTION_STATE_TOPIC)
        epoch = 0 if known is None else known.partitions[0].partition_epoch + 1
        record = TopicRecord(ID[::-1], {"min.insync.replicas": "2"}, (PartitionRecord((1, 2, 3), isr, 1, 0, epoch),))
        stage.store.commit([Put(key_of(TRANSACTION_STATE_TOPIC), record.encode())])
        stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
        stage.settle()
        return stage.node.replicas.by_name[TRANSACTION_STATE_TOPIC].partitions[0]

    log = in_sync_are((1,)).log
    wanted = InitProducerIdRequest("tx", 60_000)
    assert stage.ask(wanted).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert log.log_end_offset == 0
    described = stage.ask(DescribeTransactionsRequest(["tx"])).transaction_states[0]
    assert described.error_code == E.TRANSACTIONAL_ID_NOT_FOUND, "a question is answered"
    in_sync_are((1, 2))
    asked = send(stage, wanted, NODE)
    stage.settle()
    assert log.log_end_offset == 1
    assert asked.answer is None, "it waits for the other replica"
