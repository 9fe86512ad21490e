"""Where the replicas of new partitions go."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.cluster.spreading import spread


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from((None, "a", "b", "c")), min_size=1, max_size=9),
    st.integers(0, 60),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_every_replica_has_a_node_and_racks_fill_evenly(
    racks: dict[int, str | None], partitions: int, factor: int, chance: random.Random
) -> None:
    factor = min(factor, len(racks))
    placed = spread(racks, partitions, factor, chance)
    assert len(placed) == partitions
    nodes_in = Counter(racks.values())
    for replicas in placed:
        assert len(set(replicas)) == factor
        used = Counter(racks[node_id] for node_id in replicas)
        for rack, count in used.items():
            others_with_room = [other for other in nodes_in if used[other] < nodes_in[other] and other != rack]
            assert all(count - used[other] <= 1 for other in others_with_room)
    leaders = Counter(replicas[0] for replicas in placed)
    if partitions:
        assert max(leaders.values()) - min(leaders.get(node_id, 0) for node_id in racks) <= 1


def test_followers_of_one_leader_are_spread() -> None:
    """What one node led is led by several others after it."""
    placed = spread(dict.fromkeys(range(5)), 50, 3, random.Random(1))
    seconds = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert len(seconds) == 4
