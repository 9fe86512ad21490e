"""Moves the replicas of a partition: sets the target, detects the end of the move, and cancels it; one move at a time.

The functions get a partition's record and return the new record.

During a move, `replicas` holds the target in the wanted order, followed by the replicas to be removed. These are also
in `removing`; `adding` are all that had no replica before. So `replicas` without `removing` is the target, and without
`adding` the replicas before the move, and any controller can continue it. A new target that replaces another one is
compared with the replicas before both. A replica that was to be added and is no longer wanted is in both lists. It is
removed when the move ends or is cancelled.

Rules:
- A move ends when every replica of the target is in sync (KAFKA-15665). Then one write makes the target the replicas
  and the in-sync set, and gives the leadership to one of them if the leader has to go.
- Until then no replica is removed, so the data of the old replicas exists as long as it may be needed.
- Cancelling removes the added replicas. It would lose acknowledged records if no other replica is in sync, or eligible
  and live. Then it is refused unless unclean elections are allowed.
- A node that loses its replica is fenced by a higher leader epoch (`elections.counted`).

Sources: KIP-455; Kafka's PartitionReassignmentReplicas.java, PartitionReassignmentRevert.java,
PartitionChangeBuilder.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ottla.broker.cluster.elections import NodeStates, Rules, brought_in_line, counted
from ottla.metadata.topics import PartitionRecord


def reassigned(placed: PartitionRecord, target: Sequence[int], nodes: NodeStates) -> PartitionRecord:
    """The record at the start of a move to these nodes; the move may end with it. `target`: not empty, without
    duplicates."""
    before = placed.origin
    removing = tuple(sorted(set(placed.replicas) - set(target)))
    replicas = (*target, *removing)
    adding = tuple(sorted(set(replicas) - set(before)))
    return counted(placed, _completed(replace(placed, replicas=replicas, adding=adding, removing=removing), nodes))


def completed(placed: PartitionRecord, nodes: NodeStates, before: PartitionRecord | None = None) -> PartitionRecord:
    """The record at the end of the move, the same object if the move has not ended. `before`: the record in the store,
    if `placed` is written with the same write."""
    after = _completed(placed, nodes)
    return placed if after is placed else counted(before or placed, after)


def is_complete(placed: PartitionRecord) -> bool:
    """Whether a move is in progress and all replicas of the target are in sync."""
    return placed.is_moving and set(placed.target) <= set(placed.isr)


def cancelled(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord | None:
    """The record after the move is cancelled and the replicas are as before; None if that would lose acknowledged
    records."""
    before = placed.origin
    isr = tuple(node_id for node_id in placed.isr if node_id in before)
    elr = tuple(node_id for node_id in placed.elr if node_id in before)
    if not isr and not rules.unclean and not any(node_id in nodes.active for node_id in elr):
        return None
    if len(isr) >= min(rules.min_isr, len(before)):
        elr = ()
    after = replace(placed, replicas=before, isr=isr, elr=elr, adding=(), removing=())
    return counted(placed, brought_in_line(after, nodes, rules))


def _completed(placed: PartitionRecord, nodes: NodeStates) -> PartitionRecord:
    if not is_complete(placed):
        return placed
    target, leader = placed.target, placed.leader
    if leader not in target:
        leader = next((node_id for node_id in target if node_id in nodes.active), leader)
    if leader not in target:
        return placed  # none of them may lead now
    isr = tuple(node_id for node_id in target if node_id in placed.isr)
    return replace(placed, replicas=target, isr=isr, elr=(), adding=(), removing=(), leader=leader)
