"""How the replicas of a partition move: begun, replaced, at their end, taken back; one partition at a time."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.cluster.elections import NodeStates, Rules, preferred, settled
from ottla.broker.cluster.isr_changes import IsrProposal, altered
from ottla.broker.cluster.reassignments import cancelled, completed, reassigned
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.topics import PartitionRecord

ALL = NodeStates(frozenset(range(1, 7)))
TWO = Rules(2)
WHOLE = PartitionRecord((1, 2, 3), (1, 2, 3), 1, 5, 9)


def active(*nodes: int) -> NodeStates:
    return NodeStates(frozenset(nodes))


def in_sync(placed: PartitionRecord, *isr: int) -> PartitionRecord:
    """The record after its leader has said that these are in sync; an end of a move comes with it."""
    nodes = {node_id: NodeRecord("a", 1, broker_epoch=node_id) for node_id in range(1, 7)}
    members = [(node_id, node_id) for node_id in isr]
    after = altered(
        placed, IsrProposal(placed.leader, placed.leader_epoch, placed.partition_epoch, members), nodes, TWO
    )
    assert isinstance(after, PartitionRecord), after
    return after


def test_who_is_to_come_stands_first_and_who_is_to_go_behind() -> None:
    moving = reassigned(WHOLE, (4, 2), ALL)
    assert moving == PartitionRecord((4, 2, 1, 3), (1, 2, 3), 1, 5, 10, adding=(4,), removing=(1, 3))
    assert (moving.target, moving.origin) == ((4, 2), (2, 1, 3))


def test_the_last_of_the_target_ends_the_move_and_the_leader_goes_with_it() -> None:
    """Replicas, in-sync set and leader in one write; who loses its replica is fenced by a new epoch."""
    moving = reassigned(WHOLE, (4, 5), ALL)
    half = in_sync(moving, 1, 2, 3, 4)
    assert (half.replicas, half.leader_epoch, half.is_moving) == (moving.replicas, 5, True)
    assert in_sync(half, 1, 2, 3, 4, 5) == PartitionRecord((4, 5), (4, 5), 4, 6, 12)


def test_not_before_all_of_the_target_are_in_sync() -> None:
    """KAFKA-15665: not as soon as all that are added are."""
    moving = reassigned(in_sync(WHOLE, 1, 3), (2, 4), ALL)
    assert in_sync(moving, 1, 3, 4).is_moving
    assert not in_sync(in_sync(moving, 1, 3, 4), 1, 2, 3, 4).is_moving


def test_a_leader_that_stays_leads_on_in_a_new_epoch_where_a_replica_goes() -> None:
    assert in_sync(reassigned(WHOLE, (1, 2, 4), ALL), 1, 2, 3, 4) == PartitionRecord((1, 2, 4), (1, 2, 4), 1, 6, 11)
    grown = in_sync(reassigned(WHOLE, (1, 2, 3, 4), ALL), 1, 2, 3, 4)
    assert grown == PartitionRecord((1, 2, 3, 4), (1, 2, 3, 4), 1, 5, 11)


def test_fewer_replicas_or_another_order_are_at_their_end_at_once() -> None:
    assert reassigned(WHOLE, (2,), ALL) == PartitionRecord((2,), (2,), 2, 6, 10)
    assert reassigned(WHOLE, (3, 2, 1), ALL) == PartitionRecord((3, 2, 1), (1, 2, 3), 1, 5, 10)
    assert preferred(reassigned(WHOLE, (3, 2, 1), ALL), ALL).leader == 3
    assert reassigned(WHOLE, (1, 2, 3), ALL) is WHOLE


def test_a_target_that_is_the_same_changes_nothing() -> None:
    moving = reassigned(WHOLE, (4, 2), ALL)
    assert reassigned(moving, (4, 2), ALL) is moving


def test_no_leader_is_made_of_who_may_not_lead() -> None:
    """The target is in sync, and about to be given up: the old leader leads on until one of it may."""
    moving = replace(reassigned(WHOLE, (4,), ALL), isr=(1, 2, 3, 4))
    assert completed(moving, active(1, 2, 3)) is moving
    assert completed(moving, ALL).leader == 4


def test_a_newer_target_takes_the_place_of_the_older_one() -> None:
    """Who was to come, and is not wanted any more, goes with the end of the move or when it is cancelled."""
    twice = reassigned(in_sync(reassigned(WHOLE, (4, 5), ALL), 1, 2, 3, 4), (1, 6), ALL)
    assert (twice.replicas, twice.adding, twice.removing) == ((1, 6, 2, 3, 4, 5), (4, 5, 6), (2, 3, 4, 5))
    assert (twice.target, set(twice.origin)) == ((1, 6), {1, 2, 3})
    ended = in_sync(twice, 1, 2, 3, 4, 6)
    assert (ended.replicas, ended.isr, ended.leader, ended.is_moving) == ((1, 6), (1, 6), 1, False)
    back = cancelled(twice, ALL, TWO)
    assert back is not None
    assert (set(back.replicas), set(back.isr), back.leader, back.is_moving) == ({1, 2, 3}, {1, 2, 3}, 1, False)


def test_cancelled_who_was_to_come_goes() -> None:
    back = cancelled(reassigned(WHOLE, (4, 2), ALL), ALL, TWO)
    assert back == PartitionRecord((2, 1, 3), (1, 2, 3), 1, 6, 11)
    led = replace(reassigned(WHOLE, (4, 2), ALL), leader=4, isr=(4, 3))
    back = cancelled(led, ALL, TWO)
    assert back is not None
    assert (back.replicas, back.isr, back.leader, back.leader_epoch) == ((2, 1, 3), (3,), 3, 6)


def test_cancelling_loses_nothing_that_was_acknowledged() -> None:
    only_new = replace(reassigned(WHOLE, (4, 5), ALL), leader=4, isr=(4, 5))
    assert cancelled(only_new, ALL, TWO) is None
    unclean = cancelled(only_new, ALL, Rules(2, unclean=True))
    assert unclean is not None
    assert (unclean.leader, unclean.isr, unclean.recovering) == (1, (1,), True)
    eligible = replace(only_new, isr=(4,), elr=(2,))
    assert cancelled(eligible, active(4), TWO) is None, "2 is not there"
    clean = cancelled(eligible, ALL, TWO)
    assert clean is not None
    assert (clean.leader, clean.isr, clean.elr, clean.recovering) == (2, (2,), (), False)


def test_a_leader_hears_that_another_one_leads_now() -> None:
    moving = reassigned(PartitionRecord((1,), (1,), 1), (2,), ALL)
    assert in_sync(moving, 1, 2) == PartitionRecord((2,), (2,), 2, 1, 2)


nodes = st.integers(1, 5)
targets = st.lists(nodes, min_size=1, max_size=4, unique=True)
acts = st.one_of(
    st.tuples(st.just("move"), targets),
    st.tuples(st.just("cancel"), st.just([])),
    st.tuples(st.just("isr"), st.lists(nodes, max_size=5, unique=True)),
    st.tuples(st.just("there"), st.lists(nodes, max_size=5, unique=True)),
)


@pytest.mark.parametrize("unclean", [False, True])
@given(st.lists(acts, max_size=14), st.integers(1, 3), targets)
def test_whatever_happens_the_record_makes_sense(
    unclean: bool, turns: list[tuple[str, list[int]]], min_isr: int, first: list[int]
) -> None:
    """Sets are within the replicas, epochs rise, and a move ends with its whole target in sync, or at its origin."""
    rules = Rules(min_isr, unclean)
    here = NodeStates(frozenset(range(1, 6)))
    placed = PartitionRecord(tuple(first), tuple(first), first[0])
    for what, who in turns:
        before = placed
        if what == "move":
            placed = reassigned(placed, who, here)
            assert placed.target == tuple(who)
        elif what == "cancel":
            placed = cancelled(placed, here, rules) or placed
        elif what == "there":
            here = NodeStates(frozenset(who))
            placed = completed(settled(placed, here, rules), here)
        elif placed.leader != -1:
            isr = {placed.leader, *(member for member in who if member in placed.replicas and member in here.active)}
            records = {node_id: NodeRecord("a", 1) for node_id in here.active}
            proposal = IsrProposal(
                placed.leader, placed.leader_epoch, placed.partition_epoch, [(each, -1) for each in sorted(isr)]
            )
            after = altered(placed, proposal, records, rules)
            assert isinstance(after, PartitionRecord)
            placed = after
        check_step(before, placed, unclean=unclean)


def check_step(before: PartitionRecord, after: PartitionRecord, *, unclean: bool) -> None:
    assert after.replicas
    assert len(set(after.replicas)) == len(after.replicas)
    assert {*after.isr, *after.elr, *after.adding, *after.removing} <= set(after.replicas)
    assert not set(after.isr) & set(after.elr)
    assert after.leader == -1 or after.leader in after.isr
    assert after.partition_epoch - before.partition_epoch in ((0,) if after == before else (1, 2))
    if after.leader != before.leader or not set(before.replicas) <= set(after.replicas):
        assert after.leader_epoch > before.leader_epoch
    if not set(before.replicas) <= set(after.replicas):
        at_its_end = after.replicas == before.target and set(after.isr) == set(after.replicas)
        taken_back = after.replicas == before.origin
        just_asked = set(after.isr) == set(after.replicas) <= set(before.isr)
        assert at_its_end or taken_back or just_asked, (before, after)
    if not unclean and not after.recovering and after.leader not in (-1, before.leader):
        # Who leads holds all that was acknowledged: it was in sync, or eligible, or has just said so.
        assert after.leader in {*before.isr, *before.elr} or after.leader in after.isr
