"""Places the replicas of new partitions: evenly over racks, then over nodes.

Nodes form a line in which neighbours are in different racks. Leaders follow the line from a random start. Followers are
behind their leader with a gap that grows with each lap, so that many nodes take over what one node led. A replica goes
to a rack that has one already only if every rack has one, and never to a node twice. Nodes that are down get replicas
only if there are too few others, after these.

Source: Kafka's StripedReplicaPlacer.java, AdminUtils.assignReplicasToBrokersRackAware.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest

from ottla.machine import Entropy


def spread(racks: Mapping[int, str | None], partitions: int, factor: int, entropy: Entropy) -> list[tuple[int, ...]]:
    """The replicas of so many partitions, the leader first. `racks`: of each node that may have one, at least `factor`
    of them."""
    line = _line(racks)
    assert 1 <= factor <= len(line)
    start = entropy.randrange(len(line))
    gap = entropy.randrange(len(line))
    return [_replicas(racks, line, start + index, gap + index // len(line), factor) for index in range(partitions)]


def spread_also(
    up: Mapping[int, str | None], down: Mapping[int, str | None], partitions: int, factor: int, entropy: Entropy
) -> list[tuple[int, ...]]:
    """The same if some of the nodes are down: at least one is up, and there are `factor` of them in all."""
    placed = spread(up, partitions, min(factor, len(up)), entropy)
    if factor <= len(up):
        return placed
    waiting = spread(down, partitions, factor - len(up), entropy)
    return [first + then for first, then in zip(placed, waiting, strict=True)]


def _line(racks: Mapping[int, str | None]) -> list[int]:
    """All nodes, with neighbours in different racks as far as possible."""
    by_rack: dict[str, list[int]] = {}
    for node_id in sorted(racks):
        by_rack.setdefault(racks[node_id] or "", []).append(node_id)
    laps = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [node_id for lap in laps for node_id in lap if node_id is not None]


def _replicas(racks: Mapping[int, str | None], line: list[int], at: int, gap: int, factor: int) -> tuple[int, ...]:
    leader = line[at % len(line)]
    others = len(line) - 1
    followers = [line[(at + 1 + (gap + step) % others) % len(line)] for step in range(others)]
    chosen = [leader]
    # Racks are filled evenly: a node waits while another rack has fewer replicas and a node left.
    while len(chosen) < factor:
        used = [racks[node_id] for node_id in chosen]
        left = [node_id for node_id in followers if node_id not in chosen]
        chosen.append(min(left, key=lambda node_id: used.count(racks[node_id])))
    return tuple(chosen)
