"""Plans which replicas and leaders go elsewhere, so that every node has its share of them and of their bytes.

Knows where replicas are, what they weigh and in which rack each node stands; says where they are to be. Pure: it asks
nobody and moves nothing, and the same cluster gives the same plan.

In this order, each step keeping what those before it have reached:
- nobody who is to be emptied keeps a replica;
- a partition's replicas stand in as many racks as there can be;
- nodes have as many replicas as each other, give or take one, as far as racks allow;
- nodes have about as many bytes, by exchanges of replicas that keep their number;
- nodes are the preferred leader of as many partitions as each other, give or take one, as far as replicas allow. That
  moves no byte: only the order of a partition's replicas changes.

What is balanced already is left alone: a plan, carried out, is followed by an empty one. As few bytes as possible are
moved for numbers: the lightest replica that helps goes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from ottla.cli.output import counted

Place: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""
BYTES_SPREAD: Final = 0.1
"""Nodes whose bytes differ by less than this part of their mean are left alone."""
EXCHANGES_MAX: Final = 1_000


class Replicas(NamedTuple):
    """A partition's replicas, the preferred leader first, and the bytes of each."""

    place: Place
    nodes: tuple[int, ...]
    bytes: int = 0


class Move(NamedTuple):
    """Where the replicas of a partition are, and where they are to be."""

    place: Place
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes: int = 0

    @property
    def bytes_moved(self) -> int:
        """What has to be copied."""
        return self.bytes * len(set(self.after) - set(self.before))


class Impossible(Exception):
    """There is no such plan; a plain sentence says why."""


def balanced(racks: Mapping[int, str | None], partitions: Iterable[Replicas], away: Collection[int] = ()) -> list[Move]:
    """The moves that spread these partitions over the nodes of `racks`, those that serve, but for those that are to be
    emptied (`away`). Replicas on nodes of neither kind stay. Raises Impossible."""
    balance = _Balance(racks, partitions, away)
    balance.empty()
    balance.spread_over_racks()
    balance.even_out_replicas()
    balance.even_out_bytes()
    balance.even_out_leaders()
    return balance.moves()


def emptied(racks: Mapping[int, str | None], partitions: Iterable[Replicas], nodes: Collection[int]) -> list[Move]:
    """The moves that leave nothing on these nodes, and anything else where it is. Raises Impossible."""
    balance = _Balance(racks, partitions, nodes)
    balance.empty()
    return balance.moves()


def led_by_others(
    partitions: Iterable[Replicas], nodes: Collection[int], in_sync: Mapping[Place, Collection[int]]
) -> list[Move]:
    """The moves after which others than these nodes are preferred as leaders, where a partition has others. `in_sync`:
    who may lead the partitions that these nodes lead now; such a replica comes first there."""
    moves: list[Move] = []
    for place, before, size in partitions:
        may_lead = in_sync.get(place, before)
        after = tuple(sorted(before, key=lambda node: (node in nodes, node not in may_lead)))
        if after[0] != before[0]:
            moves.append(Move(place, before, after, size))
    return moves


@dataclass
class _Balance:
    """Where everything stands while a plan is made."""

    racks: Mapping[int, str | None]
    partitions: Iterable[Replicas]
    away: Collection[int]
    before: dict[Place, tuple[int, ...]] = field(default_factory=dict[Place, tuple[int, ...]])
    weight: dict[Place, int] = field(default_factory=dict[Place, int])

    def __post_init__(self) -> None:
        for place, nodes, size in sorted(self.partitions):
            self.before[place], self.weight[place] = nodes, size
        self.after = {place: list(nodes) for place, nodes in self.before.items()}
        self.nodes = sorted(set(self.racks) - set(self.away))
        self.on: dict[int, set[Place]] = {node: set() for node in {*self.racks, *self.away}}
        for place, nodes in self.before.items():
            for node in nodes:
                self.on.setdefault(node, set()).add(place)
        self.heavy = {node: sum(self.weight[place] for place in places) for node, places in self.on.items()}
        self.rack = {node: rack or "" for node, rack in self.racks.items()}

    def moves(self) -> list[Move]:
        """What is otherwise than before."""
        return [
            Move(place, nodes, tuple(self.after[place]), self.weight[place])
            for place, nodes in self.before.items()
            if nodes != tuple(self.after[place])
        ]

    # ---- steps -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Put what is on the nodes to be emptied on others: in the racks that lack it, on those that have least."""
        for place, nodes in self.after.items():
            for old in [node for node in nodes if node in self.away]:
                free = [node for node in self.nodes if node not in nodes]
                if not free:
                    raise Impossible(
                        f"{place[0]}-{place[1]} has {counted(len(nodes), 'replica')}, and only "
                        f"{counted(len(self.nodes), 'node')} would be left for them."
                    )
                used = Counter(self.rack.get(node) for node in nodes if node != old)
                self._move(place, old, min(free, key=lambda node: (used[self.rack[node]], *self._load(node))))

    def spread_over_racks(self) -> None:
        """Put a replica whose rack has another one of its partition into a rack that has none."""
        racks = {self.rack[node] for node in self.nodes}
        for place, nodes in self.after.items():
            while True:
                used = Counter(self.rack.get(node, "") for node in nodes)
                new = [node for node in self.nodes if self.rack[node] in racks - used.keys()]
                doubled = [node for node in nodes if used[self.rack.get(node, "")] > 1]
                if not new or not doubled:
                    break
                self._move(place, max(doubled, key=self._load), min(new, key=self._load))

    def even_out_replicas(self) -> None:
        """Put the lightest replicas that may go from a node with many on one with few, while that evens them out."""
        mean = sum(len(self.on[node]) for node in self.nodes) / max(1, len(self.nodes))
        while True:
            ranked = sorted(self.nodes, key=self._load)
            pairs = ((many, few) for many in reversed(ranked) for few in ranked)
            if not any(self._even_out(many, few, mean) for many, few in pairs):
                return

    def _even_out(self, many: int, few: int, mean: float) -> bool:
        """Bring both towards the mean; whether anything could be done."""
        apart = len(self.on[many]) - len(self.on[few])
        if apart <= 1:
            return False
        movable = sorted((self.weight[place], place) for place in self.on[many] if self._may_move(place, many, few))
        count = max(1, min(len(self.on[many]) - ceil(mean), int(mean) - len(self.on[few])))
        for _, place in movable[:count]:
            self._move(place, many, few)
        return bool(movable)

    def even_out_bytes(self) -> None:
        """Exchange a heavy replica of the heaviest node for a light one of another, while that evens them out."""
        for _ in range(EXCHANGES_MAX):
            ranked = sorted(self.nodes, key=lambda node: (self.heavy[node], node))
            if not ranked or self.heavy[ranked[-1]] - self.heavy[ranked[0]] <= BYTES_SPREAD * self._mean():
                return
            exchanges = (self._exchange(ranked[-1], light) for light in ranked[:-1])
            exchange = next((each for each in exchanges if each is not None), None)
            if exchange is None:
                return
            place, other, heavy, light = exchange
            self._move(place, heavy, light)
            self._move(other, light, heavy)

    def even_out_leaders(self) -> None:
        """Hand the preference for leading along chains of nodes, each of which has replicas of what the one before it
        leads, from nodes with many to nodes with few, while that evens them out."""
        led: dict[int, dict[Place, None]] = {node: {} for node in self.nodes}
        for place, nodes in self.after.items():
            if nodes[0] in led:
                led[nodes[0]][place] = None
        while True:
            ranked = sorted(self.nodes, key=lambda node: (len(led[node]), node))
            chain = next(filter(None, (self._chain(many, led) for many in reversed(ranked))), None)
            if chain is None:
                return
            for place, old, new in chain:
                nodes = self.after[place]
                nodes.remove(new)
                nodes.insert(0, new)
                del led[old][place]
                led[new][place] = None

    # ---- choices ---------------------------------------------------------------------------------------------------

    def _load(self, node: int) -> tuple[int, int, int]:
        return len(self.on[node]), self.heavy[node], node

    def _mean(self) -> float:
        return sum(self.heavy[node] for node in self.nodes) / len(self.nodes)

    def _move(self, place: Place, old: int, new: int) -> None:
        nodes = self.after[place]
        nodes[nodes.index(old)] = new
        self.on[old].remove(place)
        self.on[new].add(place)
        self.heavy[old] -= self.weight[place]
        self.heavy[new] += self.weight[place]

    def _may_move(self, place: Place, old: int, new: int) -> bool:
        """Whether the partition has no replica there yet, and is in as many racks afterwards."""
        nodes = self.after[place]
        if new in nodes:
            return False
        others = {self.rack.get(node) for node in nodes if node != old}
        return self.rack[old] in others or self.rack[new] not in others

    def _exchange(self, heavy: int, light: int) -> tuple[Place, Place, int, int] | None:
        """What to exchange between these two, so that their bytes come closest to each other."""
        gap = self.heavy[heavy] - self.heavy[light]
        givable = [place for place in self.on[heavy] if self._may_move(place, heavy, light)]
        takable = [place for place in self.on[light] if self._may_move(place, light, heavy)]
        takable.sort(key=lambda place: (self.weight[place], place))
        best: tuple[int, Place, Place] | None = None
        for place in sorted(givable, key=lambda place: (-self.weight[place], place)):
            other = _closest(takable, self.weight, self.weight[place] - gap / 2)
            if other is None:
                return None
            after = abs(gap - 2 * (self.weight[place] - self.weight[other]))
            if best is None or after < best[0]:
                best = after, place, other
        if best is None or best[0] > gap * (1 - BYTES_SPREAD):
            return None
        return best[1], best[2], heavy, light

    def _chain(self, many: int, led: Mapping[int, Collection[Place]]) -> list[tuple[Place, int, int]] | None:
        """The shortest chain of hand-overs from this node to one that leads at least two less."""
        came: dict[int, tuple[Place, int]] = {}
        queue, seen = deque([many]), {many}
        while queue:
            node = queue.popleft()
            if len(led[many]) - len(led[node]) > 1:
                chain: list[tuple[Place, int, int]] = []
                while node != many:
                    place, giver = came[node]
                    chain.append((place, giver, node))
                    node = giver
                return chain
            for place in led[node]:
                for other in self.after[place][1:]:
                    if other in led and other not in seen:
                        seen.add(other)
                        came[other] = place, node
                        queue.append(other)
        return None


def _closest(places: list[Place], weight: Mapping[Place, int], wanted: float) -> Place | None:
    """The one of these, ordered by weight, that weighs closest to this."""
    at = bisect_left(places, wanted, key=lambda place: weight[place])
    near = places[max(0, at - 1) : at + 1]
    return min(near, key=lambda place: abs(weight[place] - wanted)) if near else None
