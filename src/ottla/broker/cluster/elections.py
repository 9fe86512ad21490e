"""Decides a partition's leader, in-sync replicas and eligible leaders, by the controller's rules.

The functions get a partition's record and the state of the nodes. They return the new record: the same object if
nothing changes.

Rules (|ISR| of at least `min_isr`, the lesser of min.insync.replicas and the number of replicas, is *enough*):
- A replica that is not live, or has lost bytes, leaves the in-sync set. If what remains is not enough, the replica
  stays eligible to lead (ELR), as it holds all records below the high watermark. A set that is enough needs no such
  members.
- The leader stays while it is live and in sync. Otherwise the first live in-sync replica in the order of assignment
  leads. If there is none, the first live eligible replica that is *proven* leads, and becomes the in-sync set.
- An eligible replica is unproven if its node was killed and started again since it was in sync: a disk may have lost
  whole batches at the end of its log without a trace. If all live eligible replicas are unproven, the one with the
  greatest log end leads, once all live ones have reported theirs. They must be as many as `min_isr`: then one of them
  has every acknowledged record, as fewer disks lie. If fewer are eligible, because others have lost bytes, none is.
- If neither set has a member left, the logs decide. Once every replica is live and has reported where its log ends, the
  one with the greatest end leads, as no other log has more. Replicas that have lost all their records may be among
  them, if they are fewer than `min_isr`: so many replicas had each acknowledged record, so another one has it. A
  partition with a single replica does not wait for that. If unclean elections are allowed, any live replica leads at
  once.
- A leader that was elected by its log, or unclean, may lack acknowledged records: its epoch is the *unclean epoch*.
- An in-sync or eligible replica may refuse to follow a leader that lacks records which the replica knows to be
  committed. Such a replica leads instead: while it does not follow, the leader has committed nothing that it lacks. The
  leader and the replicas that follow it are no longer in sync.
- After all nodes were down at once, the store may be an older copy of itself, and only a node that saw the newer one
  can notice that. A partition without a leader then gets none before so many of its replicas have compared the store
  with what they had seen that fewer than `min_isr` are missing: each acknowledged record is on one of those that have.
  With a `min_isr` of 1, more than half of the replicas count instead of it. A missing replica may have led in epochs
  that the store does not name, with records that were not acknowledged: the first leader skips EPOCHS_SKIPPED epochs
  or more. How many depends on the controller: the missing one may have skipped some from the same epoch on.
- Each change of leader, also to none, raises the leader epoch, as does the loss of a replica. Every change raises the
  partition epoch.

Sources: Kafka's PartitionChangeBuilder.java; KIP-966; KAFKA-15021, KAFKA-19522.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from ottla.broker.cluster.members import NOBODY
from ottla.metadata.nodes import NO_LOG, LogEnd
from ottla.metadata.topics import PartitionRecord
from ottla.protocol.records.checksum import crc32c

EPOCHS_SKIPPED: Final = 10_000
"""More leader epochs than the lost commits of a restored store may have given to a replica that is missing."""
EPOCHS_APART: Final = 100_000
"""Controllers skip up to so many more, each another number: two of them hardly ever name a leader in one epoch."""
COMMITS_A_SKIP: Final = 4
"""At least so many commits are made between two times that all nodes were down: registrations, a claim, an election."""
SKIPS_MAX: Final = 10
"""More times than all nodes were down within the commits that a restored store has lost."""


@dataclass(frozen=True, slots=True)
class NodeStates:
    """The state of the nodes.

    - `active` nodes may be given leaderships.
    - `leaving` nodes keep what no other node can take.
    - `damaged` nodes may lack records that they had stored. `killed` nodes start after a kill: they may lack records at
      the end of their logs that no checkpoint shows.
    - `missing` nodes have not registered since all nodes were down; `forgetful` ones have, and could not compare the
      store with what they had seen. `epochs_skipped`: how many epochs a leader skips in which a missing one may have
      led.

    For one partition: `refusing` replicas do not follow its leader in its present epoch; `log_ends` maps the replicas
    that have reported it to the end of their log.
    """

    active: AbstractSet[int]
    leaving: AbstractSet[int] = frozenset()
    damaged: AbstractSet[int] = frozenset()
    killed: AbstractSet[int] = frozenset()
    refusing: AbstractSet[int] = frozenset()
    log_ends: Mapping[int, LogEnd] = field(default_factory=dict[int, LogEnd])
    missing: AbstractSet[int] = frozenset()
    forgetful: AbstractSet[int] = frozenset()
    epochs_skipped: int = EPOCHS_SKIPPED

    def without(self, offline: AbstractSet[int]) -> NodeStates:
        """The state for a partition whose log is offline on these nodes: they keep it if no other node can take it."""
        kept = offline & (self.active | self.leaving)
        return replace(self, active=self.active - offline, leaving=self.leaving | kept) if offline else self


@dataclass(frozen=True, slots=True)
class Rules:
    """A topic's settings for the elections of its partitions."""

    min_isr: int
    unclean: bool = False

    def needed(self, placed: PartitionRecord) -> int:
        """How many replicas of this partition have each acknowledged record, at least."""
        return min(self.min_isr, len(placed.replicas))


def skipped_by(incarnation: str) -> int:
    """How many epochs this controller skips where a missing node may have led: others skip another number of them."""
    return EPOCHS_SKIPPED + crc32c(incarnation.encode()) % EPOCHS_APART


def settled(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
    """The record after every replica that must leave the in-sync set has left it, led by a replica that may lead."""
    return counted(placed, brought_in_line(placed, nodes, rules))


def brought_in_line(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
    """The same, with the epochs that `placed` has."""
    isr, lost = _in_sync(placed, nodes)
    enough = len(isr) >= rules.needed(placed)
    elr = () if enough else _without([*placed.elr, *lost], {*isr, *nodes.damaged})
    unproven = tuple(member for member in elr if member in placed.unproven or member in nodes.killed)
    last_known = placed.last_known_elr
    if not isr and unproven == elr and len(elr) < rules.needed(placed):
        last_known, elr, unproven = last_known or elr, (), ()
    if not isr and not last_known and placed.leader != NOBODY:
        last_known = (placed.leader,)
    return _led(replace(placed, isr=isr, elr=elr, unproven=unproven, last_known_elr=last_known), nodes, rules)


def awaits_logs(placed: PartitionRecord) -> bool:
    """Whether no replica is eligible to lead, so the logs have to decide."""
    return placed.leader == NOBODY and not placed.isr and not placed.elr


def needs_log_ends(placed: PartitionRecord) -> bool:
    """Whether the partition has no leader, and the controller has to know where the logs of its replicas end: none is
    eligible, or some of these are unproven."""
    return awaits_logs(placed) or (placed.leader == NOBODY and bool(placed.unproven))


def undecided(placed: PartitionRecord, lost_commits: int) -> PartitionRecord:
    """The record in which no replica is known to be in sync, as the store has lost this many commits: the logs decide.

    Its epoch is above those that the lost commits may have given: each raised it by at most 2, or skipped some.
    """
    skips = min(1 + lost_commits // COMMITS_A_SKIP, SKIPS_MAX)
    nobody = replace(placed, leader=NOBODY, isr=(), elr=(), unproven=(), last_known_elr=())
    epoch = placed.leader_epoch + 2 * lost_commits + skips * (EPOCHS_SKIPPED + EPOCHS_APART) + 1
    return replace(nobody, leader_epoch=epoch, partition_epoch=placed.partition_epoch + 2 * lost_commits + 1)


def preferred(placed: PartitionRecord, nodes: NodeStates) -> PartitionRecord:
    """The record led by the first replica of its assignment, if that one may lead."""
    first = placed.replicas[0]
    if placed.leader == first or first not in placed.isr or first not in nodes.active:
        return placed
    return counted(placed, replace(placed, leader=first))


def accepted(placed: PartitionRecord) -> PartitionRecord:
    """The record led by the same replica, in an epoch in which the refusing replicas give up the records that it
    lacks."""
    after = placed.led_anew(placed.leader)
    return replace(after, unclean_epoch=after.leader_epoch)


def with_isr(placed: PartitionRecord, isr: Collection[int], rules: Rules, *, recovering: bool) -> PartitionRecord:
    """The record after its leader has reported the in-sync replicas."""
    left = [member for member in placed.isr if member not in isr]
    enough = len(isr) >= rules.needed(placed)
    elr = () if enough else _without([*placed.elr, *left], set(isr))
    last_known = () if enough else placed.last_known_elr
    return counted(placed, replace(placed, isr=tuple(isr), elr=elr, last_known_elr=last_known, recovering=recovering))


def counted(before: PartitionRecord, after: PartitionRecord) -> PartitionRecord:
    """`after` with the epochs that follow those of `before`. A replica that is no longer eligible is not unproven."""
    if after.unproven:
        after = replace(after, unproven=tuple(member for member in after.unproven if member in after.elr))
    if after == before:
        return before
    fenced = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
    leader_epoch = max(after.leader_epoch, before.leader_epoch + fenced)
    return replace(after, leader_epoch=leader_epoch, partition_epoch=before.partition_epoch + 1)


def _in_sync(placed: PartitionRecord, nodes: NodeStates) -> tuple[tuple[int, ...], list[int]]:
    """The replicas that stay in sync, and those that leave with a complete log."""
    stays = [member for member in placed.isr if member in nodes.active]
    if not stays and not any(member in nodes.active and member not in placed.unproven for member in placed.elr):
        # No other node is known to be able to take over from a leaving one.
        stays = [member for member in placed.isr if member in nodes.leaving]
    return tuple(stays), [member for member in placed.isr if member not in stays]


def _led(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
    if placed.leader in placed.isr:
        members = (*placed.isr, *placed.elr)
        refusing = [each for each in placed.replicas if each in members and each in nodes.refusing & nodes.active]
        if not refusing:
            return placed
        return replace(placed, leader=refusing[0], isr=tuple(refusing), elr=_without(placed.elr, {*refusing}))
    if placed.leader != NOBODY or placed.isr or nodes.missing.isdisjoint(placed.replicas):
        return _elected(placed, nodes, rules)
    if not (rules.unclean or _is_store_confirmed(placed, nodes, rules)):
        return placed
    after = _elected(placed, nodes, rules)
    return after if after.leader == NOBODY else _above_lost_epochs(placed, after, nodes.epochs_skipped)


def _elected(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
    for replica in placed.replicas:
        if replica in placed.isr:
            return replace(placed, leader=replica)
    leader = _with_every_record(placed, nodes, rules)
    if leader is not None:
        return replace(placed, leader=leader, isr=(leader,), elr=_without(placed.elr, {leader}), last_known_elr=())
    return _led_by_its_log(placed, nodes, rules)


def _with_every_record(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> int | None:
    """A live eligible replica that has every acknowledged record; None if none is known to have them."""
    live = [replica for replica in placed.replicas if replica in placed.elr and replica in nodes.active]
    proven = [replica for replica in live if replica not in placed.unproven]
    if proven:
        return proven[0]
    if len(live) < rules.needed(placed):
        return None
    ends = nodes.log_ends
    if len(live) > 1 and not all(replica in ends for replica in live):
        return None
    return max(live, key=lambda replica: ends.get(replica, NO_LOG))


def _is_store_confirmed(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> bool:
    """Whether one of the replicas that have compared the store with what they had seen has each acknowledged record."""
    unheard = sum(replica in nodes.missing or replica in nodes.forgetful for replica in placed.replicas)
    count = len(placed.replicas)
    return unheard < (min(rules.min_isr, count) if rules.min_isr > 1 else count // 2 + 1)


def _above_lost_epochs(before: PartitionRecord, after: PartitionRecord, skipped: int) -> PartitionRecord:
    """The newly led partition in an epoch that no missing replica has led it in."""
    epoch = max(before.leader_epoch, after.leader_epoch) + skipped
    is_unclean = after.unclean_epoch != before.unclean_epoch
    return replace(after, leader_epoch=epoch, unclean_epoch=epoch if is_unclean else after.unclean_epoch)


def _led_by_its_log(placed: PartitionRecord, nodes: NodeStates, rules: Rules) -> PartitionRecord:
    """The record led by the live replica whose log ends last, if that one may lead; otherwise without a leader."""
    ends = nodes.log_ends
    live = [replica for replica in placed.replicas if replica in nodes.active]
    has_all = not placed.elr and all(replica in live and replica in ends for replica in placed.replicas)
    emptied = sum(ends.get(replica) == NO_LOG for replica in placed.replicas)
    has_all = has_all and emptied < rules.needed(placed)
    is_only = placed.last_known_elr == placed.replicas and len(placed.replicas) == 1
    if not live or not (has_all or is_only or rules.unclean):
        return replace(placed, leader=NOBODY)
    leader = max(live, key=lambda replica: (ends.get(replica, NO_LOG), replica in placed.elr))
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
