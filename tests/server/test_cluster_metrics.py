"""What three nodes show on their metrics ports before and after one is killed: processes, as operators run them."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon
from tests.server.test_cluster import controller, create

PARTITIONS = 6
REPLICAS = "kafka_server_replicamanager_"
CONTROLLER = "kafka_controller_kafkacontroller_"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(metrics=True, settings={"min.insync.replicas": 3}) as cluster:
        yield cluster


def fetched(cluster: EmbeddedCluster, node: int, path: str) -> str:
    with urllib.request.urlopen(f"http://{cluster.metrics_of(node)}{path}", timeout=30) as answer:
        return answer.read().decode()


def figures(cluster: EmbeddedCluster, node: int) -> dict[str, float]:
    """The metrics without labels, by name."""
    families = text_string_to_metric_families(fetched(cluster, node, "/metrics"))
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def total(cluster: EmbeddedCluster, nodes: list[int], name: str) -> float:
    return sum(figures(cluster, node)[name] for node in nodes)


def is_ready(cluster: EmbeddedCluster, node: int) -> bool:
    try:
        return fetched(cluster, node, "/readyz") == "ready\n"
    except urllib.error.URLError:
        return False


@pytest.mark.slow("tests/server/test_cluster.py::test_three_nodes_serve_as_one_and_one_is_killed")
def test_three_nodes_tell_the_truth_and_one_is_killed(cluster: EmbeddedCluster) -> None:
    nodes = [*cluster.nodes]
    assert all(is_ready(cluster, node) for node in nodes)
    first = controller(cluster, 1)
    create(cluster, first, "t", PARTITIONS, 3)
    create(cluster, first, "single", 3, 1)
    everything = PARTITIONS + 3
    soon(lambda: total(cluster, nodes, REPLICAS + "leadercount") == everything)
    soon(lambda: total(cluster, nodes, REPLICAS + "partitioncount") == 3 * PARTITIONS + 3)
    soon(lambda: total(cluster, nodes, REPLICAS + "underreplicatedpartitions") == 0)
    assert [figures(cluster, node)[CONTROLLER + "activecontrollercount"] for node in nodes] == [
        int(node == first) for node in nodes
    ]
    for node in nodes:
        seen = figures(cluster, node)
        assert seen[CONTROLLER + "globalpartitioncount"] == everything
        assert seen[CONTROLLER + "offlinepartitionscount"] == 0

    cluster.kill(first)
    alive = [node for node in nodes if node != first]
    soon(lambda: total(cluster, alive, CONTROLLER + "activecontrollercount") == 1)
    soon(lambda: total(cluster, alive, REPLICAS + "underreplicatedpartitions") == PARTITIONS)
    soon(lambda: total(cluster, alive, REPLICAS + "underminisrpartitioncount") == PARTITIONS)
    soon(lambda: total(cluster, alive, REPLICAS + "leadercount") == everything - 1)
    for node in alive:  # what only the dead node has
        soon(lambda node=node: figures(cluster, node)[CONTROLLER + "offlinepartitionscount"] == 1)
        assert is_ready(cluster, node)

    cluster.start_node(first)
    soon(lambda: is_ready(cluster, first))
    for name in ("underreplicatedpartitions", "underminisrpartitioncount"):
        soon(lambda name=name: total(cluster, nodes, REPLICAS + name) == 0)
    soon(lambda: total(cluster, nodes, REPLICAS + "leadercount") == everything)
    assert total(cluster, nodes, CONTROLLER + "activecontrollercount") == 1
