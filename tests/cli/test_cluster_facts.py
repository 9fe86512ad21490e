"""What is told of a cluster: which partitions lack something, and what hinders a stop of a node."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.cluster import lacking_rows, node_row, stop_rows
from ottla.cli.cluster.facts import Disk, Placed, few_replicas, lacking, node_facts
from ottla.protocol.messages.describe_cluster import DescribeClusterBroker


def placed(leader: int, replicas: tuple[int, ...], isr: tuple[int, ...], min_isr: int = 1) -> Placed:
    return Placed("t", 0, leader, replicas, isr, min_isr)


def test_what_a_partition_lacks() -> None:
    assert placed(1, (1, 2, 3), (3, 2, 1), 2).lack is None
    assert placed(1, (1, 2, 3), (1, 2), 2).lack == "under-replicated"
    assert placed(1, (1, 2, 3), (1,), 2).lack == "under min.insync.replicas"
    assert placed(-1, (1, 2, 3), (), 2).lack == "offline"
    assert placed(1, (1,), (1,), 1)._replace(offline=(1,)).lack == "log fails"
    assert placed(1, (1, 2), (1, 2), 1)._replace(offline=(2,)).lack is None


def test_what_hinders_a_stop() -> None:
    assert placed(1, (1, 2, 3), (1, 2, 3), 2).after_stop_of(1) is None
    assert placed(1, (1, 2, 3), (1, 2), 2).after_stop_of(1) == "acks=all refused"
    assert placed(1, (1, 2, 3), (1, 2), 2).after_stop_of(3) is None
    assert placed(1, (1,), (1,)).after_stop_of(1) == "offline"
    assert placed(1, (1, 2, 3), (1,), 2).after_stop_of(1) == "offline"
    assert placed(-1, (1,), (1,)).after_stop_of(1) is None, "it is offline already"


@st.composite
def partitions(draw: st.DrawFn) -> Placed:
    replicas = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True))
    isr = draw(st.lists(st.sampled_from(replicas), unique=True))
    leader = draw(st.sampled_from([*isr, -1])) if isr else -1
    return placed(leader, tuple(replicas), tuple(isr), draw(st.integers(1, len(replicas))))


@given(partitions(), st.integers(1, 5))
def test_a_stop_is_hindered_exactly_by_what_gets_worse(part: Placed, node_id: int) -> None:
    def state(isr: list[int]) -> str:
        if part.leader < 0 or not isr:
            return "offline"
        return "acks=all refused" if len(isr) < part.min_isr else "works"

    before, after = state(list(part.isr)), state([each for each in part.isr if each != node_id])
    assert part.after_stop_of(node_id) == (after if after != before else None)


def test_what_is_told_of_a_node() -> None:
    broker: Any = DescribeClusterBroker(2, "h", 9, "a")
    parts = [placed(2, (2, 1), (2,)), placed(1, (1, 2), (1,)), placed(1, (1,), (1,))]
    assert node_facts(broker, 2, parts, Disk(5, None)) == {
        "node": 2,
        "address": "h:9",
        "rack": "a",
        "state": "up",
        "controller": True,
        "leaders": 1,
        "replicas": 2,
        "in_sync": 1,
        "disk_used": 5,
        "disk_free": None,
        "stop": [{"topic": "t", "partition": 0, "then": "offline"}],
    }


def test_topics_that_lack_replicas_since_they_were_adopted_are_told() -> None:
    two, three = Placed("a", 0, 1, (1, 2), (1, 2), 1), Placed("a", 1, 1, (1, 2, 3), (1, 2, 3), 1)
    assert few_replicas([two, three], 0) == [{"topic": "a", "replicas": 2, "wanted": 3}]
    assert few_replicas([two], 3) == [], "somebody has made it so"
    assert few_replicas([two._replace(on_hold=True)], 3) == [{"topic": "a", "replicas": 2, "wanted": 3}]
    assert few_replicas([two._replace(topic="__consumer_offsets")], 3) != []
    assert few_replicas([three._replace(on_hold=True)], 3) == []


def test_a_topic_is_one_line_whatever_its_number_of_partitions() -> None:
    parts = [Placed("a", each, 1, (1, 2, 3), (1, 3), 2) for each in (0, 1, 2, 5)]
    parts += [Placed("a", 6, 1, (1, 2, 3), (1,), 2, (2, 3)), Placed("b", 0, -1, (2,), (), 1)]
    parts += [Placed("c", 0, -1, (1, 2, 3), (), 2), Placed("d", 0, -1, (1, 2, 3, 4), (), 2)]
    able = {("c", 0): [2, 3], ("b", 0): [], ("d", 0): [1, 2]}
    assert lacking_rows([lacking(part, able, {1, 2}) for part in parts]) == [
        ("a", "under-replicated", 4, "0-2,5", "2", "", ""),
        ("a", "under min.insync.replicas", 1, "6", "2-3", "", "2"),
        ("b", "offline", 1, "0", "2", "2", ""),
        ("c", "offline", 1, "0", "1-3", "3", ""),
        ("d", "offline", 1, "0", "1-4", "3-4", ""),
    ]
    adopted = Placed("d", 0, -1, (1, 2), (), 2, on_hold=True)
    assert lacking(adopted, {}, {1, 2}, {3})["waits_for"] == [3], "it may have a log too"
    assert lacking(adopted, {}, {1}, {2, 3})["waits_for"] == [1, 2]
    broker: Any = DescribeClusterBroker(1, "h", 9, None)
    node = node_facts(broker, 2, parts, Disk(71_947_681_792, None))
    assert stop_rows(node) == [(1, "a", "acks=all refused", 4, "0-2,5"), (1, "a", "offline", 1, "6")]
    assert [str(cell) for cell in node_row(node)][-3:] == ["71.9GB", "None", "no"]
