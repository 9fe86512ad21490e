"""The page of the cluster: nodes, replicas behind, moves; with a node killed while one looks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from ottla.client import Client
from ottla.client.placement.moving import Moved
from ottla.console.pages.cluster import cluster_of, led_elsewhere
from ottla.console.pages.cluster_moves import move_row
from ottla.console.settings import Settings
from ottla.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.harness.console.browser import opened as open_page
from tests.harness.console.browser import served
from tests.harness.console.over_http import User, user


def partition(index: int, leader: int, replicas: list[int], isr: list[int]) -> MetadataResponsePartition:
    return MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=isr)


TOPICS = [
    MetadataResponseTopic(
        name="t", partitions=[partition(0, 2, [1, 2], [1, 2]), partition(1, 2, [3, 2], [2]), partition(2, 1, [1], [1])]
    )
]


def test_nodes_that_are_down_and_partitions_that_need_one_node() -> None:
    brokers = [DescribeClusterBroker(n, "h", 9090 + n, None, n == 3) for n in (3, 1, 2)]
    known = DescribeClusterResponse(cluster_id="c", controller_id=1, brokers=brokers)
    view = cluster_of(known, None, TOPICS, "command")
    assert [
        (each.id, each.is_down, each.is_controller, each.leads, each.preferred, each.alone) for each in view.nodes
    ] == [
        (1, False, True, 1, 2, 1),
        (2, False, False, 2, 0, 1),
        (3, True, False, 0, 1, 0),
    ]
    assert (view.elsewhere, view.behind) == (1, 1)
    assert led_elsewhere(TOPICS) == [("t", 0)]
    old: Any = MetadataResponse(brokers=[MetadataResponseBroker(1, "h", 9091, "r")], cluster_id="d", controller_id=1)
    assert [(each.id, each.rack) for each in cluster_of(None, old, [], "command").nodes] == [(1, "r")]


def test_the_progress_of_a_move_is_that_of_its_slowest_copy() -> None:
    part = Moved((1, 2, 3), (2, 3), (1,))
    row = move_row(("t", 0), part, {("t", 0): 100}, {("t", 0): [40, 70]}, {1, 2})
    assert (row.copied, row.size, row.adding, row.removing, row.down) == (40, 100, (2, 3), (1,), (3,))
    assert move_row(("t", 0), part, {}, {}, {1, 2, 3}).copied is None


def test_one_node_has_nothing_behind_and_no_moves(visitor: User) -> None:
    view = visitor.json("/cluster")
    assert [(each["is_controller"], each["is_down"]) for each in view["nodes"]] == [(True, False)]
    assert visitor.json("/cluster/part/behind")["replicas"] == []
    assert visitor.json("/cluster/part/moves")["moves"] == []
    assert "is led by its preferred replica" in visitor.get("/cluster/elect", 400)
    assert "clicks-0 is not being moved." in visitor.get("/cluster/cancel-move", 400, topic="clicks", partition=0)


# ---- three nodes ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        topics = [
            CreatableTopic(name, -1, -1, assignments=[CreatableReplicaAssignment(0, replicas)])
            for name, replicas in (("orders", [1, 2, 3]), ("single", [2]))
        ]
        with Client(cluster.bootstrap_servers) as client:
            for answer in client.send(CreateTopicsRequest(topics=topics, timeout_ms=30_000)).topics:
                assert not answer.error_code, answer.error_message
        cluster.wait_in_sync("orders")
        yield cluster


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.slow("tests/console/test_cluster_page.py::test_nodes_that_are_down_and_partitions_that_need_one_node")
def test_a_node_is_killed_while_one_looks(browser: Browser, three: EmbeddedCluster) -> None:
    """The page says so, goes on by itself, and offers to give the leaders back."""
    settings = Settings(three.bootstrap_servers, frozenset())
    with served(settings) as address, open_page(browser, address) as found:
        for path in ("/rebalance", "/drain?node=2", "/drain?node=2&replicas=yes", "/cluster"):
            found.go(path)
            assert found.accessibility() == [], path
        nodes = found.page.get_by_role("region", name="Nodes")
        expect(nodes.get_by_role("cell", name="up")).to_have_count(3)
        three.kill(1)
        expect(nodes.get_by_role("cell", name="down")).to_have_count(1)
        behind = found.page.get_by_role("region", name="Replicas behind")
        expect(behind.get_by_role("rowheader", name="orders").first).to_be_visible()
        assert found.accessibility() == []
        three.start_node(1)
        three.wait_in_sync("orders")
        expect(nodes.get_by_role("cell", name="down")).to_have_count(0)
        expect(found.page.get_by_text("Every replica is in sync.")).to_be_visible()
    with user(three.bootstrap_servers) as visitor:
        rows = visitor.json("/cluster/part/isr")["changes"]
        events = [each["event"] for each in rows if each["node"] == 1]
        assert "is back" in events
        assert any(each.startswith("left: its node stopped or failed") for each in events)
        if three.leader_of("orders") != 1:
            done = visitor.change("/cluster/elect")
            assert done.status_code == 303
        assert three.leader_of("orders") == 1


def test_a_move_is_shown_and_cancelled(three: EmbeddedCluster) -> None:
    three.stop_node(3)
    try:
        row = ReassignablePartition(0, [3])
        with Client(three.bootstrap_servers) as client:
            request = AlterPartitionReassignmentsRequest(30_000, topics=[ReassignableTopic("single", [row])])
            answer = client.send(request)
            assert not answer.error_code, answer.error_message
        with user(three.bootstrap_servers) as visitor:
            (move,) = visitor.json("/cluster/part/moves")["moves"]
            assert (move["partition"], move["adding"], move["removing"]) == (0, [3], [2])
            done = visitor.change("/cluster/cancel-move", "single", topic="single", partition=0)
            assert (done.status_code, done.headers["location"]) == (303, "/cluster")
            assert visitor.json("/cluster/part/moves")["moves"] == []
    finally:
        three.start_node(3)


def test_the_console_needs_no_cluster_of_ottla(console_broker: EmbeddedBroker) -> None:
    """What another broker does not serve is left out: DescribeCluster came with Kafka 2.8."""
    view = cluster_of(None, MetadataResponse(brokers=[], cluster_id=None, controller_id=-1, topics=[]), [], "command")
    assert (view.cluster_id, view.nodes) == ("", ())
