"""Share groups that read committed records only, held against who wrote what and how it ended.

Random runs on a node in memory: producers with transactions, plain records between them, members that accept and
release, markers, kills. KIP-932: `share.isolation.level`.
"""

import random
from typing import Any

import pytest

from ottla.log.answers import Origin
from ottla.protocol.records.control import EndTransactionMarker, build_marker_batch
from tests.harness.node_stage import NOW
from tests.harness.share.share_stage import ACCEPT, RELEASE, Member, ShareStage

PRODUCERS = (7, 8, 9)
STEPS = 120


class Writers:
    """Producers of one partition, and what became of every offset they wrote."""

    def __init__(self, stage: ShareStage) -> None:
        self.stage = stage
        self.sequences: dict[int, int] = dict.fromkeys(PRODUCERS, 0)
        self.open: dict[int, list[int]] = {}
        self.committed: set[int] = set()
        self.aborted: set[int] = set()

    def write(self, producer_id: int, count: int) -> None:
        how: dict[str, Any] = {"producer_id": producer_id, "base_sequence": self.sequences[producer_id]}
        base = self.stage.produce(count, transactional=True, producer_epoch=0, **how)
        self.sequences[producer_id] += count
        self.open.setdefault(producer_id, []).extend(range(base, base + count))

    def plain(self, count: int) -> None:
        base = self.stage.produce(count)
        self.committed.update(range(base, base + count))

    def end(self, producer_id: int, *, commits: bool) -> None:
        what = EndTransactionMarker(commits, 0)
        marker = build_marker_batch(what, producer_id=producer_id, producer_epoch=0, timestamp_ms=NOW)
        self.stage.put(marker, origin=Origin.COORDINATOR)
        (self.committed if commits else self.aborted).update(self.open.pop(producer_id, ()))

    @property
    def readable_end(self) -> int:
        """No record from here on may be seen."""
        return min((offset for offsets in self.open.values() for offset in offsets), default=1 << 40)


def take(member: Member, writers: Writers, rng: random.Random, accepted: set[int]) -> bool:
    """Fetch, hold what came against what may be seen, accept some; whether anything came."""
    ranges = member.fetch(records=rng.choice((1, 3, 500)), batch_size=rng.choice((1, 500)))
    offsets = [offset for first, last, _ in ranges for offset in range(first, last + 1)]
    assert not writers.aborted.intersection(offsets), "an aborted record was delivered"
    assert all(offset < writers.readable_end for offset in offsets), "a record behind an open transaction was delivered"
    assert not accepted.intersection(offsets), "an accepted record came again"
    assert writers.committed.issuperset(offsets)
    for first, last, _ in ranges:
        kind = rng.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE))
        assert member.said((first, last, [kind])) == 0
        if kind == ACCEPT:
            accepted.update(range(first, last + 1))
    return bool(ranges)


@pytest.mark.parametrize("seed", range(12))
def test_only_committed_records_are_delivered_and_all_of_them(stage: ShareStage, seed: int) -> None:
    rng = random.Random(seed)
    topic = stage.topic()
    stage.configure(
        "g", share_auto_offset_reset="earliest", share_isolation_level="read_committed", share_delivery_count_limit="10"
    )
    writers, accepted = Writers(stage), set[int]()
    member = stage.member(topic)
    member.fetch()
    for _ in range(STEPS):
        match rng.choice(("write", "write", "plain", "end", "take", "take", "kill")):
            case "write":
                writers.write(rng.choice(PRODUCERS), rng.randint(1, 4))
            case "plain":
                writers.plain(rng.randint(1, 4))
            case "end" if writers.open:
                writers.end(rng.choice(sorted(writers.open)), commits=rng.random() < 0.5)
            case "take":
                take(member, writers, rng, accepted)
            case "kill" if rng.random() < 0.2:
                stage.restart(clean=rng.random() < 0.5)
                member = stage.member(topic)
            case _:
                pass
    for producer_id in sorted(writers.open):
        writers.end(producer_id, commits=True)
    for _ in range(1000):
        if not take(member, writers, rng, accepted) and accepted == writers.committed:
            break
    assert accepted == writers.committed
    partition = stage.node.replicas.get("jobs", 0)
    assert partition is not None
    (standing,) = stage.node.coordinators.share.describe(stage.now)
    assert standing.start_offset == partition.log.log_end_offset
