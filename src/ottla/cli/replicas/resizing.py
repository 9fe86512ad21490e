"""Plans where the replicas of some topics go: to these nodes only, to more or fewer of them.

Knows where replicas are, what they weigh and in which rack each node stands, and that as little as possible is to be
copied: who has a replica keeps it where that may be. Pure, as balance.py, which evens out what goes to named nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ottla.cli.output import counted
from ottla.cli.replicas.balance import Impossible, Move, Place, Replicas, balanced


def placed_anew(
    racks: Mapping[int, str | None], partitions: Sequence[Replicas], nodes: Collection[int] | None, factor: int | None
) -> list[Move]:
    """The moves after which these partitions have `factor` replicas, spread evenly over `nodes`; None: as many as they
    have, and any node that serves, where only what is needed for the number moves. Raises Impossible."""
    strange = sorted(set(nodes or ()) - set(racks))
    if strange:
        raise Impossible(f"Node {strange[0]} does not serve.")
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
            raise Impossible(
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
                raise Impossible(
                    f"{_name(each.place)} can't have {counted(size, 'replica')} on {counted(len(wanted), 'node')}."
                )
            nodes.append(comes)
            load[comes] += 1
        resized.append(each._replace(nodes=tuple(nodes)))
    return resized


def _dispensable(
    racks: Mapping[int, str | None], nodes: Sequence[int], wanted: Collection[int], load: Mapping[int, int]
) -> int:
    """Who is missed least: one that shall have none, one in a rack that has another, the busiest; the leader last."""
    used = Counter(racks.get(node) for node in nodes)
    return max(
        nodes, key=lambda node: (node not in wanted, node != nodes[0], used[racks.get(node)] > 1, load[node], node)
    )


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
