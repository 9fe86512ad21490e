"""Decides whether the controller accepts a leader's ISR proposal: AlterPartition's checks for one partition.

The checks run in Kafka's order, with one exception. A proposal that is already in effect is answered with the current
state before its epochs are checked: its first answer was lost (KAFKA-14144).

The joining replica may be the last one that a reassignment waited for: then the same write ends the reassignment.

Sources: Kafka's ReplicationControlManager.alterPartition, validateAlterPartitionData; KIP-497, KIP-841, KIP-903;
KAFKA-14154.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.broker.cluster.elections import NodeStates, Rules, with_isr
from ottla.broker.cluster.reassignments import completed
from ottla.metadata.nodes import NodeRecord, NodeState
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.errors import ErrorCode

ANY_EPOCH = -1
"""The broker epoch of a replica if the leader does not know it."""


@dataclass(frozen=True, slots=True)
class IsrProposal:
    """A leader's proposal: `isr` are (node id, broker epoch)."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]
    recovering: bool = False

    @property
    def members(self) -> list[int]:
        return [node_id for node_id, _ in self.isr]


def altered(
    placed: PartitionRecord, proposal: IsrProposal, nodes: Mapping[int, NodeRecord], rules: Rules
) -> PartitionRecord | ErrorCode:
    """The record as proposed, the same object if nothing changes; or the error that refuses the proposal."""
    members = proposal.members
    if _stands(placed, proposal):
        return placed
    if proposal.leader_epoch > placed.leader_epoch or proposal.partition_epoch > placed.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader has newer metadata than this node
    if proposal.leader_epoch < placed.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if proposal.leader != placed.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < placed.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    if proposal.leader not in members or not set(members) <= set(placed.replicas) or len(set(members)) < len(members):
        return ErrorCode.INVALID_REQUEST
    if proposal.recovering and (len(members) > 1 or not placed.recovering):
        return ErrorCode.INVALID_REQUEST
    joining = [member for member in proposal.isr if member[0] not in placed.isr]
    if not all(_is_eligible(nodes.get(node_id), epoch) for node_id, epoch in joining):
        return ErrorCode.INELIGIBLE_REPLICA
    ordered = [replica for replica in placed.replicas if replica in members]
    after = with_isr(placed, ordered, rules, recovering=proposal.recovering)
    active = frozenset(node_id for node_id, record in nodes.items() if record.state is NodeState.ACTIVE)
    return completed(after, NodeStates(active), placed)


def _stands(placed: PartitionRecord, proposal: IsrProposal) -> bool:
    return (
        proposal.leader == placed.leader
        and proposal.leader_epoch == placed.leader_epoch
        and proposal.partition_epoch <= placed.partition_epoch
        and proposal.recovering == placed.recovering
        and sorted(proposal.members) == sorted(placed.isr)
    )


def _is_eligible(record: NodeRecord | None, broker_epoch: int) -> bool:
    """Whether this incarnation of the node may count as in sync."""
    if record is None or record.state is not NodeState.ACTIVE:
        return False
    return broker_epoch in (ANY_EPOCH, record.broker_epoch)
