"""Works out what an unclean election would lose, before it does: which log would lead, which logs have more.

A replica that is up reports where its log ends (ListOffsets with the debugging replica id). What a replica that is down
has is unknown; whether it was eligible to lead, and so has every acknowledged record, the cluster knows (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.cli.cluster.facts import Placed
from ottla.cli.output import counted
from ottla.cli.replicas.balance import Place

if TYPE_CHECKING:
    from ottla.client import Client

LATEST, DEBUGGING = -1, -2


@dataclass(frozen=True, slots=True)
class Loss:
    """One partition whose election may lose records. `ends`: where the logs end, by node, of replicas that answer."""

    place: Place
    leader: int
    ends: Mapping[int, int]
    down: Sequence[int]
    eligible: Sequence[int]

    def __str__(self) -> str:
        end = self.ends[self.leader]
        said = [f"{self.place[0]}-{self.place[1]}: node {self.leader} would lead with the records before offset {end}."]
        for node in self.down:
            has = "has every acknowledged record" if node in self.eligible else "may have more"
            said.append(f"Node {node}, which does not answer, {has}; it would lose what it has from {end} on.")
        for node, other in sorted(self.ends.items()):
            if other > end:
                said.append(
                    f"Node {node} has the records before {other}; it would lose {counted(other - end, 'record')}."
                )
        return " ".join(said)


def losses(
    parts: Iterable[Placed], eligible: Mapping[Place, Sequence[int]], ends: Mapping[int, Mapping[Place, int]]
) -> list[Loss]:
    """The elections among these partitions that may lose records, in order.

    A partition without a leader gets the replica whose log ends last, of those that answer. One with a leader keeps it,
    and replicas that have more, because they refuse to follow it, are cut to its log.
    """
    found: list[Loss] = []
    for part in parts:
        place = part.topic, part.partition
        known = {node: ends[node][place] for node in part.replicas if place in ends.get(node, ())}
        down = [node for node in part.replicas if node not in known]
        if part.leader < 0 and known:
            found.append(Loss(place, max(known, key=lambda node: known[node]), known, down, eligible.get(place, ())))
        elif part.leader in known and any(
            end > known[part.leader] for node, end in known.items() if node not in part.isr
        ):
            found.append(Loss(place, part.leader, known, (), ()))
    return found


def log_ends(
    client: Client, client_of: Callable[[str], Client], parts: Sequence[Placed]
) -> dict[int, dict[Place, int]]:
    """Where the logs of these partitions end, by node and place; without those of nodes that do not answer.

    Raises ClientFailure where the cluster does not answer."""
    from ottla.client import ClientFailure
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    found: dict[int, dict[Place, int]] = {}
    for broker in client.send(DescribeClusterRequest(include_fenced_brokers=True)).brokers:
        places = [(part.topic, part.partition) for part in parts if broker.broker_id in part.replicas]
        if places and not broker.is_fenced:
            with suppress(ClientFailure), client_of(f"{broker.host}:{broker.port}") as node:
                found[broker.broker_id] = _ends_at(node, places)
    return found


def _ends_at(node: Client, places: Sequence[Place]) -> dict[Place, int]:
    from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

    asked: dict[str, list[ListOffsetsPartition]] = {}
    for topic, partition in places:
        asked.setdefault(topic, []).append(ListOffsetsPartition(partition, timestamp=LATEST))
    request = ListOffsetsRequest(DEBUGGING, topics=[ListOffsetsTopic(topic, some) for topic, some in asked.items()])
    return {
        (topic.name, part.partition_index): part.offset
        for topic in node.send(request).topics
        for part in topic.partitions
        if not part.error_code and part.offset >= 0
    }
