"""Says what a plan changes: for each node its leaders, replicas and bytes before and after, and what it copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ottla.client.placement.balance import Move, Replicas, TopicPartition


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The share of a node before and after a plan; `leaders` counts the partitions of which it is the preferred leader.
    `sends` and `receives` are the bytes that the moves copy from it and to it."""

    node: int
    rack: str | None
    leaders: tuple[int, int]
    replicas: tuple[int, int]
    bytes: tuple[int, int]
    sends: int
    receives: int


def after(places: Iterable[Replicas], moves: Iterable[Move]) -> list[Replicas]:
    """The replicas of each partition after these moves."""
    targets = {move.place: move.after for move in moves}
    return [each._replace(nodes=targets.get(each.place, each.nodes)) for each in places]


def shares_of(
    racks: Mapping[int, str | None],
    places: Sequence[Replicas],
    moves: Sequence[Move],
    leaders: Mapping[TopicPartition, int] | None = None,
) -> list[NodeShare]:
    """The share of each node. `leaders`: the present leaders, which send the copies (default: the preferred ones)."""
    now, then = counts(places), counts(after(places, moves))
    sends, receives = Counter[int](), Counter[int]()
    for move in moves:
        sends[(leaders or {}).get(move.place, move.before[0])] += move.bytes_moved
        for node in set(move.after) - set(move.before):
            receives[node] += move.bytes
    return [
        NodeShare(
            node,
            racks[node],
            (now[0][node], then[0][node]),
            (now[1][node], then[1][node]),
            (now[2][node], then[2][node]),
            sends[node],
            receives[node],
        )
        for node in sorted(racks)
    ]


def counts(places: Iterable[Replicas]) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """For each node: how many partitions it is the preferred leader of, how many replicas it has, and their bytes."""
    leaders, replicas, size = Counter[int](), Counter[int](), Counter[int]()
    for each in places:
        leaders[each.nodes[0]] += 1
        for node in each.nodes:
            replicas[node] += 1
            size[node] += each.bytes
    return leaders, replicas, size


def crowded(racks: Mapping[int, str | None], places: Iterable[Replicas]) -> int:
    """How many partitions have two replicas in a rack although another rack has none; replicas on nodes that are down
    are in no rack."""
    known = {rack or "" for rack in racks.values()}
    return sum(
        len({racks[node] or "" for node in each.nodes if node in racks}) < min(len(each.nodes), len(known))
        for each in places
    )
