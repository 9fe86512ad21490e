"""What is done around moves of replicas: nodes that hear of the end late are waited for, limits go when they may."""

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.cli.replicas.progress import carry_out
from ottla.client import ClientError
from ottla.client.placement import moving
from ottla.client.placement.balance import Move
from ottla.client.placement.throttles import RefusedError
from ottla.protocol.config_resources import ConfigResourceType

MOVE = Move(("t", 0), (1, 2), (2, 3), 100)


class Node:
    """One node as a client sees it: how often it still tells the old replicas, and its configs."""

    def __init__(self, cluster: "Cluster", late: int = 0) -> None:
        self.cluster = cluster
        self.late = late
        self.asked = 0

    def send(self, message: Any) -> Any:
        name = type(message).__name__
        if name == "MetadataRequest":
            self.asked += 1
            if self.late < 0:
                raise ClientError("the node is gone")
            replicas = MOVE.before if self.asked <= self.late else MOVE.after
            part = SimpleNamespace(partition_index=0, replica_nodes=list(replicas))
            return SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[part])])
        return getattr(self.cluster, name)(message)


class Cluster:
    """Three nodes; `moved`: the topics of which a partition is being moved, `limited`: what has a limit."""

    def __init__(self, *late: int) -> None:
        self.nodes = {node: Node(self, many) for node, many in zip((1, 2, 3), late or (0, 0, 0), strict=True)}
        self.moved: list[str] = []
        self.limited = {
            (ConfigResourceType.BROKER, "1"),
            (ConfigResourceType.BROKER, "3"),
            (ConfigResourceType.TOPIC, "t"),
            (ConfigResourceType.TOPIC, "u"),
        }
        self.refuses = self.refuses_limits = False

    def broker(self, node: int) -> Node:
        return self.nodes[node]

    def send(self, message: Any) -> Any:
        return self.nodes[1].send(message)

    def topics(self) -> list[Any]:
        return [SimpleNamespace(name="t"), SimpleNamespace(name="u")]

    def DescribeClusterRequest(self, _: Any) -> Any:
        return SimpleNamespace(brokers=[SimpleNamespace(broker_id=node) for node in self.nodes])

    def ListPartitionReassignmentsRequest(self, _: Any) -> Any:
        part = SimpleNamespace(partition_index=0, replicas=[1, 2, 3], adding_replicas=[3], removing_replicas=[1])
        topics = [SimpleNamespace(name=name, partitions=[part]) for name in self.moved]
        return SimpleNamespace(error_code=0, error_message=None, topics=topics)

    def AlterPartitionReassignmentsRequest(self, asked: Any) -> Any:
        wrong = 42 if self.refuses else 0
        (topic,) = asked.topics
        if topic.partitions[0].replicas is None:
            self.moved.remove(topic.name)
        part = SimpleNamespace(partition_index=0, error_code=wrong, error_message="no")
        told = [SimpleNamespace(name=topic.name, partitions=[part])]
        return SimpleNamespace(error_code=0, error_message=None, responses=told)

    def DescribeConfigsRequest(self, asked: Any) -> Any:
        def configs(kind: int, name: str) -> list[Any]:
            own = 1 if kind == ConfigResourceType.TOPIC else 2
            return [SimpleNamespace(config_source=own if (kind, name) in self.limited else 5)]

        results = [
            SimpleNamespace(resource_name=each.resource_name, configs=configs(each.resource_type, each.resource_name))
            for each in asked.resources
        ]
        return SimpleNamespace(results=results)

    def IncrementalAlterConfigsRequest(self, asked: Any) -> Any:
        for each in asked.resources:
            if (
                each.resource_type == ConfigResourceType.TOPIC
                and self.refuses_limits
                and each.configs[0].config_operation == 0
            ):
                wrong = SimpleNamespace(error_code=44, error_message="no", resource_name=each.resource_name)
                return SimpleNamespace(responses=[wrong])
            is_set = each.configs[0].config_operation == 0
            (self.limited.add if is_set else self.limited.discard)((each.resource_type, each.resource_name))
        return SimpleNamespace(responses=[])

    def ElectLeadersRequest(self, _: Any) -> Any:
        return None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "LOOK_S", 0.001)
    monkeypatch.setattr(moving, "KNOWN_S", 0.1)


@pytest.mark.parametrize("late", [(0, 3, 0), (0, 0, 3), (2, 2, 2), (0, -1, 1)])
def test_every_node_that_serves_knows_of_the_end(late: tuple[int, ...]) -> None:
    cluster = Cluster(*late)
    carry_out(cluster, [MOVE], None)  # type: ignore[arg-type]
    assert all(node.asked > node.late for node in cluster.nodes.values())


def test_a_node_that_never_hears_of_it_is_waited_for_for_a_while() -> None:
    cluster = Cluster(0, 1_000_000, 0)
    carry_out(cluster, [MOVE], None)  # type: ignore[arg-type]


def test_limits_that_were_left_go_when_nothing_is_moved() -> None:
    cluster = Cluster()
    assert moving.lift(cluster) == ["node 1", "node 3", "t", "u"]  # type: ignore[arg-type]
    assert not cluster.limited
    assert moving.lift(cluster) == []  # type: ignore[arg-type]


def test_limits_of_other_moves_stay() -> None:
    cluster = Cluster()
    cluster.moved = ["t", "u"]
    moving.cancel(cluster, [("t", 0)])  # type: ignore[arg-type]
    assert cluster.limited == {
        (ConfigResourceType.BROKER, "1"),
        (ConfigResourceType.BROKER, "3"),
        (ConfigResourceType.TOPIC, "u"),
    }
    cluster.moved = []
    moving.cancel(cluster, [])  # type: ignore[arg-type]
    assert not cluster.limited


def test_a_move_that_is_refused_leaves_no_limit() -> None:
    cluster = Cluster()
    cluster.limited.clear()
    cluster.refuses = True
    with pytest.raises(RefusedError, match="t-0 could not be moved: no"):
        carry_out(cluster, [MOVE], 1_000)  # type: ignore[arg-type]
    assert not cluster.limited


def test_a_limit_that_is_refused_leaves_none_elsewhere() -> None:
    cluster = Cluster()
    cluster.limited.clear()
    cluster.refuses_limits = True
    with pytest.raises(RefusedError, match="could not be set at t: no"):
        carry_out(cluster, [MOVE], 1_000)  # type: ignore[arg-type]
    assert not cluster.limited
