"""Decides who leads a partition, who counts as in sync, who may lead next: the controller's rules for a partition.

Knows a partition's record and which nodes there are; returns the record as it is to be, the same object where nothing
changes. Does not know why it is asked, nor the store.

Rules (|ISR| of at least `min_isr`, the lesser of min.insync.replicas and the number of replicas, is *enough*):
- who is not live, or has lost bytes, leaves the in-sync set; who leaves it while what remains is not enough stays
  eligible to lead (ELR), as it holds all below the high watermark; a set that is enough needs no such members;
- the leader stays while it is live and in sync; else the first live in-sync replica in the order of assignment leads,
  then the first live eligible one, which then is the in-sync set;
- where neither set has a member left, the logs decide: once every replica is live and has reported where its log ends,
  the one with the greatest end leads, as no other log has more. A partition with a single replica does not wait for
  that. Where unclean elections are allowed, any live replica leads at once;
- a leader that was elected by its log, or unclean, may lack acknowledged records: its epoch is the *unclean epoch*;
- an in-sync or eligible replica that refuses to follow the leader, because it knows records to be committed that the
  leader lacks, leads in its place: while it does not follow, the leader has committed nothing that it lacks. The leader
  and whoever follows it are no longer in sync;
- each change of leader, also to none, is a higher leader epoch, and so is the loss of a replica; each change at all a
  higher partition epoch.

Sources: Kafka's PartitionChangeBuilder.java; KIP-966; KAFKA-15021, KAFKA-19522.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.broker.cluster.members import NOBODY
from ottla.metadata.nodes import LogEnd
from ottla.metadata.topics import PartitionRecord


@dataclass(frozen=True, slots=True)
class Standing:
    """How the nodes stand. `active` may be given leaderships; `leaving` ones keep what nobody else can take; `damaged`
    ones may lack records that they had stored. Of one partition: `refusing` do not follow its leader in its present
    epoch, `log_ends` is where the logs end of those that have reported it."""

    active: AbstractSet[int]
    leaving: AbstractSet[int] = frozenset()
    damaged: AbstractSet[int] = frozenset()
    refusing: AbstractSet[int] = frozenset()
    log_ends: Mapping[int, LogEnd] = field(default_factory=dict[int, LogEnd])

    def without(self, offline: AbstractSet[int]) -> Standing:
        """How they stand for a partition whose log takes nothing on these: they keep it where nobody else can."""
        kept = offline & (self.active | self.leaving)
        return replace(self, active=self.active - offline, leaving=self.leaving | kept) if offline else self


NO_LOG: Final = LogEnd(-1, -1)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a topic asks of its partitions' elections."""

    min_isr: int
    unclean: bool = False


def settled(placed: PartitionRecord, nodes: Standing, rules: Rules) -> PartitionRecord:
    """The record after everybody has left the in-sync set who has to, led by somebody who may."""
    return counted(placed, brought_in_line(placed, nodes, rules))


def brought_in_line(placed: PartitionRecord, nodes: Standing, rules: Rules) -> PartitionRecord:
    """The same, with the epochs that `placed` has."""
    isr, lost = _in_sync(placed, nodes)
    enough = len(isr) >= min(rules.min_isr, len(placed.replicas))
    elr = () if enough else _without([*placed.elr, *lost], {*isr, *nodes.damaged})
    last_known = placed.last_known_elr
    if not isr and not last_known and placed.leader != NOBODY:
        last_known = (placed.leader,)
    return _led(replace(placed, isr=isr, elr=elr, last_known_elr=last_known), nodes, rules)


def awaits_logs(placed: PartitionRecord) -> bool:
    """Whether nobody is eligible to lead, and the logs have to decide."""
    return placed.leader == NOBODY and not placed.isr and not placed.elr


def undecided(placed: PartitionRecord, lost_commits: int) -> PartitionRecord:
    """The record where nobody is known to be in sync, as the store has lost so many commits: the logs decide. The epoch
    passes those that the lost commits may have given: each raised it by 2 at the most."""
    nobody = replace(placed, leader=NOBODY, isr=(), elr=(), last_known_elr=())
    epoch = placed.leader_epoch + 2 * lost_commits + 1
    return replace(nobody, leader_epoch=epoch, partition_epoch=placed.partition_epoch + 2 * lost_commits + 1)


def preferred(placed: PartitionRecord, nodes: Standing) -> PartitionRecord:
    """The record led by the first replica of its assignment, where that may lead."""
    first = placed.replicas[0]
    if placed.leader == first or first not in placed.isr or first not in nodes.active:
        return placed
    return counted(placed, replace(placed, leader=first))


def accepted(placed: PartitionRecord) -> PartitionRecord:
    """The record led by the same replica, in an epoch in which those that refuse to follow it give up what it lacks."""
    after = placed.led_anew(placed.leader)
    return replace(after, unclean_epoch=after.leader_epoch)


def with_isr(placed: PartitionRecord, isr: Collection[int], rules: Rules, *, recovering: bool) -> PartitionRecord:
    """The record after its leader has said who is in sync."""
    left = [member for member in placed.isr if member not in isr]
    enough = len(isr) >= min(rules.min_isr, len(placed.replicas))
    elr = () if enough else _without([*placed.elr, *left], set(isr))
    last_known = () if enough else placed.last_known_elr
    return counted(placed, replace(placed, isr=tuple(isr), elr=elr, last_known_elr=last_known, recovering=recovering))


def counted(before: PartitionRecord, after: PartitionRecord) -> PartitionRecord:
    """`after` with the epochs that follow those of `before`."""
    if after == before:
        return before
    fenced = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
    leader_epoch = max(after.leader_epoch, before.leader_epoch + fenced)
    return replace(after, leader_epoch=leader_epoch, partition_epoch=before.partition_epoch + 1)


def _in_sync(placed: PartitionRecord, nodes: Standing) -> tuple[tuple[int, ...], list[int]]:
    """Who stays in sync, and who leaves with all that it had."""
    stays = [member for member in placed.isr if member in nodes.active]
    if not stays and not any(member in nodes.active for member in placed.elr):
        # Nobody can take over from a leaving node.
        stays = [member for member in placed.isr if member in nodes.leaving]
    return tuple(stays), [member for member in placed.isr if member not in stays]


def _led(placed: PartitionRecord, nodes: Standing, rules: Rules) -> PartitionRecord:
    if placed.leader in placed.isr:
        members = (*placed.isr, *placed.elr)
        refusing = [each for each in placed.replicas if each in members and each in nodes.refusing & nodes.active]
        if not refusing:
            return placed
        return replace(placed, leader=refusing[0], isr=tuple(refusing), elr=_without(placed.elr, {*refusing}))
    for replica in placed.replicas:
        if replica in placed.isr:
            return replace(placed, leader=replica)
    for replica in placed.replicas:
        if replica in placed.elr and replica in nodes.active:
            return replace(
                placed, leader=replica, isr=(replica,), elr=_without(placed.elr, {replica}), last_known_elr=()
            )
    return _led_by_its_log(placed, nodes, rules)


def _led_by_its_log(placed: PartitionRecord, nodes: Standing, rules: Rules) -> PartitionRecord:
    """The record led by the live replica whose log ends last, where that may lead; else without a leader."""
    ends = nodes.log_ends
    live = [replica for replica in placed.replicas if replica in nodes.active]
    has_all = not placed.elr and all(replica in live and replica in ends for replica in placed.replicas)
    is_only = placed.last_known_elr == placed.replicas and len(placed.replicas) == 1
    if not live or not (has_all or is_only or rules.unclean):
        return replace(placed, leader=NOBODY)
    leader = max(live, key=lambda replica: ends.get(replica, NO_LOG))
    # Above every epoch of any of the logs: the store may be older than they are.
    epoch = 1 + max([placed.leader_epoch, *(end.epoch for end in ends.values())])
    return replace(
        placed,
        leader=leader,
        isr=(leader,),
        elr=(),
        last_known_elr=(),
        leader_epoch=epoch,
        recovering=True,
        unclean_epoch=epoch,
    )


def _without(members: Collection[int], gone: AbstractSet[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(member for member in members if member not in gone))
