"""Plans that spread replicas, leaders and bytes over nodes: what every plan keeps, and what it reaches."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.placement.balance import (
    BYTES_SPREAD,
    Move,
    Replicas,
    UnsatisfiablePlanError,
    balanced,
    emptied,
    led_by_others,
)

Racks = dict[int, str | None]


@st.composite
def clusters(draw: st.DrawFn, *, with_racks: bool = True) -> tuple[Racks, list[Replicas]]:
    names: st.SearchStrategy[str | None] = st.sampled_from((None, "a", "b", "c")) if with_racks else st.none()
    racks: Racks = draw(st.dictionaries(st.integers(1, 9), names, min_size=1, max_size=7))
    nodes = st.lists(st.sampled_from(sorted(racks)), min_size=1, max_size=3, unique=True).map(tuple)
    sizes = st.one_of(st.just(0), st.integers(0, 10), st.integers(0, 1 << 40))
    rows = draw(st.lists(st.tuples(nodes, sizes), max_size=40))
    return racks, [Replicas((f"t{index % 3}", index), *row) for index, row in enumerate(rows)]


def carried_out(partitions: list[Replicas], moves: list[Move]) -> list[Replicas]:
    after = {move.place: move.after for move in moves}
    return [each._replace(nodes=after.get(each.place, each.nodes)) for each in partitions]


def on_nodes(racks: Racks, partitions: list[Replicas]) -> list[int]:
    counts = Counter(node for each in partitions for node in each.nodes)
    return [counts[node] for node in racks]


def led_by(racks: Racks, partitions: list[Replicas]) -> list[int]:
    counts = Counter(each.nodes[0] for each in partitions)
    return [counts[node] for node in racks]


def spread(numbers: list[int]) -> int:
    return max(numbers) - min(numbers)


def racks_of(racks: Racks, each: Replicas) -> int:
    return len({racks[node] or "" for node in each.nodes})


def check(racks: Racks, partitions: list[Replicas], moves: list[Move]) -> list[Replicas]:
    """What holds of every plan."""
    after = carried_out(partitions, moves)
    by_place = {each.place: each for each in partitions}
    assert len({move.place for move in moves}) == len(moves)
    for move in moves:
        assert move.before == by_place[move.place].nodes != move.after
        assert len(set(move.after)) == len(move.after) == len(move.before)
        assert set(move.after) <= set(racks)
        assert move.bytes_moved == by_place[move.place].bytes * len(set(move.after) - set(move.before))
    return after


@given(clusters())
def test_a_balanced_cluster_is_spread_over_racks_and_left_alone(cluster: tuple[Racks, list[Replicas]]) -> None:
    racks, partitions = cluster
    after = check(racks, partitions, balanced(racks, partitions))
    there = len({rack or "" for rack in racks.values()})
    assert all(racks_of(racks, each) == min(len(each.nodes), there) for each in after)
    assert balanced(racks, after) == []
    assert balanced(racks, list(reversed(partitions))) == balanced(racks, partitions)


@given(clusters(with_racks=False))
def test_without_racks_nodes_have_as_many_replicas_as_each_other(cluster: tuple[Racks, list[Replicas]]) -> None:
    racks, partitions = cluster
    after = check(racks, partitions, balanced(racks, partitions))
    assert spread(on_nodes(racks, after)) <= 1
    assert spread(led_by(racks, after)) <= max(1, spread(led_by(racks, partitions)))


@given(st.integers(3, 7), st.integers(1, 60), st.randoms(use_true_random=False))
def test_leaders_are_evened_out(count: int, partitions: int, chance: object) -> None:
    """From the worst there is, all on a few: every node leads as many as any other, give or take one."""
    racks: Racks = dict.fromkeys(range(1, count + 1))
    start = [Replicas(("t", index), (1, 2, 3)) for index in range(partitions)]
    after = check(racks, start, balanced(racks, start))
    assert spread(led_by(racks, after)) <= 1
    assert spread(on_nodes(racks, after)) <= 1


def test_leaders_are_handed_on_over_a_third() -> None:
    """Node 1 leads too much and shares nothing with node 3, which leads nothing: node 2 takes from one, gives to the
    other."""
    start = [Replicas(("t", index), (1, 2)) for index in range(2)] + [Replicas(("t", 2), (2, 3))]
    start += [Replicas(("t", 3), (3, 1)), Replicas(("t", 4), (3, 1)), Replicas(("t", 5), (1, 2))]
    racks: Racks = dict.fromkeys((1, 2, 3))
    after = check(racks, start, balanced(racks, start))
    assert spread(led_by(racks, after)) == 0


def test_bytes_are_evened_out_by_exchanges() -> None:
    start = [Replicas(("t", index), (1,), 1000) for index in range(4)]
    start += [Replicas(("u", index), (2,), 10) for index in range(4)]
    racks: Racks = dict.fromkeys((1, 2))
    moves = balanced(racks, start)
    after = check(racks, start, moves)
    bytes_on = [sum(each.bytes for each in after if node in each.nodes) for node in racks]
    assert spread(bytes_on) <= BYTES_SPREAD * sum(bytes_on) / 2
    assert (spread(on_nodes(racks, after)), len(moves)) == (0, 4)


def test_the_lightest_replicas_go() -> None:
    start = [Replicas(("t", index), (1,), index) for index in range(4)]
    moves = balanced(dict.fromkeys((1, 2)), start)
    assert sum(move.bytes_moved for move in moves) <= 3


@given(clusters(), st.data())
def test_nobody_who_is_emptied_keeps_a_replica(cluster: tuple[Racks, list[Replicas]], data: st.DataObject) -> None:
    racks, partitions = cluster
    gone = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=2))
    rest: Racks = {node: rack for node, rack in racks.items() if node not in gone}
    widest = max((len(each.nodes) for each in partitions if gone & set(each.nodes)), default=0)
    if widest > len(rest):
        with pytest.raises(UnsatisfiablePlanError, match=r"replicas?, and only \d nodes? would be left"):
            emptied(racks, partitions, gone)
        return
    moves = emptied(racks, partitions, gone)
    after = check(racks, partitions, moves)
    assert not gone & {node for each in after for node in each.nodes}
    assert all(gone & set(move.before) for move in moves), "nothing else is moved"
    kept = check(racks, partitions, balanced(racks, partitions, gone))
    assert not gone & {node for each in kept for node in each.nodes}


def test_what_is_emptied_keeps_its_racks() -> None:
    racks: Racks = {1: "a", 2: "b", 3: "b", 4: "a"}
    (move,) = emptied(racks, [Replicas(("t", 0), (1, 2))], [1])
    assert move.after == (4, 2)


def test_a_replica_on_a_node_that_is_down_stays() -> None:
    assert balanced(dict.fromkeys((1, 2)), [Replicas(("t", 0), (9, 1)), Replicas(("t", 1), (2, 9))]) == []


@given(clusters(), st.integers(1, 9))
def test_others_lead(cluster: tuple[Racks, list[Replicas]], node: int) -> None:
    racks, partitions = cluster
    moves = led_by_others(partitions, [node], {})
    after = check(racks, partitions, moves)
    assert all(move.bytes_moved == 0 for move in moves)
    assert all(each.nodes[0] != node or len(each.nodes) == 1 for each in after)


def test_of_what_a_node_leads_the_first_replica_in_sync_is_preferred() -> None:
    partitions = [Replicas(("t", 0), (1, 3, 2)), Replicas(("t", 1), (3, 1, 2)), Replicas(("t", 2), (3, 2, 1))]
    moves = led_by_others(partitions, [1], {("t", 0): (1, 2), ("t", 1): (1, 2)})
    assert [(move.place, move.after) for move in moves] == [(("t", 0), (2, 3, 1)), (("t", 1), (2, 3, 1))]
