"""Three processes over one SQLite file, each registered and answering for all, one of them the controller."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from ottla.client import Client
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        yield cluster


def ask(cluster: EmbeddedCluster, node: int, message: Any) -> Any:
    with Client(cluster.address_of(node)) as client:
        return client.send(message)


def create(cluster: EmbeddedCluster, node: int, name: str, partitions: int, factor: int = 1) -> int:
    (made,) = ask(cluster, node, CreateTopicsRequest(topics=[CreatableTopic(name, partitions, factor)])).topics
    return int(made.error_code)


def leaders(cluster: EmbeddedCluster, by: int, name: str) -> list[int]:
    topics = {topic.name: topic for topic in ask(cluster, by, MetadataRequest(topics=None)).topics}
    return [part.leader_id for part in topics[name].partitions] if name in topics else []


def in_sync(cluster: EmbeddedCluster, by: int, name: str) -> list[list[int]]:
    topics = {topic.name: topic for topic in ask(cluster, by, MetadataRequest(topics=None)).topics}
    return [sorted(part.isr_nodes) for part in topics[name].partitions] if name in topics else []


def controller(cluster: EmbeddedCluster, by: int) -> int:
    return int(ask(cluster, by, DescribeClusterRequest()).controller_id)


def test_three_nodes_serve_as_one_and_one_is_killed(cluster: EmbeddedCluster) -> None:
    first = controller(cluster, 1)
    assert {controller(cluster, by) for by in cluster.nodes} == {first}
    others = [node for node in cluster.nodes if node != first]
    # Whichever node is asked, the controller makes the topic, and spreads it.
    assert create(cluster, others[0], "t", 6) == E.NONE
    assert create(cluster, others[1], "t", 6) == E.TOPIC_ALREADY_EXISTS
    assert create(cluster, others[1], "wide", 1, 4) == E.INVALID_REPLICATION_FACTOR
    for by in cluster.nodes:
        soon(lambda by=by: sorted(leaders(cluster, by, "t")) == [1, 1, 2, 2, 3, 3])
    write_and_read(cluster, "t", 60)
    placed = leaders(cluster, 1, "t")
    cluster.kill(first)
    alive = others[0]
    soon(lambda: cluster.active(alive) == others)
    soon(lambda: leaders(cluster, alive, "t") == [-1 if node == first else node for node in placed])
    soon(lambda: controller(cluster, alive) in others)
    assert create(cluster, alive, "u", 4) == E.NONE
    soon(lambda: sorted(leaders(cluster, alive, "u")) == [others[0], others[0], others[1], others[1]])
    # The dead one gets its replicas too, and catches up when it is back.
    assert create(cluster, alive, "copied", 2, 3) == E.NONE
    assert create(cluster, alive, "wide", 1, 4) == E.INVALID_REPLICATION_FACTOR
    soon(lambda: in_sync(cluster, alive, "copied") == [others, others])
    (gone,) = ask(cluster, alive, DeleteTopicsRequest(topics=[DeleteTopicState("u")])).responses
    assert gone.error_code == E.NONE
    cluster.start_node(first)
    soon(lambda: leaders(cluster, first, "t") == placed)
    soon(lambda: leaders(cluster, first, "u") == [])
    soon(lambda: in_sync(cluster, first, "copied") == [[*cluster.nodes], [*cluster.nodes]])
    write_and_read(cluster, "t", 120)
    needless = ElectLeadersRequest(topic_partitions=[TopicPartitions("t", [0])])
    (result,) = ask(cluster, alive, needless).replica_election_results
    assert result.partition_result[0].error_code == E.ELECTION_NOT_NEEDED


def write_and_read(cluster: EmbeddedCluster, topic: str, total: int) -> None:
    """Sixty more records, and a group that reads all there are: every key once."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5})
    for number in range(total - 60, total):
        producer.produce(topic, key=str(number), value=b"v")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": f"readers-{total}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    seen: list[int] = []
    until = time.monotonic() + 60
    while len(seen) < total and time.monotonic() < until:
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            seen.append(int(message.key()))
    consumer.close()
    assert sorted(seen) == list(range(total))


def test_a_node_that_stops_in_order_is_missed_at_once(cluster: EmbeddedCluster) -> None:
    cluster.stop_node(2)
    soon(lambda: cluster.active(1) == cluster.active(3) == [1, 3])
    cluster.start_node(2)
    soon(lambda: cluster.active(1) == cluster.active(3) == [1, 2, 3])


def test_every_node_names_one_coordinator(cluster: EmbeddedCluster) -> None:
    asked = FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])

    def found(by: int) -> tuple[int, int]:
        (one,) = ask(cluster, by, asked).coordinators
        return one.error_code, one.port

    soon(lambda: all(found(by)[0] == E.NONE for by in cluster.nodes))
    assert len({found(by) for by in cluster.nodes}) == 1


def test_tools_see_the_whole_cluster(cluster: EmbeddedCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.address_of(2)})
    seen = admin.describe_cluster().result(30)
    assert sorted(node.id for node in seen.nodes) == [1, 2, 3]
    assert seen.controller.id in (1, 2, 3)
