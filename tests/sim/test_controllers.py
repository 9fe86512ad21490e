"""Clusters that elect a controller, under faults, and mistakes in the controller that such runs must find."""

from collections.abc import Generator
from dataclasses import replace

import pytest

from ottla.broker.cluster import controller, duties, elections, isr_changes, reassignments
from ottla.broker.cluster.elections import NodeStates, Rules
from ottla.broker.cluster.members import Members
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.topics import PartitionRecord
from ottla.sim.kernel.trace import InvariantError
from tests.harness.sim.controllers import ControllerCluster
from tests.sim.test_seeds import each_of

FOUND = [2, 5, 40, 103]
"""Seeds that found something: a change planned anew behind a new controller was guarded by that one's claim, a node
joined the in-sync ones that had registered anew, topics were changed behind the loop."""


@pytest.mark.parametrize("seed", each_of([101], FOUND))
def test_a_cluster_holds_together(seed: int) -> None:
    cluster = ControllerCluster(seed, nodes=3 if seed % 2 else 5)
    cluster.run()
    assert cluster.proposals + cluster.elections > 0


def test_two_runs_of_one_seed_are_equal() -> None:
    runs = [ControllerCluster(101), ControllerCluster(101)]
    for run in runs:
        run.run(5)
    assert runs[0].store.list("") == runs[1].store.list("")


def fails(rule: str, seconds: int = 20, seed: int = 1) -> None:
    """One of some runs finds it, and says so by its rule; `seed` does so soon, while the simulator is as it is."""
    for each in (seed, *range(1, 15)):
        try:
            ControllerCluster(each).run(seconds)
        except InvariantError as broken:
            found = str(broken)
            break
    else:
        found = "nothing"
    assert rule in found


def test_finds_a_controller_that_writes_without_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant: nothing of an older claim is written."""
    monkeypatch.setattr(Members, "guards", lambda self, rows=(): [])
    fails("is the controller", seed=22)


def test_finds_a_leader_without_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(before: PartitionRecord, after: PartitionRecord) -> PartitionRecord:
        return before if after == before else replace(after, partition_epoch=before.partition_epoch + 1)

    monkeypatch.setattr(elections, "counted", counted)
    fails("a change of leader raises its epoch")


def test_finds_a_node_that_leads_what_an_earlier_life_led(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant: one leader an epoch."""
    always = property(lambda self: True, lambda self, value: None)
    monkeypatch.setattr(Members, "has_joined", always, raising=False)
    fails("is led by")


def test_finds_joiners_that_are_not_active(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybody(record: NodeRecord | None, broker_epoch: int) -> bool:
        return True

    monkeypatch.setattr(isr_changes, "_is_eligible", anybody)
    fails("who joins is active", seed=4)


def test_finds_a_proposal_that_is_taken_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant: what is stale changes nothing."""
    import ottla.broker.api.k56_alter_partition as api

    right = isr_changes.altered

    def blind(placed, proposal, nodes, rules):  # type: ignore[no-untyped-def]
        return right(placed, replace(proposal, leader_epoch=placed.leader_epoch), nodes, rules)

    monkeypatch.setattr(api, "altered", blind)
    fails("a proposal with an old epoch was taken", seed=40)


def test_finds_elections_of_replicas_that_lack_records(monkeypatch: pytest.MonkeyPatch) -> None:
    def anybody(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
        return elections.settled(placed, nodes, replace(rules, unclean=True))

    def clean(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
        after = anybody(placed, nodes, rules)
        return after if after == placed else replace(after, recovering=False)

    monkeypatch.setattr(duties, "settled", clean)
    fails("a clean leader held everything", seed=11)


def test_finds_a_move_that_ends_before_all_are_in_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-15665."""
    monkeypatch.setattr(
        reassignments, "is_complete", lambda placed: placed.is_moving and set(placed.adding) <= set(placed.isr)
    )
    fails("in sync, ", seed=7)


def test_finds_a_replica_that_goes_without_a_new_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(before: PartitionRecord, after: PartitionRecord) -> PartitionRecord:
        led_anew = after.leader != before.leader
        epochs = before.leader_epoch + led_anew, before.partition_epoch + 1
        return before if after == before else replace(after, leader_epoch=epochs[0], partition_epoch=epochs[1])

    monkeypatch.setattr(reassignments, "counted", counted)
    fails("who loses a replica is fenced", seed=3)


def test_finds_work_that_is_left_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(
        image: MetadataImage, turn: duties.Turnover, rules_of: duties.RulesOf
    ) -> Generator[None, None, list[duties.RowChange]]:
        rows = yield from duties.duties(image, turn, rules_of)
        return [row for row in rows if not row.key.startswith("topic/")]

    monkeypatch.setattr(controller, "duties", nothing)
    fails("is led by nobody", seed=14)
