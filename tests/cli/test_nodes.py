"""`ottla cluster rebalance` and `ottla nodes`: four nodes share what three had, and one is emptied and forgotten."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.client import Client
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.testing import EmbeddedCluster

from .conftest import Run

PARTITIONS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """Four nodes, and a topic on the first three of them, most of it led by node 1."""
    with EmbeddedCluster(nodes=4, settings={"default.replication.factor": 2}) as cluster:
        placed = [CreatableReplicaAssignment(index, [1, 2 + index % 2]) for index in range(PARTITIONS)]
        with Client(cluster.bootstrap_servers) as client:
            topic = CreatableTopic("t", -1, -1, placed)
            (made,) = client.send(CreateTopicsRequest(topics=[topic])).topics
        assert made.error_code == 0
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number in range(400):
            producer.produce("t", bytes(1000), str(number))
        assert producer.flush(30) == 0
        del producer
        yield cluster


@pytest.fixture
def at(ottla: Run, cluster: EmbeddedCluster) -> Run:
    """Run a command against the cluster."""
    return lambda *words, **given: ottla(*words, "--bootstrap", cluster.bootstrap_servers, **given)


def of_nodes(at: Run, what: str) -> list[int]:
    return [node[what] for node in at("cluster", "describe", "--format", "json").json()["nodes"]]


def test_what_three_had_is_shared_by_four_and_one_is_emptied_and_forgotten(cluster: EmbeddedCluster, at: Run) -> None:
    assert of_nodes(at, "replicas") == [8, 4, 4, 0]
    *_, empty, last = at("cluster", "rebalance").out.splitlines()
    assert (empty, last.endswith("--execute does it.")) == ("", True)
    assert of_nodes(at, "replicas") == [8, 4, 4, 0], "nothing was moved"
    assert at("cluster", "rebalance", "--execute", "--throttle", "10000000", "--format", "json").json()["done"]
    assert of_nodes(at, "replicas") == of_nodes(at, "in_sync") == [4, 4, 4, 4]
    assert of_nodes(at, "leaders") == [2, 2, 2, 2]
    last = at("cluster", "rebalance").out.splitlines()[-1]
    assert last.startswith("Nothing to move: each node has 4 replicas with ")
    assert last.endswith(", and is the preferred leader of 2 partitions.")
    assert at("nodes", "drain", "2").out == "Drained node 2: it leads nothing any more.\n"
    assert (of_nodes(at, "leaders")[1], of_nodes(at, "replicas")[1]) == (0, 4)
    assert at("nodes", "remove", "2", code=1).err == "ottla: Node 2 serves: stop it before it is unregistered.\n"
    assert at("nodes", "drain", "2", "--replicas").out == "Drained node 2: nothing is on it any more.\n"
    assert of_nodes(at, "replicas")[1] == 0
    cluster.stop_node(2)
    assert at("nodes", "remove", "2").out == "Removed node 2.\n"
    assert of_nodes(at, "node") == [1, 3, 4]
    assert at("nodes", "remove", "2", code=1).err == "ottla: The cluster has no node 2: it has 1, 3, 4.\n"


def test_a_node_that_is_down_and_holds_replicas_is_kept(cluster: EmbeddedCluster, at: Run) -> None:
    cluster.kill(4)
    while of_nodes(at, "state")[-1] == "up":
        pass
    assert "`ottla nodes drain 4 --replicas` does that." in at("nodes", "remove", "4", code=1).err
    at("nodes", "drain", "4", "--replicas")
    at("nodes", "remove", "4")
    assert "only 1 node would be left for them" in at("nodes", "drain", "3", "--replicas", code=1).err
