"""What clients are told of the other nodes of a cluster: who they are, where they are, and who coordinates what."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.k03_metadata import LEADERS_AWAITED_MS, LOOK_AGAIN_MS
from ottla.broker.cluster.members import LISTED_MS, NOBODY
from ottla.machine import Millis, Unanswered
from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX, NodeRecord, NodeState
from ottla.metadata.store import Delete, Put
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import DeletedTopic, PartitionRecord, TopicRecord
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.harness.node_stage import NodeStage, channel_of

ADDRESS = channel_of(1).identity.address


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    """Node 1 of a cluster with node 2 active, and node 3 fenced."""
    stage = NodeStage(tmp_path)
    stage.node.members.is_alone, stage.node.members.incarnation = False, "life"
    rows = {
        1: NodeRecord("internal-1", 19092),
        2: NodeRecord("internal-2", 19092, "b", {"PLAINTEXT": ("outside-2", 9092)}),
        3: NodeRecord("internal-3", 19092, state=NodeState.FENCED),
    }
    stage.store.commit([Put(f"{PREFIX}{node_id}", row.encode()) for node_id, row in rows.items()])
    stage.store.commit([Put(CONTROLLER_KEY, ControllerRecord(2, "life", 4).encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    return stage


def test_a_node_alone_is_the_cluster(tmp_path: Path) -> None:
    members = NodeStage(tmp_path).node.members
    assert members.shown(ADDRESS) == members.of(ADDRESS, [7, 1]) == [(1, "broker.example", 9092, None)]
    assert members.of(ADDRESS, []) == members.of(ADDRESS, [7]) == []
    assert members.controller_id == 1


def test_all_that_serve_are_shown_by_the_clients_listener(stage: NodeStage) -> None:
    """A client hears of this node by the address it came in by, of others by what they have registered for it."""
    assert stage.node.members.shown(ADDRESS) == [(1, "broker.example", 9092, None), (2, "outside-2", 9092, "b")]
    assert stage.node.members.of(ADDRESS, [2, 3, 2, NOBODY]) == [(2, "outside-2", 9092, "b")]
    assert stage.node.members.controller_id == 2


def test_every_node_names_the_controller_as_the_leader_of_the_quorum(stage: NodeStage) -> None:
    """Kafka's brokers forward the question to it. While there is none, clients ask again."""
    asked = DescribeQuorumRequest([RequestTopicData("__cluster_metadata", [RequestPartitionData(0)])])
    answer = stage.ask(asked)
    quorum = answer.topics[0].partitions[0]
    assert (quorum.leader_id, quorum.leader_epoch) == (2, 4)
    assert [voter.replica_id for voter in quorum.current_voters] == [2]
    assert [(each.node_id, each.listeners[0].host) for each in answer.nodes] == [(2, "outside-2")]
    stage.store.commit([Delete(CONTROLLER_KEY)])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    answer = stage.ask(asked)
    quorum = answer.topics[0].partitions[0]
    assert (quorum.error_code, quorum.leader_id, answer.nodes) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, NOBODY, [])


def test_a_node_that_was_taken_for_dead_is_listed_for_a_while(stage: NodeStage) -> None:
    """For as long as a Kafka takes to see that it died; a node that was never here, or has left, is not."""
    members = stage.node.members
    assert members.listed(stage.now, ADDRESS) == members.shown(ADDRESS)
    before = members.shown(ADDRESS)
    fenced = replace(stage.node.image.nodes["2"], state=NodeState.FENCED)
    stage.store.commit([Put(f"{PREFIX}2", fenced.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert members.shown(ADDRESS) == before[:1]
    assert members.listed(stage.now + LISTED_MS - 1, ADDRESS) == before
    assert members.listed(stage.now + LISTED_MS, ADDRESS) == before[:1]


def told_controllers(stage: NodeStage) -> tuple[int, int]:
    """What Metadata and DescribeCluster answer."""
    return stage.ask(MetadataRequest(topics=[])).controller_id, stage.ask(DescribeClusterRequest()).controller_id


@pytest.mark.parametrize("controller", [None, ControllerRecord(3, "life", 5)])
def test_a_node_takes_changes_itself_while_clients_can_reach_no_controller(
    stage: NodeStage, controller: ControllerRecord | None
) -> None:
    """There is none yet, or it is down. DescribeCluster says what is so."""
    assert told_controllers(stage) == (2, 2)
    stage.store.commit([Delete(CONTROLLER_KEY) if controller is None else Put(CONTROLLER_KEY, controller.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert told_controllers(stage) == (1, NOBODY if controller is None else 3)


@pytest.mark.parametrize("state", [NodeState.STARTING, NodeState.FENCED])
def test_a_node_that_has_yet_to_be_taken_in_lists_itself(stage: NodeStage, state: NodeState) -> None:
    """librdkafka drops a node that is not listed, and with it the request that it waits for there."""
    members = stage.node.members
    before = members.listed(stage.now, ADDRESS)
    own = replace(stage.node.image.nodes["1"], state=state)
    stage.store.commit([Put(f"{PREFIX}1", own.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert members.shown(ADDRESS) == before[1:]
    assert members.listed(stage.now + LISTED_MS, ADDRESS) == before


@pytest.mark.parametrize(
    ("leader", "is_doubted", "told"),
    [(2, False, (0, 2)), (2, True, (5, NOBODY)), (3, False, (5, NOBODY)), (NOBODY, False, (5, NOBODY))],
)
def test_clients_are_sent_to_leaders_that_are_there(
    stage: NodeStage, leader: int, is_doubted: bool, told: tuple[int, int]
) -> None:
    """Both APIs that tell of partitions, of which only Metadata calls it an error: LEADER_NOT_AVAILABLE."""
    placed = PartitionRecord((1, 2, 3), (1, 2), leader, leader_epoch=4, elr=(3,), last_known_elr=(2,))
    stage.store.commit([Put(f"{TOPIC_PREFIX}t", TopicRecord(bytes(15) + b"t", {}, (placed,)).encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    if is_doubted:
        lose(stage, 2)
    (topic,) = stage.ask(MetadataRequest(None)).topics
    (shown,) = topic.partitions
    assert (shown.error_code, shown.leader_id) == told
    assert (shown.leader_epoch, shown.isr_nodes, shown.offline_replicas) == (4, [1, 2], [3])
    (topic,) = stage.ask(DescribeTopicPartitionsRequest([TopicRequest("t")])).topics
    (shown,) = topic.partitions
    assert (shown.error_code, shown.leader_id, shown.offline_replicas) == (0, told[1], [3])
    assert (shown.eligible_leader_replicas, shown.last_known_elr) == ([3], [2])


def lose(stage: NodeStage, node_id: int) -> None:
    """A connection to that node breaks."""
    stage.node.peers.ask(stage.now, node_id, ListGroupsRequest(), Nobody())
    stage.settle()
    stage.node.answered(stage.now, stage.asks[-1].token, Unanswered("it is gone"))


def led_by(stage: NodeStage, leader: int) -> None:
    """The controller has this node lead the one partition of topic t."""
    placed = PartitionRecord((1, 2, 3), (1, 2), leader)
    stage.store.commit([Put(f"{TOPIC_PREFIX}t", TopicRecord(bytes(15) + b"t", {}, (placed,)).encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))


@pytest.mark.parametrize("named", [{"name": "t"}, {"topic_id": bytes(15) + b"t", "name": None}])
@pytest.mark.parametrize("elected", [1, NOBODY])
def test_who_asks_while_a_leader_is_lost_hears_of_the_next_one(
    stage: NodeStage, elected: int, named: dict[str, Any]
) -> None:
    """librdkafka asks again only after a second once it is told that there is none."""
    led_by(stage, 2)
    lose(stage, 2)
    asked = stage.send(MetadataRequest([MetadataRequestTopic(**named)]))
    stage.run(LEADERS_AWAITED_MS // 2)
    assert not asked.answered
    led_by(stage, elected)
    stage.run(LOOK_AGAIN_MS)
    assert asked.answer.topics[0].partitions[0].leader_id == elected


def test_nobody_waits_long_for_the_next_leader(stage: NodeStage) -> None:
    led_by(stage, 3)
    connections = [stage.connect(), stage.connect()]
    asked, gone = (
        stage.send(MetadataRequest([MetadataRequestTopic(name="t")]), connection=each) for each in connections
    )
    stage.hang_up(connections[1])
    stage.run(LEADERS_AWAITED_MS - 1)
    assert not asked.answered
    stage.run(1)
    assert asked.answer.topics[0].partitions[0].leader_id == NOBODY
    assert not gone.answered
    assert not len(stage.node.parking)


def test_all_that_wait_for_leaders_look_at_the_same_times(stage: NodeStage) -> None:
    """However many wait, the node looks once in LOOK_AGAIN_MS."""
    led_by(stage, 2)
    lose(stage, 2)
    for _ in range(LOOK_AGAIN_MS):
        stage.send(MetadataRequest([MetadataRequestTopic(name="t")]), connection=stage.connect())
        stage.run(1)
    looks: set[int | None] = set()
    for _ in range(4 * LOOK_AGAIN_MS):
        looks.add(stage.node.deadline())
        stage.run(1)
    assert len(looks) <= 6


class Nobody:
    """Asks, and does not care for the answer."""

    def answered(self, now: Millis, answer: object) -> None:
        pass


def test_rows_know_their_versions(stage: NodeStage) -> None:
    """A registration's own version is its broker epoch, until the row says another."""
    image = stage.node.image
    assert image.controller == ControllerRecord(2, "life", 4, version=image.generation)
    registered = image.nodes["2"]
    assert registered.broker_epoch == registered.version > 0
    kept = NodeRecord("internal-2", 19092, state=NodeState.LEAVING, broker_epoch=registered.broker_epoch)
    stage.store.commit([Put(f"{PREFIX}2", kept.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    changed = stage.node.image.nodes["2"]
    assert (changed.broker_epoch, changed.state) == (registered.broker_epoch, NodeState.LEAVING)
    assert changed.version > registered.version


def test_rows_of_older_stores_are_read() -> None:
    assert NodeRecord.decode(b'{"host": "h", "port": 1, "rack": null}') == NodeRecord("h", 1)
    whole = NodeRecord("h", 1, "r", {"CLIENTS": ("c", 2)}, "life", NodeState.LEAVING, False, 17)
    assert NodeRecord.decode(whole.encode()) == whole
    of_all = DeletedTopic.decode("deleted/" + "00" * 16, b'{"name": "t", "partitions": 2}')
    assert of_all == DeletedTopic(bytes(16), "t", 2, None)
    of_one = DeletedTopic(bytes(16), "t", 2, 3)
    assert DeletedTopic.decode(of_one.key, of_one.encode()) == of_one
