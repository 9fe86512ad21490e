"""Where replicas go that somebody wants elsewhere, or more or fewer of: as little as possible is copied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.placement.balance import Move, Replicas, UnsatisfiablePlanError
from ottla.client.placement.resizing import placed_anew

RACKS = {1: "a", 2: "b", 3: "c", 4: "a"}
PLACES = [Replicas(("t", 0), (1, 2), 10), Replicas(("t", 1), (2, 3), 20)]


def test_more_replicas_go_to_racks_that_lack_one_and_nothing_else_moves() -> None:
    moves = placed_anew(RACKS, PLACES, None, 3)
    assert [move.after for move in moves] == [(1, 2, 3), (2, 3, 4)]
    assert [move.bytes_moved for move in moves] == [10, 20]
    assert placed_anew(RACKS, PLACES, None, 2) == []


def test_fewer_replicas_keep_the_leader() -> None:
    assert [move.after for move in placed_anew(RACKS, PLACES, None, 1)] == [(1,), (2,)]


def test_only_named_nodes_have_replicas_afterwards() -> None:
    (first, second) = placed_anew(RACKS, PLACES, [3, 4], None)
    assert set(first.after) == set(second.after) == {3, 4}
    assert {first.after[0], second.after[0]} == {3, 4}, "and each leads as many as the other"
    assert placed_anew(RACKS, [PLACES[0]], [1, 2], 2) == []


def test_a_replica_on_a_node_that_is_gone_goes_elsewhere() -> None:
    (move,) = placed_anew(RACKS, [Replicas(("t", 0), (9, 1))], [1, 2, 3], None)
    assert 9 not in move.after
    assert 1 in move.after


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(UnsatisfiablePlanError, match=r"t-0 can't have 5 replicas on 4 nodes."):
        placed_anew(RACKS, PLACES, None, 5)
    with pytest.raises(UnsatisfiablePlanError, match=r"t-0 can't have 2 replicas on 1 node."):
        placed_anew(RACKS, PLACES, [1], None)
    with pytest.raises(UnsatisfiablePlanError, match="Node 7 does not serve"):
        placed_anew(RACKS, PLACES, [1, 7], None)


@given(
    st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True), min_size=1, max_size=8),
    st.none() | st.lists(st.integers(1, 4), min_size=3, max_size=4, unique=True),
    st.none() | st.integers(1, 3),
)
def test_a_plan_is_what_was_asked_for(replicas: list[list[int]], nodes: list[int] | None, factor: int | None) -> None:
    """As many replicas, nobody twice, on the named nodes, and who may keep one does where none is to be evened out."""
    places = [Replicas(("t", at), tuple(each)) for at, each in enumerate(replicas)]
    moved: dict[int, Move] = {move.place[1]: move for move in placed_anew(RACKS, places, nodes, factor)}
    for at, before in enumerate(replicas):
        after = list(moved[at].after) if at in moved else before
        assert len(set(after)) == len(after) == (factor or len(before))
        assert nodes is None or set(after) <= set(nodes)
        if nodes is None:
            assert set(after) <= set(before) or set(before) <= set(after)
