"""Plans moves of replicas and leaders, so that every node has its share of them and of their bytes.

It gets the location, size and racks of replicas, and returns their new locations. It is pure: it sends no requests, and
the same cluster gives the same plan.

The steps, each of which preserves what earlier ones have reached:

- nodes to be emptied keep no replica;
- a partition's replicas are in as many racks as possible;
- nodes have equal numbers of replicas, within one, as far as racks allow;
- nodes have about equal bytes, by exchanges of replicas that keep their numbers;
- nodes are the preferred leader of equal numbers of partitions, within one, as far as replicas allow. This moves no
  bytes: only the order of a partition's replicas changes.

A balanced cluster stays unchanged: after a plan is carried out, the next plan is empty. To equalise numbers, the
smallest suitable replica is moved, so that as few bytes as possible are copied.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from ottla.wording import counted

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""
BYTES_SPREAD: Final = 0.1
"""Nodes are left alone if their bytes differ by less than this fraction of their mean."""
EXCHANGES_MAX: Final = 1_000


class Replicas(NamedTuple):
    """A partition's replicas, the preferred leader first, and the bytes of each."""

    place: TopicPartition
    nodes: tuple[int, ...]
    bytes: int = 0


class Move(NamedTuple):
    """The present and the planned replicas of a partition."""

    place: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    bytes: int = 0

    @property
    def bytes_moved(self) -> int:
        """The bytes that have to be copied."""
        return self.bytes * len(set(self.after) - set(self.before))


class UnsatisfiablePlanError(Exception):
    """No plan exists; the text is one sentence that says why."""


def balanced(racks: Mapping[int, str | None], partitions: Iterable[Replicas], away: Collection[int] = ()) -> list[Move]:
    """The moves that distribute these partitions over the active nodes, `racks`, except those to be emptied (`away`).
    Replicas on other nodes stay. Raises UnsatisfiablePlanError."""
    balance = _Balance(racks, partitions, away)
    balance.empty()
    balance.spread_over_racks()
    balance.even_out_replicas()
    balance.even_out_bytes()
    balance.even_out_leaders()
    return balance.moves()


def emptied(racks: Mapping[int, str | None], partitions: Iterable[Replicas], nodes: Collection[int]) -> list[Move]:
    """The moves that empty these nodes and change nothing else. Raises UnsatisfiablePlanError."""
    balance = _Balance(racks, partitions, nodes)
    balance.empty()
    return balance.moves()


def led_by_others(
    partitions: Iterable[Replicas], nodes: Collection[int], in_sync: Mapping[TopicPartition, Collection[int]]
) -> list[Move]:
    """The moves after which other nodes than these are preferred leaders, if a partition has other replicas. `in_sync`:
    the replicas that may lead the partitions which these nodes lead now; such a replica becomes the first."""
    moves: list[Move] = []
    for place, before, size in partitions:
        may_lead = in_sync.get(place, before)
        after = tuple(sorted(before, key=lambda node: (node in nodes, node not in may_lead)))
        if after[0] != before[0]:
            moves.append(Move(place, before, after, size))
    return moves


@dataclass
class _Balance:
    """The state of a plan in progress."""

    racks: Mapping[int, str | None]
    partitions: Iterable[Replicas]
    away: Collection[int]
    before: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict[TopicPartition, tuple[int, ...]])
    weight: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])

    def __post_init__(self) -> None:
        for place, nodes, size in sorted(self.partitions):
            self.before[place], self.weight[place] = nodes, size
        self.after = {place: list(nodes) for place, nodes in self.before.items()}
        self.nodes = sorted(set(self.racks) - set(self.away))
        self.on: dict[int, set[TopicPartition]] = {node: set() for node in {*self.racks, *self.away}}
        for place, nodes in self.before.items():
            for node in nodes:
                self.on.setdefault(node, set()).add(place)
        self.heavy = {node: sum(self.weight[place] for place in places) for node, places in self.on.items()}
        self.rack = {node: rack or "" for node, rack in self.racks.items()}

    def moves(self) -> list[Move]:
        """The changes so far."""
        return [
            Move(place, nodes, tuple(self.after[place]), self.weight[place])
            for place, nodes in self.before.items()
            if nodes != tuple(self.after[place])
        ]

    # ---- steps -----------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Move the replicas on nodes to be emptied: to racks that lack them, and to the nodes with the fewest."""
        for place, nodes in self.after.items():
            for old in [node for node in nodes if node in self.away]:
                free = [node for node in self.nodes if node not in nodes]
                if not free:
                    raise UnsatisfiablePlanError(
                        f"{place[0]}-{place[1]} has {counted(len(nodes), 'replica')}, and only "
                        f"{counted(len(self.nodes), 'node')} would be left for them."
                    )
                used = Counter(self.rack.get(node) for node in nodes if node != old)
                self._move(place, old, min(free, key=lambda node: (used[self.rack[node]], *self._load(node))))

    def spread_over_racks(self) -> None:
        """Move a replica that shares its rack with another replica of its partition to a rack that has none."""
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
        """Move the smallest suitable replicas from nodes with many to nodes with few, while that reduces the
        difference."""
        mean = sum(len(self.on[node]) for node in self.nodes) / max(1, len(self.nodes))
        while True:
            ranked = sorted(self.nodes, key=self._load)
            pairs = ((many, few) for many in reversed(ranked) for few in ranked)
            if not any(self._even_out(many, few, mean) for many, few in pairs):
                return

    def _even_out(self, many: int, few: int, mean: float) -> bool:
        """Bring both nodes closer to the mean; returns whether anything changed."""
        apart = len(self.on[many]) - len(self.on[few])
        if apart <= 1:
            return False
        movable = sorted((self.weight[place], place) for place in self.on[many] if self._may_move(place, many, few))
        count = max(1, min(len(self.on[many]) - ceil(mean), int(mean) - len(self.on[few])))
        for _, place in movable[:count]:
            self._move(place, many, few)
        return bool(movable)

    def even_out_bytes(self) -> None:
        """Exchange a large replica of the node with the most bytes for a small one of another, while that reduces the
        difference."""
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
        """Transfer preferred leaderships along chains of nodes, from nodes with many to nodes with few, while that
        reduces the difference. Each node of a chain has replicas of partitions that the one before it leads."""
        led: dict[int, dict[TopicPartition, None]] = {node: {} for node in self.nodes}
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

    def _move(self, place: TopicPartition, old: int, new: int) -> None:
        nodes = self.after[place]
        nodes[nodes.index(old)] = new
        self.on[old].remove(place)
        self.on[new].add(place)
        self.heavy[old] -= self.weight[place]
        self.heavy[new] += self.weight[place]

    def _may_move(self, place: TopicPartition, old: int, new: int) -> bool:
        """Whether the partition has no replica there yet, and would not lose a rack."""
        nodes = self.after[place]
        if new in nodes:
            return False
        others = [self.rack.get(node) for node in nodes if node != old]
        return self.rack[old] in others or self.rack[new] not in others

    def _exchange(self, heavy: int, light: int) -> tuple[TopicPartition, TopicPartition, int, int] | None:
        """The exchange between these two nodes that makes their bytes most equal."""
        gap = self.heavy[heavy] - self.heavy[light]
        givable = [place for place in self.on[heavy] if self._may_move(place, heavy, light)]
        takable = [place for place in self.on[light] if self._may_move(place, light, heavy)]
        takable.sort(key=lambda place: (self.weight[place], place))
        weights = [self.weight[place] for place in takable]
        best: tuple[int, TopicPartition, TopicPartition] | None = None
        if not takable:
            return None
        for place in sorted(givable, key=lambda place: (-self.weight[place], place)):
            other = takable[_closest(weights, self.weight[place] - gap / 2)]
            after = abs(gap - 2 * (self.weight[place] - self.weight[other]))
            if best is None or after < best[0]:
                best = after, place, other
        if best is None or best[0] > gap * (1 - BYTES_SPREAD):
            return None
        return best[1], best[2], heavy, light

    def _chain(
        self, many: int, led: Mapping[int, Collection[TopicPartition]]
    ) -> list[tuple[TopicPartition, int, int]] | None:
        """The shortest chain of transfers from this node to one that leads at least two fewer partitions."""
        came: dict[int, tuple[TopicPartition, int]] = {}
        queue, seen = deque([many]), {many}
        while queue:
            node = queue.popleft()
            if len(led[many]) - len(led[node]) > 1:
                chain: list[tuple[TopicPartition, int, int]] = []
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


def _closest(weights: list[int], wanted: float) -> int:
    """Where the weight is that is closest to `wanted`, in a list in order that is not empty."""
    at = bisect_left(weights, wanted)
    return min(range(max(0, at - 1), min(at + 1, len(weights))), key=lambda each: abs(weights[each] - wanted))
