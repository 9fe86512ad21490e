"""Plans new replicas for some topics: on these nodes only, or more or fewer of them.

It gets the location, size and racks of replicas. It copies as little as possible: a node keeps its replica if it may.
It is pure; balance.py then balances the named nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ottla.client.placement.balance import Move, Replicas, TopicPartition, UnsatisfiablePlanError, balanced
from ottla.wording import counted


def placed_anew(
    racks: Mapping[int, str | None], partitions: Sequence[Replicas], nodes: Collection[int] | None, factor: int | None
) -> list[Move]:
    """The moves after which these partitions have `factor` replicas, distributed evenly over `nodes`.

    If `factor` is None, they keep their number of replicas. If `nodes` is None, any active node may be used, and only
    the moves that the number requires are made. Raises UnsatisfiablePlanError.
    """
    strange = sorted(set(nodes or ()) - set(racks))
    if strange:
        raise UnsatisfiablePlanError(f"Node {strange[0]} does not serve.")
    wanted = sorted(racks if nodes is None else nodes)
    after = {each.place: each for each in _resized(racks, partitions, wanted, factor)}
    if nodes is not None:
        away = {*racks, *(node for each in partitions for node in each.nodes)} - set(wanted)
        for move in balanced(racks, list(after.values()), away):
            after[move.place] = after[move.place]._replace(nodes=move.after)
    return [
        Move(each.place, each.nodes, after[each.place].nodes, each.bytes)
        for each in partitions
        if after[each.place].nodes != each.nodes
    ]


def _resized(
    racks: Mapping[int, str | None], partitions: Sequence[Replicas], wanted: Sequence[int], factor: int | None
) -> list[Replicas]:
    load = Counter(node for each in partitions for node in each.nodes)
    resized: list[Replicas] = []
    for each in sorted(partitions):
        size = factor or len(each.nodes)
        if size > len(wanted):
            raise UnsatisfiablePlanError(
                f"{_name(each.place)} can't have {counted(size, 'replica')} on {counted(len(wanted), 'node')}."
            )
        nodes = list(each.nodes)
        while len(nodes) > size:
            goes = _dispensable(racks, nodes, wanted, load)
            nodes.remove(goes)
            load[goes] -= 1
        while len(nodes) < size:
            used = Counter(racks.get(node) for node in nodes)
            comes = min((n for n in wanted if n not in nodes), key=lambda n: (used[racks[n]], load[n], n), default=None)
            if comes is None:
                raise UnsatisfiablePlanError(
                    f"{_name(each.place)} can't have {counted(size, 'replica')} on {counted(len(wanted), 'node')}."
                )
            nodes.append(comes)
            load[comes] += 1
        resized.append(each._replace(nodes=tuple(nodes)))
    return resized


def _dispensable(
    racks: Mapping[int, str | None], nodes: Sequence[int], wanted: Collection[int], load: Mapping[int, int]
) -> int:
    """The node to remove first: one that should have no replica, then one that shares its rack with another, then the
    busiest; the leader comes last."""
    used = Counter(racks.get(node) for node in nodes)
    return max(
        nodes, key=lambda node: (node not in wanted, node != nodes[0], used[racks.get(node)] > 1, load[node], node)
    )


def _name(place: TopicPartition) -> str:
    return f"{place[0]}-{place[1]}"
