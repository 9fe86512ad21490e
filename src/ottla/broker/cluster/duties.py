"""Says what the controller has to do, as plain values: who takes over as controller, who is fenced, who leads.

These functions read the metadata image and the set of live incarnations, and return the rows to be written. Nothing is
left to do exactly when they return no row. So if a controller dies in the middle of its work, its successor continues
it.

    node's row      it is live               another incarnation is live, or none
    starting        active (*)               fenced
    active          -                        fenced
    leaving         -                        fenced
    fenced          (it registers again)     -

(*) Not if the cluster is at a level of a feature that the node does not support. The level was set while the node
registered, and the node's next start is refused.

If a starting node has seen commits that the store lacks, it has seen a newer store than this one. Then no replica is
known to be in sync, and the logs of each partition decide (`elections.undecided`).

A fenced node loses its leaderships and its places in in-sync sets with the same batch. A starting node loses them
before it becomes active: the partitions that its previous incarnation led get a leader in a higher epoch, or none.

Sources: Kafka's ReplicationControlManager.java (handleBrokerFenced, handleBrokerUnfenced),
BrokerHeartbeatManager.java.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.broker.cluster.adopting import with_found_replicas
from ottla.broker.cluster.elections import (
    EPOCHS_SKIPPED,
    NodeStates,
    Rules,
    awaits_logs,
    preferred,
    settled,
    skipped_by,
    undecided,
)
from ottla.broker.cluster.members import NOBODY
from ottla.broker.cluster.metadata import RowChange
from ottla.broker.cluster.reassignments import completed, is_complete
from ottla.metadata.controllers import CONTROLLER_KEY, ControllerRecord
from ottla.metadata.features import beyond
from ottla.metadata.image import MetadataImage
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import LogEnd, NodeRecord, NodeState, TopicIdPartition
from ottla.metadata.store import ABSENT
from ottla.metadata.topics import PartitionRecord, TopicImage, key_of

ELECTIONS_AT_ONCE: Final = 1_000
"""How many leaderships return with one write, or more if a single topic has more."""
CHECKED_AT_ONCE: Final = 250
"""How many partitions the duties decide about in one slice: some 5 ms of work."""
Present = Mapping[int, str]
"""The incarnations of the live nodes, by id."""
NO_NODES: Final = frozenset[int]()
RulesOf = Callable[[TopicImage], Rules]


def claim(image: MetadataImage, present: Present, node_id: int, incarnation: str) -> RowChange | None:
    """The row with which this node becomes the controller; None if another node is, or may, or if this one is already.

    A node that has just started leaves the claim to one that is active. So if it claims, no node was active before, and
    the store may have been replaced meanwhile.
    """
    known = image.controller
    if known is not None and present.get(known.node_id) == known.incarnation:
        return None
    here = {int(name): row for name, row in image.nodes.items() if present.get(int(name)) == row.incarnation}
    own = here.get(node_id)
    if own is None or own.incarnation != incarnation or own.state is NodeState.FENCED:
        return None  # it registers first
    down_until = 0 if known is None else known.down_until
    if own.state is NodeState.STARTING:
        if any(row.state in (NodeState.ACTIVE, NodeState.LEAVING) for row in here.values()):
            return None
        down_until = min(row.broker_epoch for row in here.values() if row.state is NodeState.STARTING) - 1
    epoch, version = (1, ABSENT) if known is None else (known.epoch + 1, known.version)
    return RowChange(CONTROLLER_KEY, ControllerRecord(node_id, incarnation, epoch, down_until=down_until), version)


@dataclass(frozen=True, slots=True)
class Turnover:
    """The nodes whose state changes, and the state of all nodes before and after the starting ones are active."""

    states: dict[int, NodeState]
    before: NodeStates
    after: NodeStates
    failed: frozenset[int]
    offline: Mapping[TopicIdPartition, frozenset[int]]
    """The nodes on which the log of a partition is offline."""
    incomplete: Mapping[TopicIdPartition, frozenset[int]]
    """The nodes whose log of a partition may lack acknowledged records."""
    reports: Mapping[TopicIdPartition, Mapping[int, NodeRecord]]
    """The rows that report a partition's log end, or a refusal to follow its leader, by node."""

    def at(self, place: TopicIdPartition, placed: PartitionRecord) -> tuple[NodeStates, NodeStates]:
        """The state of the nodes for this partition, before and after."""
        before, after = self.before, self.after
        away = self.offline.get(place, NO_NODES)
        if place in self.incomplete:
            away |= self.incomplete[place]
            before = replace(before, damaged=before.damaged | self.incomplete[place])
            after = replace(after, damaged=self.incomplete[place])
        before, after = before.without(away), after.without(away)
        if place in self.reports:
            refusing, log_ends = _reported(self.reports[place], place, placed)
            before = replace(before, refusing=refusing, log_ends=log_ends)
            after = replace(after, refusing=refusing, log_ends=log_ends)
        return before, after


def turnover(image: MetadataImage, present: Present) -> Turnover:
    """The state changes of the nodes, given the set of live ones."""
    states: dict[int, NodeState] = {}
    active: set[int] = set()
    leaving: set[int] = set()
    damaged: set[int] = set()
    killed: set[int] = set()
    failed: set[int] = set()
    for name, record in image.nodes.items():
        node_id = int(name)
        is_here = present.get(node_id) == record.incarnation
        if record.state is NodeState.FENCED:
            continue
        if not is_here or record.state is NodeState.STARTING:
            failed.add(node_id)
            if not is_here:
                states[node_id] = NodeState.FENCED
            elif beyond(image.levels, record.features) is None:
                states[node_id] = NodeState.ACTIVE
            if record.state is NodeState.STARTING and not record.intact:
                damaged.add(node_id)  # also if it is fenced at once: the next row of its incarnation does not report it
            if record.state is NodeState.STARTING and record.killed:
                killed.add(node_id)
        elif record.state is NodeState.LEAVING:
            leaving.add(node_id)
        else:
            active.add(node_id)
    started = {node_id for node_id, state in states.items() if state is NodeState.ACTIVE}
    since = 0 if image.controller is None else image.controller.down_until
    if any(record.broker_epoch <= since for name, record in image.nodes.items() if int(name) in active | leaving):
        since = 0  # this one has been active all the time: its lease had only seemed to have ended
    named = image.nodes.items() if since else ()
    missing = frozenset(int(name) for name, record in named if record.broker_epoch <= since)
    forgetful = frozenset(int(name) for name, record in named if not record.knows_store)
    skipped = EPOCHS_SKIPPED if image.controller is None else skipped_by(image.controller.incarnation)
    before = NodeStates(
        frozenset(active),
        frozenset(leaving),
        frozenset(damaged),
        frozenset(killed),
        missing=missing,
        forgetful=forgetful,
        epochs_skipped=skipped,
    )
    after = replace(before, active=frozenset(active | started), damaged=NO_NODES, killed=NO_NODES)
    incomplete = _by_place(image.nodes, lambda record: record.incomplete)
    return Turnover(states, before, after, frozenset(failed), offline_at(image), incomplete, _reports(image))


def offline_at(image: MetadataImage) -> dict[TopicIdPartition, frozenset[int]]:
    """The nodes on which the log of a partition is offline, as they report."""
    return _by_place(image.nodes, lambda record: record.offline)


def _by_place(
    nodes: Mapping[str, NodeRecord], named: Callable[[NodeRecord], Iterable[TopicIdPartition]]
) -> dict[TopicIdPartition, frozenset[int]]:
    """The nodes whose rows name a partition."""
    found: dict[TopicIdPartition, frozenset[int]] = {}
    for name, record in nodes.items():
        for place in named(record):
            found[place] = found.get(place, NO_NODES) | {int(name)}
    return found


def _reports(image: MetadataImage) -> dict[TopicIdPartition, dict[int, NodeRecord]]:
    reports: dict[TopicIdPartition, dict[int, NodeRecord]] = {}
    for name, record in image.nodes.items():
        for place in {**record.log_ends, **record.refusing}:
            reports.setdefault(place, {})[int(name)] = record
    return reports


def _reported(
    rows: Mapping[int, NodeRecord], place: TopicIdPartition, placed: PartitionRecord
) -> tuple[frozenset[int], dict[int, LogEnd]]:
    """The replicas that refuse to follow the partition's leader, and the log ends, as reported for its present
    epoch."""
    refusing = {node_id for node_id, row in rows.items() if row.refusing.get(place) == placed.leader_epoch}
    ends = {node_id: row.log_ends[place] for node_id, row in rows.items() if place in row.log_ends}
    return frozenset(refusing), {node_id: end for node_id, (epoch, end) in ends.items() if epoch == placed.leader_epoch}


def duties(image: MetadataImage, turn: Turnover, rules_of: RulesOf) -> Generator[None, None, list[RowChange]]:
    """The rows that bring nodes and partitions in line with the set of live nodes. Yields after each slice of work."""
    left = CHECKED_AT_ONCE
    lost_commits = missing_commits(image, turn.states)
    rows = [_state_row(image, node_id, state) for node_id, state in sorted(turn.states.items())]
    for topic in image.topics.values():
        rules: Rules | None = None
        partitions: list[PartitionRecord] | None = None
        known = with_found_replicas(image, topic) if topic.record.adopted else topic.partitions
        is_on_hold = topic.record.adopted and bool(turn.before.missing)
        if known is not topic.partitions and (not is_on_hold or [*topic.partitions] != known):
            partitions = list(known)
        for index, placed in enumerate(known):
            if lost_commits:
                after = undecided(placed, lost_commits)
            else:
                nodes, then = turn.at((topic.id, index), placed)
                if not is_concerned(placed, nodes) or (is_on_hold and awaits_logs(placed)):
                    continue
                left -= 1
                if not left:
                    yield
                    left = CHECKED_AT_ONCE
                rules = rules or rules_of(topic)
                after = completed(settled(settled(placed, nodes, rules), then, rules), then)
            if after is not placed:
                partitions = partitions or list(topic.partitions)
                partitions[index] = after
        if partitions is not None:
            rows.append(topic_row(topic, partitions, adopted=is_on_hold))
    return rows


def missing_commits(image: MetadataImage, node_ids: Iterable[int]) -> int:
    """How many commits the store lacks, as these nodes report; 0 if it lacks none."""
    rows = [image.nodes[str(node_id)] for node_id in node_ids]
    return max((row.lost_commits for row in rows if row.state is NodeState.STARTING), default=0)


def returned(image: MetadataImage, turn: Turnover) -> Generator[None, None, list[RowChange]]:
    """The rows that return partitions to their preferred replicas, if these may lead; of very many, only some. Yields
    after each slice of work."""
    rows: list[RowChange] = []
    left, in_slice = ELECTIONS_AT_ONCE, CHECKED_AT_ONCE
    for topic in image.topics.values():
        if all(placed.leader == placed.replicas[0] for placed in topic.partitions):
            continue
        partitions = list(topic.partitions)
        moved = 0
        for index, placed in enumerate(partitions):
            if placed.leader == placed.replicas[0]:
                continue
            partitions[index] = preferred(placed, turn.at((topic.id, index), placed)[0])
            moved += partitions[index] is not placed
            in_slice -= 1
            if not in_slice:
                yield
                in_slice = CHECKED_AT_ONCE
        if moved:
            rows.append(topic_row(topic, partitions))
            left -= moved
            if left <= 0:
                break
    return rows


def topic_row(topic: TopicImage, partitions: Iterable[PartitionRecord], *, adopted: bool | None = None) -> RowChange:
    """The row of this topic with these partitions. `adopted`: whether it is on hold from now on, None for no change."""
    record = replace(topic.record, partitions=tuple(partitions))
    record = record if adopted is None else replace(record, adopted=adopted)
    return RowChange(key_of(topic.name), record, topic.version)


def state_row(record: NodeRecord, node_id: int, state: NodeState) -> RowChange:
    """The row of this node in another state."""
    return RowChange(f"{NODE_PREFIX}{node_id}", replace(record, state=state, version=0), record.version)


def _state_row(image: MetadataImage, node_id: int, state: NodeState) -> RowChange:
    return state_row(image.nodes[str(node_id)], node_id, state)


def is_concerned(placed: PartitionRecord, nodes: NodeStates) -> bool:
    """Whether anything can change for this partition."""
    if placed.leader == NOBODY or is_complete(placed):
        return True
    if any(member in nodes.damaged or member in nodes.killed for member in placed.elr):
        return True
    if any(member in nodes.refusing for member in (*placed.isr, *placed.elr)):
        return True
    return not all(member in nodes.active for member in placed.isr)
