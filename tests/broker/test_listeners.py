"""Every answer that names a node names it by the listener that the client used, on each of two nodes."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.broker_table import RACK_AWARE_SELECTOR
from ottla.broker.requests import Listening
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import BETWEEN_NODES, PREFIX, NodeRecord, NodeState
from ottla.metadata.store import Put
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from ottla.protocol.messages.share_fetch import FetchPartition as SharePartition
from ottla.protocol.messages.share_fetch import FetchTopic as ShareTopic
from ottla.protocol.messages.share_fetch import ShareFetchRequest
from ottla.protocol.records.record import Record, build_batch
from tests.broker import test_nearby_replicas as nearby
from tests.harness.node_pair import Endpoints, NodePair

NODES = (1, 2)
BATCH = bytes(build_batch([Record(0, 1_800_000_000_000, b"k", b"v")]))
BROKER = 4


def endpoints_of(node_id: int) -> Endpoints:
    """Node 1 alone has the listener ADMIN."""
    of_all = {BETWEEN_NODES: ("in", node_id), "INTERNAL": ("in", node_id), "EXTERNAL": ("out", node_id)}
    return of_all | ({"ADMIN": ("admin", 1)} if node_id == 1 else {})


@pytest.fixture
def pair(tmp_path: Path) -> NodePair:
    """Two nodes; each leads the partition of topic t that has its number, less one."""
    pair = NodePair(
        tmp_path,
        {node_id: endpoints_of(node_id) for node_id in NODES},
        offsets_topic_replication_factor="1",
        share_coordinator_state_topic_replication_factor="1",
        share_coordinator_state_topic_num_partitions="2",
    )
    placed = [CreatableReplicaAssignment(0, [1]), CreatableReplicaAssignment(1, [2])]
    (made,) = pair.ask(1, CreateTopicsRequest([CreatableTopic("t", -1, -1, placed)])).topics
    assert made.error_code == E.NONE
    return pair


def connect(pair: NodePair, node_id: int, listener: str) -> int:
    return pair.stages[node_id].connect(listener, endpoints_of(node_id)[listener])


def ask(pair: NodePair, node_id: int, listener: str, message: Any, version: int | None = None) -> Any:
    return pair.ask(node_id, message, version, connect(pair, node_id, listener))


def addresses(named: Iterable[Any]) -> list[tuple[int, str, int]]:
    return [(each[0], each.host, each.port) if isinstance(each, tuple) else of(each) for each in named]


def of(each: Any) -> tuple[int, str, int]:
    node_id = getattr(each, "node_id", None)
    return each.broker_id if node_id is None else node_id, each.host, each.port


def id_of(pair: NodePair) -> bytes:
    return pair.stages[1].node.image.topics["t"].id


@pytest.mark.parametrize("node_id", NODES)
@pytest.mark.parametrize(("listener", "host"), [("INTERNAL", "in"), ("EXTERNAL", "out")])
def test_every_answer_names_nodes_by_the_listener_of_the_client(
    pair: NodePair, node_id: int, listener: str, host: str
) -> None:
    other = 3 - node_id
    index, topic_id = other - 1, id_of(pair)
    both, elsewhere = [(1, host, 1), (2, host, 2)], [(other, host, other)]
    assert addresses(ask(pair, node_id, listener, MetadataRequest(None)).brokers) == both
    assert addresses(ask(pair, node_id, listener, DescribeClusterRequest()).brokers) == both

    found = ask(pair, node_id, listener, FindCoordinatorRequest("", 0, [f"g{number}" for number in range(8)]))
    assert {of(each) for each in found.coordinators} == set(both)
    found = ask(pair, node_id, listener, FindCoordinatorRequest("g0"), 3)
    assert of(found) in both

    produced = [TopicProduceData("t", topic_id, [PartitionProduceData(index, BATCH)])]
    answer = ask(pair, node_id, listener, ProduceRequest(acks=-1, timeout_ms=1000, topic_data=produced))
    assert answer.responses[0].partition_responses[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert addresses(answer.node_endpoints) == elsewhere

    fetched = [FetchTopic("t", topic_id, [FetchPartition(index, -1, 0, -1, -1, 1 << 20)])]
    answer = ask(pair, node_id, listener, FetchRequest(max_wait_ms=0, min_bytes=1, topics=fetched))
    assert answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert addresses(answer.node_endpoints) == elsewhere


@pytest.mark.parametrize("node_id", NODES)
@pytest.mark.parametrize(("listener", "host"), [("INTERNAL", "in"), ("EXTERNAL", "out")])
def test_share_members_are_sent_to_the_listener_that_they_use(
    pair: NodePair, node_id: int, listener: str, host: str
) -> None:
    other = 3 - node_id
    index, topic_id, connection = other - 1, id_of(pair), connect(pair, node_id, listener)
    elsewhere = [(other, host, other)]
    member = "AAAAAAAAAAAAAAAAAAAAAQ"
    topics = [ShareTopic(topic_id, [SharePartition(index)])]
    body = ShareFetchRequest("g", member, 0, 0, 1, max_records=10, batch_size=10, topics=topics)
    answer = pair.ask(node_id, body, connection=connection)
    assert answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert addresses(answer.node_endpoints) == elsewhere
    batches = [AcknowledgePartition(index, [AcknowledgementBatch(0, 0, [1])])]
    body = ShareAcknowledgeRequest("g", member, 1, topics=[AcknowledgeTopic(topic_id, batches)])
    answer = pair.ask(node_id, body, connection=connection)
    assert answer.responses[0].partitions[0].error_code == E.NOT_LEADER_OR_FOLLOWER
    assert addresses(answer.node_endpoints) == elsewhere


def test_a_node_without_the_listener_is_left_out(pair: NodePair) -> None:
    """Its partitions are LISTENER_NOT_FOUND to clients that know this error, as in Kafka."""
    assert addresses(ask(pair, 1, "ADMIN", MetadataRequest(None)).brokers) == [(1, "admin", 1)]
    assert addresses(ask(pair, 1, "ADMIN", DescribeClusterRequest()).brokers) == [(1, "admin", 1)]
    asked = MetadataRequest([MetadataRequestTopic(name="t")])
    for version, error in ((13, E.LISTENER_NOT_FOUND), (6, E.LISTENER_NOT_FOUND), (5, E.LEADER_NOT_AVAILABLE)):
        here, there = ask(pair, 1, "ADMIN", asked, version).topics[0].partitions
        assert (here.error_code, here.leader_id, here.offline_replicas) == (E.NONE, 1, [])
        assert (there.error_code, there.leader_id, there.offline_replicas) == (error, -1, [2])
        assert (there.replica_nodes, there.isr_nodes) == ([2], [2])
    (topic,) = ask(pair, 1, "ADMIN", DescribeTopicPartitionsRequest([TopicRequest("t")])).topics
    assert [(part.error_code, part.leader_id) for part in topic.partitions] == [(E.NONE, 1), (E.NONE, -1)]
    asked = FindCoordinatorRequest("", 0, [f"g{number}" for number in range(8)])
    found = ask(pair, 1, "ADMIN", asked).coordinators
    assert {(each.error_code, *of(each)) for each in found} == {
        (E.NONE, 1, "admin", 1),
        (E.COORDINATOR_NOT_AVAILABLE, -1, "", -1),
    }
    produced = [TopicProduceData("t", id_of(pair), [PartitionProduceData(1, BATCH)])]
    answer = ask(pair, 1, "ADMIN", ProduceRequest(acks=-1, timeout_ms=1000, topic_data=produced))
    part = answer.responses[0].partition_responses[0]
    assert (part.error_code, part.current_leader.leader_id) == (E.NOT_LEADER_OR_FOLLOWER, 2)
    assert answer.node_endpoints == []


def test_a_node_of_the_version_before_has_one_address_for_every_listener(pair: NodePair) -> None:
    """Its row has an endpoint PLAINTEXT, whatever its listeners are called; the oldest rows have none at all."""
    stage = pair.stages[1]
    known = stage.node.image.nodes["2"]
    for endpoints in ({"PLAINTEXT": ("old", 2)}, {}):
        row = replace(known, host="old", port=2, endpoints=endpoints, version=0)
        stage.store.commit([Put(f"{PREFIX}2", row.encode())])
        stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
        for listener, own in (("INTERNAL", "in"), ("EXTERNAL", "out"), ("ADMIN", "admin")):
            brokers = ask(pair, 1, listener, MetadataRequest(None)).brokers
            assert addresses(brokers) == [(1, own, 1), (2, "old", 2)]


def test_an_older_controller_keeps_what_a_row_says_of_listeners(pair: NodePair) -> None:
    """It writes the fields that it knows: host, port and all endpoints. It names the node by the first two, or by the
    endpoint PLAINTEXT."""
    row = pair.stages[1].node.image.nodes["2"]
    assert (row.host, row.port) == ("127.0.0.1", 9002)
    again = NodeRecord.decode(replace(row, state=NodeState.LEAVING).encode())
    assert again.endpoints == row.endpoints == endpoints_of(2)
    assert again.endpoint("ADMIN") is None
    assert again.endpoint("EXTERNAL") == ("out", 2)


def test_a_consumer_is_sent_to_no_replica_that_lacks_its_listener(tmp_path: Path) -> None:
    stage = nearby.made(tmp_path, replica_selector_class=RACK_AWARE_SELECTOR)
    assert nearby.sent_to(stage) in (2, 3)
    for node_id, listeners in ((2, {"INTERNAL": ("in", 2)}), (3, {"PLAINTEXT": ("out", 3)})):
        row = replace(
            stage.node.image.nodes[str(node_id)], endpoints={BETWEEN_NODES: ("in", 9), **listeners}, version=0
        )
        stage.store.commit([Put(f"{PREFIX}{node_id}", row.encode())])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    assert {nearby.sent_to(stage) for _ in range(3)} == {3}


def test_the_configuration_names_all_listeners(pair: NodePair) -> None:
    """Which of them was asked makes no difference, but for one that tells each client the address it came in by."""
    stage = pair.stages[1]
    stage.node.listening = (
        Listening("INTERNAL", "127.0.0.1", 1, ("in", 1)),
        Listening("EXTERNAL", "::", 11, None),
    )
    for listener in ("INTERNAL", "EXTERNAL"):
        asked = DescribeConfigsResource(BROKER, "1", ["listeners", "advertised.listeners"])
        (result,) = ask(pair, 1, listener, DescribeConfigsRequest([asked])).results
        told = {config.name: config.value for config in result.configs}
        assert told["listeners"] == "INTERNAL://127.0.0.1:1,EXTERNAL://[::]:11"
        host = "in" if listener == "INTERNAL" else "out"
        assert told["advertised.listeners"] == f"INTERNAL://in:1,EXTERNAL://{host}:1"
