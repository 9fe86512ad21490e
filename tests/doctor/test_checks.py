"""Every check of the doctor: it reports an injected fault, no case just below its threshold, and nothing after its own
advice was followed."""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.tree import command
from ottla.client.share_partitions import FrequentReason
from ottla.doctor import CHECKS, Evidence, Severity, Snapshot, diagnose
from ottla.doctor.observed import (
    BACK,
    JOINED,
    LEFT,
    NO_API,
    REBALANCE_TIMEOUT,
    REMOVED,
    SESSION,
    SILENT,
    SLOW,
    ClientErrors,
    ConnectionFigures,
    GroupChange,
    IsrChange,
    LongTurn,
    Observed,
    TopicBatches,
)
from ottla.doctor.snapshot import (
    CLASSIC,
    CONSUMER,
    SHARE,
    Commit,
    Committed,
    Deliveries,
    Disk,
    Generation,
    Group,
    GroupMember,
    Holder,
    Member,
    Node,
    OpenTransaction,
    Partition,
    Topic,
)

TOP = Path(__file__).resolve().parents[2]
NOW_MS = 1_700_000_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
CONFIGS = {
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "retention.ms": str(7 * DAY_MS),
    "segment.ms": str(DAY_MS),
    "segment.bytes": str(10**9),
    "unclean.leader.election.enable": "false",
}
THREE = (1, 2, 3)


def nodes(count: int = 3) -> tuple[Node, ...]:
    return tuple(Node(id, "host", 9092, disks=(Disk("/data", 10**12, 5 * 10**11),)) for id in range(1, count + 1))


def partition(index: int = 0, *, end: int = 100_000, isr: tuple[int, ...] = THREE, **more: object) -> Partition:
    fields: dict[str, object] = {"start": 0, "end": end, "stable": end, "leader_epoch": 5, "size": end * 100} | more
    return Partition(index, isr[0] if isr else -1, THREE, isr, **fields)  # type: ignore[arg-type]


def two_replicas(index: int) -> Partition:
    return replace(partition(index, isr=(1, 2)), replicas=(1, 2))


def topic(name: str, *partitions: Partition, is_internal: bool = False, **configs: str) -> Topic:
    own = {key.replace("_", "."): value for key, value in configs.items()}
    return Topic(name, partitions or (partition(),), is_internal, CONFIGS | own, frozenset(own))


def group(
    committed: dict[int, int] | None = None,
    *,
    type: str = CLASSIC,
    state: str = "Stable",
    members: Iterable[Member] = (),
    **more: object,
) -> Group:
    rows = {("orders", index): Committed(offset, 5) for index, offset in (committed or {}).items()}
    return Group("billing", type, state, tuple(members), rows, **more)  # type: ignore[arg-type]


def member(*owned: int, id: str = "m", target: Iterable[int] | None = None) -> Member:
    wanted = None if target is None else frozenset(("orders", index) for index in target)
    return Member(id, "worker", "/10.0.0.1", None, frozenset(("orders", index) for index in owned), wanted)


def snapshot(
    *topics: Topic,
    groups: Iterable[Group] = (),
    transactions: Iterable[OpenTransaction] = (),
    nodes: tuple[Node, ...] = nodes(),
) -> Snapshot:
    return Snapshot(NOW_MS, "cluster", nodes, topics or (topic("orders"),), tuple(groups), tuple(transactions))


def over(first: Snapshot, last: Snapshot | None = None, seconds: int = 30) -> Evidence:
    return Evidence(replace(first, at_ms=NOW_MS - seconds * 1000), last or first)


@dataclass(frozen=True)
class Case:
    """A check with a fault, the case just below its threshold, and the fault after the advice was followed."""

    check: str
    says: str
    severity: Severity
    fault: Evidence
    below: Evidence
    mended: Evidence


def replicas(isr: tuple[int, ...]) -> Evidence:
    return over(snapshot(topic("orders", partition(isr=isr))))


def disk(usable: int, *, grown: int = 0, error: str | None = None) -> Evidence:
    """A disk of which so much is left, after the node's log grew by so many bytes in a minute."""

    def at(size: int) -> Snapshot:
        disks = (Disk("/data", 10**12, usable, error),)
        return snapshot(topic("orders", partition(size=size)), nodes=(Node(1, "host", 9092, disks=disks),))

    return over(at(10**9), at(10**9 + grown), seconds=60)


def lag(committed: dict[int, int], *, start: int = 0, ends: dict[int, int] | None = None) -> Evidence:
    parts = [partition(i, end=(ends or {}).get(i, 100_000), start=start) for i in committed]
    return over(snapshot(topic("orders", *parts), groups=[group(committed)]))


def moving(read: int, written: int, *, lag: int = 50_000, members: int = 1) -> Evidence:
    """A group that reads so many records in 30 s, of so many that are written."""

    def at(offset: int, end: int) -> Snapshot:
        return snapshot(topic("orders", partition(end=end)), groups=[group({0: offset}, members=[member(0)] * members)])

    return over(at(1000, 1000 + lag), at(1000 + read, 1000 + lag + written))


def rebalancing(kept: bool, state: str = "Reconciling") -> Evidence:
    members = [member(0, 1, target=[0, 1] if not kept else [0]), member(id="n", target=[1] if kept else [])]
    return over(snapshot(groups=[group(type=CONSUMER, state=state, members=members)]))


def share(
    lag: int | None, *, members: Iterable[Member] = (), moved: int = 0, start: int = 10, **configs: str
) -> Evidence:
    def at(offset: int) -> Snapshot:
        rows = {("orders", 0): Committed(offset, 5, lag)}
        own = {key.replace("_", "."): value for key, value in configs.items()}
        return snapshot(groups=[Group("billing", SHARE, "Stable", tuple(members), rows, own)])

    return over(at(start), at(start + moved))


def delivers(given: Deliveries, before: Deliveries | None = None) -> Evidence:
    """A share group with a member, whose partition's leader reports this."""

    def at(found: Deliveries) -> Snapshot:
        rows = {("orders", 0): Committed(found.start, 5, found.undone)}
        return snapshot(
            groups=[Group("billing", SHARE, "Stable", (member(0),), rows, deliveries={("orders", 0): found})]
        )

    return over(at(before or given), at(given))


def paused_itself(*reasons: FrequentReason) -> Evidence:
    """A share group that has paused itself, with the reasons that its members gave."""
    configs = {"share.delivery.paused": "true", "share.delivery.paused.by": "the breaker: more than 3"}
    rows, found = {("orders", 0): Committed(500, 5, 5)}, {("orders", 0): Deliveries(500, 5, reasons=reasons)}
    return over(snapshot(groups=[Group("billing", SHARE, "Stable", (member(0),), rows, configs, found)]))


def committed_only(stable: int, *, moved: int = 0, isolation: str = "read_committed") -> Evidence:
    """A share group at offset 500 of a partition that is readable up to `stable`."""

    def at(offset: int) -> Snapshot:
        rows = {("orders", 0): Committed(offset, 5, 10)}
        own = {"share.isolation.level": isolation}
        parts = topic("orders", partition(stable=stable, end=520))
        return snapshot(parts, groups=[Group("billing", SHARE, "Stable", (member(0),), rows, own)])

    return over(at(500 - moved), at(500))


def held(
    open_ms: int, *, moved: bool = False, name: str | None = "pay", last_ms: int = 0, timeout: int = 60_000
) -> Evidence:
    def at(stable: int) -> Snapshot:
        opened = OpenTransaction(
            ("orders", 0), 7, 500, NOW_MS - last_ms, name, NOW_MS - open_ms if name else None, timeout
        )
        return snapshot(topic("orders", partition(stable=stable)), transactions=[opened])

    return over(at(400 if moved else 500), at(500))


def with_commits(*rows: tuple[int, int], evidence: Evidence | None = None) -> Evidence:
    """Evidence with commits of the group in orders-0: (offset, seconds ago)."""
    given = evidence or HEALTHY
    commits = tuple(Commit(offset, NOW_MS - ago * 1000) for offset, ago in rows)
    return replace(given, last=replace(given.last, commits={("billing", ("orders", 0)): commits}))


def generations(*members: str) -> Evidence:
    """A group with these members, a letter each, one generation a minute."""
    rows = tuple(
        Generation(
            NOW_MS - (len(members) - number) * MINUTE_MS,
            number,
            frozenset(GroupMember(f"worker-{name}", "/10.0.0.1", 300_000) for name in names),
        )
        for number, names in enumerate(members)
    )
    return Evidence(HEALTHY.first, replace(HEALTHY.last, generations={"billing": rows}))


def change(cause: int, member: str = "a", *, ago_s: int = 10, reason: str = "") -> GroupChange:
    return GroupChange(NOW_MS - ago_s * 1000, 7, cause, f"m-{member}", f"worker-{member}", "/10.0.0.1", reason, 300_000)


def errors(
    api: int, code: int, count: int, *, subject: str = "billing", message: str = "", ago_s: int = 10
) -> ClientErrors:
    last_ms = NOW_MS - ago_s * 1000
    return ClientErrors("worker", "User:ada", api, code, count, last_ms, last_ms, subject, message)


def observed(*rows: GroupChange | ClientErrors, evidence: Evidence | None = None) -> Evidence:
    """Evidence in which node 1 remembers this."""
    given = evidence or over(snapshot())
    changes = tuple(each for each in rows if isinstance(each, GroupChange))
    counted = tuple(each for each in rows if isinstance(each, ClientErrors))
    return _remembering(given, Observed(1, NOW_MS, 0, {"billing": changes} if changes else {}, counted))


def fell(*minutes_ago: int, cause: int = SLOW, node: int = 3, evidence: Evidence | None = None) -> Evidence:
    """Evidence in which node 1 remembers that a follower left the in-sync replicas so many minutes ago."""
    how_far = 40_000, 31_000, 200 if cause == SLOW else 31_000
    times = [NOW_MS - ago * MINUTE_MS for ago in minutes_ago]
    rows = [IsrChange(at_ms, node, cause, "orders", 0, 12, *how_far) for at_ms in times]
    back = [replace(each, at_ms=each.at_ms + 30_000, cause=BACK) for each in rows]
    changes = tuple(sorted((*rows, *back), key=lambda each: each.at_ms))
    return _remembering(evidence or over(snapshot()), Observed(1, NOW_MS, isr_changes=changes))


def connected(*, software: str = "", evidence: Evidence | None = None, **figures: int) -> Evidence:
    """Evidence of a connection of which the figures have grown by so much."""
    before = ConnectionFigures(4, "worker", "User:ada", "10.0.0.1", software, min_bytes=1_000, max_wait_ms=500)
    first, last = (Observed(1, NOW_MS, 0, connections=(each,)) for each in (before, replace(before, **figures)))  # type: ignore[arg-type]
    return _remembering(evidence or over(snapshot()), last, first)


def batches(count: int, records: int) -> Evidence:
    first, last = (
        Observed(1, NOW_MS, 0, batches=(TopicBatches("orders", 7 + n, 7 + r, 0),))
        for n, r in ((0, 0), (count, records))
    )
    return _remembering(over(snapshot()), last, first)


def stood_still(*took_ms: int, ago_s: int = 10, api: int = 3, timer: str = "") -> Evidence:
    who = ("", "", "") if timer else ("worker", "User:ada", "10.0.0.1")
    turns = tuple(LongTurn(each, NOW_MS - ago_s * 1000, api, *who, timer) for each in took_ms)
    return _remembering(over(snapshot()), Observed(1, NOW_MS, 0, long_turns=turns))


def _remembering(evidence: Evidence, last: Observed, first: Observed | None = None) -> Evidence:
    before = replace(evidence.first, observed=(first or last,))
    return Evidence(before, replace(evidence.last, observed=(last,)))


HEALTHY = over(snapshot())
CASES = (
    Case(
        "unreachable-node",
        "Node 2 advertises host:9092, which cannot be reached from here: refused",
        Severity.WARNING,
        over(snapshot(nodes=(*nodes(1), Node(2, "host", 9092, unreachable="refused")))),
        over(snapshot(nodes=nodes(2))),
        HEALTHY,
    ),
    Case(
        "disk-fills",
        "/data of node 1 is 86% full (140 GB left).",
        Severity.WARNING,
        disk(14 * 10**10),
        disk(16 * 10**10),
        disk(5 * 10**11),
    ),
    Case(
        "disk-fills",
        "full in 40 h at the present rate",
        Severity.WARNING,
        disk(48 * 10**10, grown=2 * 10**8),
        disk(48 * 10**10, grown=15 * 10**7),
        disk(48 * 10**10),
    ),
    Case(
        "disk-fills",
        "cannot use /data: it is gone",
        Severity.DATA_AT_RISK,
        disk(5 * 10**11, error="it is gone"),
        disk(5 * 10**11),
        HEALTHY,
    ),
    Case(
        "leaders-wander",
        "orders changed leaders up to 3 times in 30 s",
        Severity.WARNING,
        over(snapshot(), snapshot(topic("orders", partition(leader_epoch=8)))),
        over(snapshot(), snapshot(topic("orders", partition(leader_epoch=7)))),
        HEALTHY,
    ),
    Case("offline-partition", "orders-0 has no leader", Severity.DATA_AT_RISK, replicas(()), replicas((1,)), HEALTHY),
    Case(
        "too-few-in-sync",
        "orders-0 refuses acks=all (NOT_ENOUGH_REPLICAS): 1 of 3 replicas in sync, and it needs 2.",
        Severity.WARNING,
        replicas((1,)),
        replicas((1, 2)),
        HEALTHY,
    ),
    Case(
        "too-few-in-sync",
        "orders-0 refuses acks=all (NOT_ENOUGH_REPLICAS): 1 of 2 replicas in sync, and it needs 2.",
        Severity.WARNING,
        over(snapshot(topic("orders", replace(partition(isr=(1,)), replicas=(1, 2)), min_insync_replicas="3"))),
        over(snapshot(topic("orders", replace(partition(isr=(1, 2)), replicas=(1, 2)), min_insync_replicas="3"))),
        HEALTHY,
    ),
    Case(
        "one-failure-away",
        "orders has one replica, on a cluster of 3 nodes",
        Severity.WARNING,
        over(snapshot(topic("orders", replace(partition(), replicas=(1,), isr=(1,)), min_insync_replicas="1"))),
        over(snapshot(topic("orders", replace(partition(), replicas=(1, 2)), min_insync_replicas="1"))),
        HEALTHY,
    ),
    Case(
        "one-failure-away",
        "orders refuses acks=all as soon as one node is down",
        Severity.NOTE,
        over(snapshot(topic("orders", min_insync_replicas="3"))),
        over(snapshot(topic("orders", min_insync_replicas="2"))),
        HEALTHY,
    ),
    Case(
        "few-replicas",
        "orders-0 has 2 replicas, and a new topic gets 3.",
        Severity.WARNING,
        over(replace(snapshot(topic("orders", two_replicas(0), ottla_retention_hold="true")), replicas_of_new=3)),
        over(replace(snapshot(topic("orders", two_replicas(0))), replicas_of_new=3)),
        HEALTHY,
    ),
    Case(
        "few-replicas",
        "orders-1 has 2 replicas, and other partitions have 3.",
        Severity.WARNING,
        over(snapshot(topic("orders", partition(0), two_replicas(1)))),
        over(snapshot(topic("orders", two_replicas(0), two_replicas(1)))),
        HEALTHY,
    ),
    Case(
        "replica-behind",
        "Node 3 is 1,000 records behind in orders-0: it gains 100 records/s and needs 10 s",
        Severity.WARNING,
        over(
            snapshot(topic("orders", partition(isr=(1, 2), ends={3: 96_000}))),
            snapshot(topic("orders", partition(isr=(1, 2), ends={3: 99_000}))),
        ),
        over(snapshot(topic("orders", partition(ends={3: 96_000})))),
        HEALTHY,
    ),
    Case(
        "replica-behind",
        "it does not catch up",
        Severity.WARNING,
        over(snapshot(topic("orders", partition(isr=(1, 2), ends={3: 96_000})))),
        over(snapshot(topic("orders", partition(ends={3: 96_000})))),
        HEALTHY,
    ),
    Case(
        "replica-behind",
        "does not catch up. It left the in-sync replicas 4 min ago: it sent no fetch for 31 s.",
        Severity.WARNING,
        fell(4, cause=SILENT, evidence=over(snapshot(topic("orders", partition(isr=(1, 2), ends={3: 96_000}))))),
        fell(4, cause=SILENT),
        HEALTHY,
    ),
    Case(
        "isr-flaps",
        "Node 3 fell out of sync 3 times in 60 min, at worst in orders-0 and 11 other partitions: it fetched, but was "
        "40,000 records and 31 s behind.",
        Severity.WARNING,
        fell(4, 8, 59),
        fell(4, 8, 61),
        fell(64, 68, 119),
    ),
    Case(
        "isr-flaps",
        "Node 3 fell out of sync 3 times in 60 min, at worst in orders-0 and 11 other partitions: it sent no fetch for "
        "31 s.",
        Severity.WARNING,
        fell(4, 8, 12, cause=SILENT),
        fell(4, 8, 12, 16, cause=REMOVED),
        HEALTHY,
    ),
    Case(
        "unclean-election",
        "orders may elect a replica that is not in sync",
        Severity.NOTE,
        over(snapshot(topic("orders", unclean_leader_election_enable="true"))),
        HEALTHY,
        HEALTHY,
    ),
    Case(
        "misspelt-topic",
        "The empty topic ordres may be a misspelling of orders",
        Severity.NOTE,
        over(snapshot(topic("orders"), topic("ordres", partition(end=0)))),
        over(snapshot(topic("orders-1"), topic("orders-2", partition(end=0)))),
        over(snapshot(topic("orders"), topic("ordres"))),
    ),
    Case(
        "retention-late",
        "orders-0 still holds records that are 9 days old: retention.ms is 7 days",
        Severity.WARNING,
        over(snapshot(topic("orders", partition(oldest_ms=NOW_MS - 9 * DAY_MS)))),
        over(snapshot(topic("orders", partition(oldest_ms=NOW_MS - 8 * DAY_MS - 4 * MINUTE_MS)))),
        over(snapshot(topic("orders", partition(oldest_ms=NOW_MS - DAY_MS)))),
    ),
    Case(
        "wrong-timestamps",
        "a record with a timestamp 2 h in the future",
        Severity.WARNING,
        over(snapshot(topic("orders", partition(newest_ms=NOW_MS + 2 * HOUR_MS)))),
        over(snapshot(topic("orders", partition(newest_ms=NOW_MS + HOUR_MS)))),
        over(snapshot(topic("orders", partition(newest_ms=NOW_MS)))),
    ),
    Case(
        "wrong-timestamps",
        "timestamps in seconds instead of milliseconds",
        Severity.DATA_AT_RISK,
        over(snapshot(topic("orders", partition(newest_ms=NOW_MS // 1000)))),
        over(snapshot(topic("orders", partition(newest_ms=NOW_MS)))),
        over(snapshot(topic("orders", partition(newest_ms=NOW_MS)))),
    ),
    Case(
        "compaction-waits",
        "state-0 is not compacted yet",
        Severity.NOTE,
        over(snapshot(topic("state", partition(oldest_ms=NOW_MS - HOUR_MS), cleanup_policy="compact"))),
        over(snapshot(topic("state", partition(end=99_999, oldest_ms=NOW_MS - HOUR_MS), cleanup_policy="compact"))),
        over(
            snapshot(
                topic("state", partition(oldest_ms=NOW_MS - HOUR_MS), cleanup_policy="compact", segment_ms="60000")
            )
        ),
    ),
    Case(
        "lost-unread",
        "billing has not read 10 offsets in orders-0 that retention has deleted",
        Severity.DATA_AT_RISK,
        lag({0: 90}, start=100),
        lag({0: 100}, start=100),
        lag({0: 100_000}, start=100),
    ),
    Case(
        "position-beyond-end",
        "billing has read 5 records that orders-0 no longer holds",
        Severity.DATA_AT_RISK,
        lag({0: 100_005}),
        lag({0: 100_000}),
        lag({0: 100_000}),
    ),
    Case(
        "position-beyond-end",
        "positions in orders-0 are of an earlier topic of that name",
        Severity.WARNING,
        over(snapshot(topic("orders", partition(end=10, leader_epoch=0)), groups=[group({0: 50})])),
        over(snapshot(topic("orders", partition(end=50, leader_epoch=0)), groups=[group({0: 50})])),
        over(snapshot(topic("orders", partition(end=10, leader_epoch=0)), groups=[group({0: 0})])),
    ),
    Case(
        "about-to-lose",
        "billing has not read 90% of the records in orders-0",
        Severity.WARNING,
        lag({0: 20_000}, start=10_000, ends={0: 110_000}),
        lag({0: 30_000}, start=10_000, ends={0: 110_000}),
        lag({0: 110_000}, start=10_000, ends={0: 110_000}),
    ),
    Case(
        "stuck",
        "worker (/10.0.0.1) of billing has not moved in orders-0 for 30 s, at offset 1,000",
        Severity.WARNING,
        moving(0, 0),
        moving(1, 0),
        moving(0, 0, lag=0),
    ),
    Case(
        "stuck",
        "has not moved in orders-0 for 5 min, at offset 1,000",
        Severity.WARNING,
        with_commits((900, 310), (1000, 300), evidence=moving(0, 0)),
        with_commits((900, 450), (1000, 300), evidence=moving(0, 0)),
        with_commits((900, 310), (1000, 300), evidence=moving(0, 0, lag=0)),
    ),
    Case(
        "stuck",
        "has not moved in orders-0 for 5 min, at offset 1,000",
        Severity.WARNING,
        with_commits((900, 305), (1000, 300), *((1000, ago) for ago in range(240, 0, -60)), evidence=moving(0, 0)),
        with_commits((900, 65), (1000, 60), (1000, 30), evidence=moving(0, 0)),
        with_commits((1000, 60), (1000, 30), evidence=moving(0, 0, lag=0)),
    ),
    Case(
        "rebalance-loop",
        "billing rebalanced 4 times in 5 min: worker-c (/10.0.0.1) left and returned 2 times.",
        Severity.WARNING,
        generations("abc", "ab", "abc", "ab", "abc"),
        generations("abc", "ab", "abc", "abcd", "abcde"),
        generations("abc", "abcd"),
    ),
    Case(
        "position-went-back",
        "billing's position in orders-0 went back by 100 records 30 s ago",
        Severity.NOTE,
        with_commits((1000, 60), (900, 30)),
        with_commits((1000, 60), (901, 30)),
        with_commits((900, 60), (1000, 30)),
    ),
    Case(
        "clock-ahead",
        "The clock of the coordinator of billing is 6 s ahead of this machine's",
        Severity.WARNING,
        with_commits((1000, -6)),
        with_commits((1000, -5)),
        with_commits((1000, 1)),
    ),
    Case(
        "falling-behind",
        "billing falls behind: 1,000 records/s arrive, it reads 800/s",
        Severity.WARNING,
        moving(24_000, 30_000),
        moving(27_000, 30_000),
        moving(60_000, 30_000),
    ),
    Case(
        "rebalance-hangs",
        "billing waits for worker (/10.0.0.1) to give up orders-1",
        Severity.WARNING,
        rebalancing(kept=True),
        rebalancing(kept=False),
        rebalancing(kept=False, state="Stable"),
    ),
    Case(
        "rebalance-hangs",
        "billing has been in PreparingRebalance for at least 30 s",
        Severity.WARNING,
        over(snapshot(groups=[group(state="PreparingRebalance")])),
        over(
            snapshot(groups=[group(state="CompletingRebalance")]), snapshot(groups=[group(state="PreparingRebalance")])
        ),
        over(snapshot(groups=[group()])),
    ),
    Case(
        "hot-partition",
        "orders-0 has 80% of billing's lag in orders",
        Severity.WARNING,
        lag({0: 92_000, 1: 99_000, 2: 99_000}),
        lag({0: 92_001, 1: 98_999, 2: 99_000}),
        lag({0: 100_000, 1: 100_000, 2: 100_000}),
    ),
    Case(
        "idle-members",
        "1 of 2 members of billing own no partition",
        Severity.NOTE,
        over(snapshot(groups=[group(members=[member(0), member(id="n")])])),
        over(snapshot(groups=[group(members=[member(0), member(1, id="n")])])),
        over(snapshot(groups=[group(members=[member(0)])])),
    ),
    Case(
        "forgotten-topic",
        "billing has positions in orders, which do not exist",
        Severity.NOTE,
        over(snapshot(topic("clicks"), groups=[group({0: 5})])),
        over(snapshot(topic("orders"), groups=[group({0: 5})])),
        over(snapshot(topic("clicks"), groups=[group()])),
    ),
    Case(
        "share-group-idle",
        "billing is paused, and 5 records wait",
        Severity.WARNING,
        share(5, members=[member(0)], moved=1, share_delivery_paused="true"),
        share(5, members=[member(0)], moved=1, share_delivery_paused="false"),
        share(0, members=[member(0)], moved=1),
    ),
    Case(
        "share-group-idle",
        "billing has paused itself, because too many of its records failed within a minute. 5 records wait.",
        Severity.WARNING,
        share(
            5, members=[member(0)], share_delivery_paused="true", share_delivery_paused_by="the breaker: more than 3"
        ),
        share(5, members=[member(0)], moved=1, share_delivery_paused="false"),
        share(0, members=[member(0)], moved=1),
    ),
    Case(
        "share-group-idle",
        "billing has no members, and 5 records wait. Its last member, worker-a (/10.0.0.1), sent no heartbeat until "
        "its session ended, 4 min ago.",
        Severity.WARNING,
        observed(change(JOINED, ago_s=600), change(LEFT, ago_s=500), change(SESSION, ago_s=240), evidence=share(5)),
        observed(change(SESSION, ago_s=240), evidence=share(0)),
        observed(
            change(SESSION, ago_s=240), change(JOINED, ago_s=200), evidence=share(5, members=[member(0)], moved=1)
        ),
    ),
    Case(
        "share-group-idle",
        "billing has no members, and 5 records wait",
        Severity.WARNING,
        share(5),
        share(0),
        share(5, members=[member(0)], moved=1),
    ),
    Case(
        "share-group-idle",
        "billing has 1 member and no partition",
        Severity.WARNING,
        share(0, members=[member()]),
        share(0, members=[member(0)]),
        share(0, members=[member(0)]),
    ),
    Case(
        "share-group-idle",
        "A new share group begins at the end",
        Severity.NOTE,
        share(0, members=[member(0)], start=100_000),
        share(0, members=[member(0)], start=100_000, share_auto_offset_reset="earliest"),
        share(0, members=[member(0)], start=99_999, moved=1),
    ),
    Case(
        "share-group-idle",
        "they get no more: worker (/10.0.0.1) has 150 of them, the longest for 20 s, and its last lock ends in 10 s",
        Severity.WARNING,
        delivers(
            Deliveries(10, 500, 200, limit=200, holders=(Holder("worker", "/10.0.0.1", 150, 20_000, 10_000),)),
            Deliveries(9, 500),
        ),
        delivers(Deliveries(10, 500, 199, limit=200), Deliveries(9, 500)),
        delivers(Deliveries(210, 300, limit=200), Deliveries(10, 500, 200, limit=200)),
    ),
    Case(
        "share-group-idle",
        "billing has 5 records of orders-0 left, and delivers none before the end of a back-off or a delay, "
        "the first in 40 s",
        Severity.NOTE,
        delivers(Deliveries(10, 5, waiting=5, next_try_ms=40_000)),
        delivers(Deliveries(10, 6, waiting=5, next_try_ms=40_000), Deliveries(9, 6)),
        delivers(Deliveries(15, 0), Deliveries(10, 5, waiting=5)),
    ),
    Case(
        "share-group-idle",
        "2 records of orders-0 that billing gave up cannot be written as dead letters",
        Severity.WARNING,
        delivers(Deliveries(10, 5, archiving=2)),
        delivers(Deliveries(10, 5, archiving=2), Deliveries(9, 5, archiving=2)),
        delivers(Deliveries(12, 3), Deliveries(10, 5, archiving=2)),
    ),
    Case(
        "share-group-idle",
        "the next record of orders-0 belongs to an open transaction",
        Severity.WARNING,
        committed_only(500),
        committed_only(500, moved=1),
        committed_only(520, moved=20),
    ),
    Case(
        "share-group-idle",
        "nothing moved in orders-0 while records wait",
        Severity.WARNING,
        share(5, members=[member(0)]),
        share(5, members=[member(0)], moved=1),
        share(0, members=[member(0)]),
    ),
    Case(
        "readers-held-back",
        "The transaction of pay has been open for 4 min, and blocks readers of committed records in orders-0: its "
        "coordinator aborts it in 6 min.",
        Severity.WARNING,
        held(4 * MINUTE_MS, timeout=10 * MINUTE_MS),
        held(MINUTE_MS, timeout=10 * MINUTE_MS),
        held(4 * MINUTE_MS, timeout=10 * MINUTE_MS, moved=True),
    ),
    Case(
        "readers-held-back",
        "its coordinator should have aborted it",
        Severity.WARNING,
        held(7 * MINUTE_MS),
        held(MINUTE_MS),
        held(7 * MINUTE_MS, moved=True),
    ),
    Case(
        "readers-held-back",
        "A transaction of producer 7 hangs in orders-0 since offset 500, without a write for 21 min",
        Severity.WARNING,
        held(0, name=None, last_ms=21 * MINUTE_MS),
        held(0, name=None, last_ms=20 * MINUTE_MS),
        held(0, name=None, last_ms=21 * MINUTE_MS, moved=True),
    ),
    Case(
        "rebalance-hangs",
        "billing has been in PreparingRebalance for 6 min.",
        Severity.WARNING,
        observed(change(JOINED, ago_s=360), evidence=over(snapshot(groups=[group(state="PreparingRebalance")]))),
        observed(change(JOINED, ago_s=360), evidence=HEALTHY),
        HEALTHY,
    ),
    Case(
        "rebalance-loop",
        "worker-b (/10.0.0.1) left and returned 2 times (it left: restart, 1 time; its session ended, 1 time).",
        Severity.WARNING,
        observed(
            change(LEFT, "b", reason="restart"), change(SESSION, "b"), evidence=generations("ab", "a", "ab", "a", "ab")
        ),
        observed(change(LEFT, "b"), evidence=generations("ab", "a", "ab")),
        HEALTHY,
    ),
    Case(
        "slow-polls",
        "worker-b (/10.0.0.1) of billing took over 5 min for one poll, 2 times in 10 min",
        Severity.WARNING,
        observed(change(REBALANCE_TIMEOUT, "b"), change(LEFT, "b", reason="consumer poll timeout has expired.")),
        observed(change(REBALANCE_TIMEOUT, "b"), change(REBALANCE_TIMEOUT, "a"), change(LEFT, "b", reason="closed")),
        observed(change(REBALANCE_TIMEOUT, "b", ago_s=601), change(REBALANCE_TIMEOUT, "b")),
    ),
    Case(
        "slow-polls",
        "worker-b (/10.0.0.1) of billing took over 5 min for one poll, 2 times in 10 min",
        Severity.WARNING,
        observed(change(LEFT, "b"), change(LEFT, "b"), evidence=with_commits((1, 320))),
        observed(change(LEFT, "b"), change(LEFT, "b"), evidence=with_commits((1, 100))),
        observed(change(JOINED, "b"), evidence=with_commits((1, 320))),
    ),
    Case(
        "refused-commits",
        "worker of billing has committed 3 times after its group had dropped it (UNKNOWN_MEMBER_ID)",
        Severity.WARNING,
        observed(errors(8, 25, 3)),
        observed(errors(8, 25, 2), errors(8, 27, 9), errors(12, 25, 9)),
        observed(errors(8, 25, 3, ago_s=601)),
    ),
    Case(
        "fenced-instances",
        "Two programs use one group.instance.id in billing: worker was refused 3 times (FENCED_INSTANCE_ID).",
        Severity.WARNING,
        observed(errors(11, 82, 3)),
        observed(errors(11, 82, 2)),
        observed(errors(11, 82, 3, ago_s=601)),
    ),
    Case(
        "protocols-differ",
        "worker can't join billing",
        Severity.WARNING,
        observed(errors(11, 23, 1)),
        observed(errors(14, 23, 1)),
        observed(errors(11, 23, 1, ago_s=601)),
    ),
    Case(
        "fenced-producers",
        "worker was fenced 3 times (PRODUCER_FENCED, pay)",
        Severity.WARNING,
        observed(errors(22, 90, 3, subject="pay")),
        observed(errors(22, 90, 2, subject="pay"), errors(22, 51, 3, subject="pay")),
        observed(errors(22, 90, 3, subject="pay", ago_s=601)),
    ),
    Case(
        "too-large-batches",
        "orders has refused 1 batch request of worker: A batch of 1,200 bytes",
        Severity.WARNING,
        observed(
            errors(0, 10, 1, subject="orders", message="A batch of 1,200 bytes exceeds max.message.bytes, 1,000.")
        ),
        observed(errors(0, 2, 1, subject="orders"), errors(58, 10, 1, subject="orders")),
        observed(errors(0, 10, 1, subject="orders", ago_s=601)),
    ),
    Case(
        "throttled",
        "worker (User:ada) was throttled for 10% of 30 s, because of a quota.",
        Severity.WARNING,
        connected(throttled_ms=3_000),
        connected(throttled_ms=2_990),
        connected(),
    ),
    Case(
        "full-fetch-queues",
        "worker (10.0.0.1) fetches once a second although 50,000 records wait",
        Severity.WARNING,
        connected(fetches=30, software="librdkafka 2.5.0", evidence=moving(100, 100)),
        connected(fetches=30, software="librdkafka 2.5.0", evidence=moving(100, 100, lag=900)),
        connected(fetches=300, software="librdkafka 2.5.0", evidence=moving(100, 100)),
    ),
    Case(
        "waits-for-bytes",
        "worker (10.0.0.1) gets its records 500 ms late: 20 of 40 waiting fetches had records, but fewer bytes than "
        "its fetch.min.bytes (1,000).",
        Severity.NOTE,
        connected(held_back=20, waits=40),
        connected(held_back=19, waits=40),
        connected(waits=40),
    ),
    Case(
        "strangers",
        "Node 1 has closed 3 connections from 10.0.0.1: it speaks TLS.",
        Severity.WARNING,
        observed(errors(NO_API, 0, 3, subject="10.0.0.1", message="it speaks TLS")),
        observed(errors(NO_API, 0, 2, subject="10.0.0.1", message="it speaks TLS")),
        observed(errors(NO_API, 0, 3, subject="10.0.0.1", message="it speaks TLS", ago_s=601)),
    ),
    Case(
        "slow-turns",
        "Node 1's event loop was blocked for 0.8 s by Metadata of worker. All clients waited. In 10 min there were 3 "
        "such turns, 2.0 s together.",
        Severity.WARNING,
        stood_still(800, 800, 400),
        stood_still(800, 800, 399),
        stood_still(800, 800, 400, ago_s=601),
    ),
    Case(
        "slow-turns",
        "Node 1's event loop was blocked for 0.8 s by the timed work of the upkeep of logs. All clients waited.",
        Severity.WARNING,
        stood_still(800, 800, 400, api=NO_API, timer="the upkeep of logs"),
        stood_still(800, 800, 399, api=NO_API, timer="the upkeep of logs"),
        stood_still(800, 800, 400, api=NO_API, timer="the upkeep of logs", ago_s=601),
    ),
    Case(
        "small-batches",
        "orders receives 500 batches/s of 1.9 records",
        Severity.NOTE,
        batches(15_000, 28_500),
        batches(14_999, 14_999),
        batches(15_000, 30_000),
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.says[:40]}")
def test_a_check_speaks_of_a_fault_and_of_nothing_else(case: Case) -> None:
    found = [each.finding for each in diagnose(case.fault, [case.check])]
    assert [case.says in each.sentence for each in found] == [True], found
    assert found[0].severity is case.severity
    assert found[0].advice
    for silent in (case.below, case.mended):
        assert not [each for each in diagnose(silent, [case.check]) if case.says in each.finding.sentence]


def test_every_check_has_a_case() -> None:
    assert {case.check for case in CASES} == set(CHECKS)


def test_a_healthy_cluster_has_no_findings() -> None:
    assert diagnose(HEALTHY) == []


def test_the_worst_comes_first_and_the_certain_before_the_likely() -> None:
    worse = snapshot(
        topic("orders", partition(isr=()), unclean_leader_election_enable="true"),
        topic("used"),
        groups=[group({0: 90})],
        nodes=(*nodes(), Node(4, "host", 9092, unreachable="refused")),
    )
    found = [each.finding for each in diagnose(over(worse))]
    assert [each.severity for each in found] == sorted((each.severity for each in found), reverse=True)
    assert {each.severity for each in found} == set(Severity)


def test_the_page_describes_every_check() -> None:
    page = (TOP / "docs" / "doctor.md").read_text()
    assert re.findall(r"^\| `([a-z][a-z-]+)` \|", page, re.MULTILINE) == list(CHECKS)


def test_the_commands_in_advice_parse() -> None:
    """With the options that they name: an advice is a command, or a sentence with commands in backticks."""
    advice = {each.finding.advice for case in CASES for each in diagnose(case.fault)}
    found = [text for each in advice for text in (re.findall("`([^`]+)`", each) or [each]) if text.startswith("ottla ")]
    assert len(found) > 12
    for text in found:
        at: Any = command()
        name, *rest = shlex.split(text.replace("=...", "=1"))
        while rest and hasattr(at, "commands"):
            name, *rest = rest
            at = at.commands[name]
        if rest:  # a noun or a command alone refers to its help
            context = at.make_context(name, rest)
            assert not context.params.get("command_config"), "a config is given by --set"


def test_what_nodes_remember_makes_findings_certain() -> None:
    """Without it, the same groups may be only slow."""
    for check in ("rebalance-hangs", "rebalance-loop"):
        found = [diagnose(case.fault, [check])[0].finding for case in CASES if case.check == check]
        assert {each.sure_with is None for each in found} == {True, False}, check


def test_a_node_that_has_started_again_has_no_counts_to_compare() -> None:
    grown = connected(throttled_ms=30_000)
    assert diagnose(grown, ["throttled"])
    (node,) = grown.last.observed
    again = replace(grown, last=replace(grown.last, observed=(replace(node, started_ms=5),)))
    assert not diagnose(again, ["throttled"])


def test_errors_of_one_client_on_several_nodes_are_one_finding() -> None:
    several = observed(errors(8, 25, 3))
    (node,) = several.last.observed
    several = replace(several, last=replace(several.last, observed=(node, replace(node, node=2))))
    assert len(diagnose(several, ["refused-commits"])) == 1


def test_two_leaders_that_see_the_same_pause_of_a_node_do_not_count_it_twice() -> None:
    twice = fell(4, 8)
    (node,) = twice.last.observed
    both = replace(twice, last=replace(twice.last, observed=(node, replace(node, node=2))))
    assert not diagnose(both, ["isr-flaps"])


def test_a_group_that_has_paused_itself_is_shown_with_the_most_common_reason() -> None:
    many, few = FrequentReason("out of paper", 3, 1), FrequentReason("busy", 2, 2)
    (found,) = diagnose(paused_itself(few, many))
    assert 'minute. The most common reason that its members gave: "out of paper". 5 records' in found.finding.sentence
    assert "log" not in found.finding.advice
    (cut,) = diagnose(paused_itself(FrequentReason("x" * 1_000, 1, 1)))
    assert f'"{"x" * 200}...".' in cut.finding.sentence
    (unknown,) = diagnose(paused_itself())
    assert "reason" not in unknown.finding.sentence
    assert "the log of the member that rejected a record says why" in unknown.finding.advice
