"""What is asked for while partitions are moved: it goes by where they go, and waits for that, under the new limit."""

import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.client import Client
from ottla.client.placement import moving, throttles
from ottla.client.placement.balance import Move
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.testing import EmbeddedCluster

from .conftest import Run

FAST = "1000000000"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"replica.fetch.max.bytes": 20_000}) as cluster:
        yield cluster


@pytest.fixture
def at(ottla: Run, cluster: EmbeddedCluster) -> Run:
    """Run a command against the cluster."""
    return lambda *words, **given: ottla(*words, "--bootstrap", cluster.bootstrap_servers, **given)


@pytest.fixture
def topic(request: pytest.FixtureRequest, cluster: EmbeddedCluster) -> str:
    """A topic with a partition on node 1 that goes to node 2 at a byte a second."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name)
    move = Move((name, 0), (1,), (2,))
    with Client(cluster.bootstrap_servers) as client:
        placed = [CreatableReplicaAssignment(0, [1])]
        (made,) = client.send(CreateTopicsRequest(topics=[CreatableTopic(name, -1, -1, placed)])).topics
        assert made.error_code == 0
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "batch.size": 10_000})
        for number in range(400):
            producer.produce(name, bytes(1000), str(number))
        assert producer.flush(30) == 0
        throttles.limit(client, [move], 1)
        moving.start(client, [move], None)
    return name


def replicas_of(at: Run, topic: str) -> list[int]:
    (part,) = at("topics", "describe", topic, "--format", "json").json()[0]["partitions"]
    return part["replicas"]


def assert_over(cluster: EmbeddedCluster) -> None:
    with Client(cluster.bootstrap_servers) as client:
        assert not moving.under_way(client)
        assert not throttles.left(client)


def test_the_same_move_is_waited_for_under_the_new_limit(cluster: EmbeddedCluster, at: Run, topic: str) -> None:
    assert set(replicas_of(at, topic)) == {1, 2}
    again = at("topics", "reassign", topic, "--brokers", "2", "--execute", "--throttle", FAST)
    waits = "Waiting for moves that are already in progress there: 1 partition."
    assert again.err == f"No replica has to move.\n{waits}\n"
    assert again.out.endswith("Done: 1 partition moved.\n")
    assert replicas_of(at, topic) == [2]
    assert_over(cluster)


def test_more_replicas_are_counted_from_those_that_there_will_be(cluster: EmbeddedCluster, at: Run, topic: str) -> None:
    (part,) = at("topics", "reassign", topic, "-r", "2", "--format", "json").json()["partitions"]
    assert (len(part["replicas"]), part["replicas"][0]) == (2, 2)
    at("topics", "reassign", topic, "-r", "2", "--execute", "--throttle", FAST)
    assert (len(replicas_of(at, topic)), 2 in replicas_of(at, topic)) == (2, True)
    assert_over(cluster)


@pytest.mark.parametrize("drained", [1, 2])
def test_a_node_is_emptied_of_what_goes_and_of_what_comes(
    cluster: EmbeddedCluster, at: Run, topic: str, drained: int
) -> None:
    at("nodes", "drain", str(drained), "--replicas", "--throttle", FAST)
    (held,) = replicas_of(at, topic)
    assert held != drained
    assert_over(cluster)
