"""`ottla topics elect-leaders --unclean` shows which records it may lose, and asks first."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from ottla.cli.cluster.facts import Placed
from ottla.cli.replicas.losses import losses
from ottla.testing import EmbeddedCluster

from .conftest import Run


def placed(leader: int, isr: tuple[int, ...]) -> Placed:
    return Placed("t", 0, leader, (1, 2, 3), isr, 1)


@pytest.mark.parametrize(
    ("part", "eligible", "ends", "said"),
    [
        (
            placed(-1, ()),
            [3],
            {1: 7, 2: 9},
            "t-0: node 2 would lead with the records before offset 9. Node 3, which does not answer, has every"
            " acknowledged record; it would lose what it has from 9 on.",
        ),
        (
            placed(-1, ()),
            [],
            {2: 9},
            "t-0: node 2 would lead with the records before offset 9. Node 1, which does not answer, may have more; it"
            " would lose what it has from 9 on. Node 3, which does not answer, may have more; it would lose what it"
            " has from 9 on.",
        ),
        (
            placed(1, (1,)),
            [],
            {1: 7, 2: 8, 3: 7},
            "t-0: node 1 would lead with the records before offset 7. Node 2 has the records before 8; it would lose 1"
            " record.",
        ),
    ],
)
def test_what_may_be_lost_is_said(part: Placed, eligible: list[int], ends: dict[int, int], said: str) -> None:
    (loss,) = losses([part], {("t", 0): eligible}, {node: {("t", 0): end} for node, end in ends.items()})
    assert str(loss) == said


def test_nothing_is_said_where_nothing_may_be_lost() -> None:
    whole = {node: {("t", 0): 7} for node in (1, 2, 3)}
    assert not losses([placed(1, (1, 2, 3))], {}, whole)
    assert not losses([placed(-1, ())], {}, {}), "no replica answers, so none can lead"
    behind = {1: {("t", 0): 7}, 2: {("t", 0): 5}}
    assert not losses([placed(1, (1,))], {}, behind), "a follower that lacks records loses none"


def test_an_unclean_election_shows_what_it_loses_and_asks(ottla: Run, tmp_path: Path) -> None:
    with EmbeddedCluster(directory=tmp_path, settings={"min.insync.replicas": 1}) as cluster:
        at = ("--bootstrap", cluster.bootstrap_servers)
        ottla("topics", "create", "t", "--partitions", "1", *at)
        cluster.wait_in_sync("t")
        leader = cluster.leader_of("t")
        others = [node for node in (1, 2, 3) if node != leader]
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce("t", b"everywhere")
        assert producer.flush(30) == 0
        for node in others:
            cluster.kill(node)
        producer.produce("t", b"at the leader alone")
        assert producer.flush(30) == 0
        cluster.kill(leader)
        cluster.start_node(others[0])
        words = ("topics", "elect-leaders", "t", "--unclean", *at)
        said = f"t-0: node {others[0]} would lead with the records before offset 1. Node "
        lost = (
            f"Node {leader}, which does not answer, has every acknowledged record; it would lose what it has from 1 on."
        )
        plan = ottla(*words, "--dry-run").out
        assert plan.startswith(said)
        assert lost in plan
        refused = ottla(*words, code=1).err
        assert lost in refused
        assert "Nothing was changed" in refused
        ottla(*words, "--yes")
        assert cluster.leader_of("t") == others[0]
        assert ottla(*words, "--dry-run").out == "No election of these partitions would lose records.\n"
