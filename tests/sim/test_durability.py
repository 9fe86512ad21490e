"""Which failures take what was acknowledged: the table of docs/durability.md, held to what happens.

Each cell is a story: a leader acknowledges a record, and at that moment something fails; then everybody comes back. A
cell that says "kept" must keep it; one that says "may be lost" must have a story in which it is.
"""

from pathlib import Path
from typing import Any

import pytest

from ottla.log.answers import Isolation
from ottla.sim.clients.batches import decode_batches
from ottla.sim.clients.replicated import ReplicatedProducer
from ottla.sim.kernel.clock import MS
from ottla.sim.kernel.disk import Disk
from ottla.sim.workloads.cluster import TOPIC
from ottla.sim.workloads.elected_cluster import ElectedCluster

PAGE = Path(__file__).parents[2] / "docs" / "durability.md"
SEEDS = range(20)
KEPT, LOST = "kept", "may be lost"
FAILURES = ("process", "power", "all power", "disk")
"""The columns, in order: the leader's process is killed; its machine loses power; all machines do; its disk is lost."""


class Told(ReplicatedProducer):
    """Remembers the last record of each batch that was acknowledged to it, whatever its acks."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.told: list[tuple[int, bytes]] = []

    def _produced(self, answer: Any) -> bool:
        value, part = self.pending[-1] if self.pending else b"", answer.responses[0].partition_responses[0]
        if not part.error_code:
            self.told.append((part.base_offset + len(self.pending) - 1, value))
        self.acks, acks = 1, self.acks  # the checkers are not asked: here records may be lost
        try:
            return super()._produced(answer)
        finally:
            self.acks = acks


def cells() -> list[tuple[str, int, bool, str, str]]:
    """(acks, replicas, fsync, failure, what the page says)."""
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in PAGE.read_text().splitlines()]
    found: list[tuple[str, int, bool, str, str]] = []
    for row in rows:
        if row[0] in ("1", "all") and len(row) == 3 + len(FAILURES):
            acks, durability, replicas, *said = row
            found += [
                (acks, int(replicas), durability == "`fsync`", failure, cell)
                for failure, cell in zip(FAILURES, said, strict=True)
            ]
    return found


def test_the_page_has_every_cell() -> None:
    assert len(cells()) == 2 * 2 * 2 * len(FAILURES)
    assert {said for *_, said in cells()} == {KEPT, LOST}


@pytest.mark.parametrize(("acks", "replicas", "fsync", "failure", "said"), cells())
def test_a_record_is_kept_where_the_page_says_so(
    acks: str, replicas: int, fsync: bool, failure: str, said: str
) -> None:
    seeds = SEEDS if said == LOST else SEEDS[:1]
    assert (said == KEPT) == all(is_kept(seed, acks, replicas, fsync, failure) for seed in seeds)


@pytest.mark.parametrize("replicas", [1, 3])
def test_with_a_flush_after_each_message_a_record_is_on_the_disk_of_each_replica(replicas: int) -> None:
    """What the page says beside the table; without it a power cut may take the record."""
    settings = {"log.flush.interval.messages": "1"}
    assert all(is_kept(seed, "all", replicas, False, "all power", settings) for seed in SEEDS[:2])


def is_kept(
    seed: int, acks: str, replicas: int, fsync: bool, failure: str, settings: dict[str, str] | None = None
) -> bool:
    """Whether the record that was acknowledged last is there when everybody has come back."""
    cluster = ElectedCluster(seed, fsync=fsync, replicas=replicas, min_isr=min(2, replicas), settings=settings)
    cluster.checkers.clear()
    cluster.start()
    cluster.until(lambda: cluster.leader() is not None)
    producer = Told(cluster, "producer", (TOPIC, 0), acks=-1 if acks == "all" else 1)
    cluster.producers.append(producer)
    producer.go()
    cluster.until(lambda: producer.acknowledged_count > 3)
    cluster.run(600)  # a new directory's first records are on the disk by then
    leader = cluster.leader()
    assert leader is not None
    if acks == "1":
        for node_id, other in cluster.hosts.items():
            if node_id != leader:
                cluster.world.network.cut_path(cluster.hosts[leader].name, other.name)
    producer.told.clear()
    while not producer.told:
        cluster.world.run(cluster.world.clock.now_us + MS // 10)
    fail(cluster, leader, failure)
    offset, value = producer.told[-1]
    producer.running = False
    producer.hang_up()
    cluster.producers.clear()
    cluster.world.network.mend()
    cluster.run(1_000)
    cluster.heal()
    cluster.until(lambda: cluster.leader() is not None and replica_leads(cluster))
    return value in read_at(cluster, offset)


def fail(cluster: ElectedCluster, leader: int, failure: str) -> None:
    for node_id in list(cluster.hosts) if failure == "all power" else [leader]:
        cluster.kill(node_id, power_cut=failure != "process")
    if failure == "disk":
        cluster.hosts[leader].disk = Disk(cluster.world.stream("new disk"))


def replica_leads(cluster: ElectedCluster) -> bool:
    leader = cluster.leader()
    if leader is None or not cluster.hosts[leader].up:
        return False
    partition = cluster.node(leader).replicas.get(TOPIC, 0)
    return partition is not None and partition.leads


def read_at(cluster: ElectedCluster, offset: int) -> list[bytes | None]:
    leader = cluster.leader()
    assert leader is not None
    partition = cluster.node(leader).replicas.get(TOPIC, 0)
    assert partition is not None
    log = partition.log
    if not log.log_start_offset <= offset < log.log_end_offset:
        return []
    found = log.read(offset, 1 << 20, Isolation.LOG_END).slice
    return [] if found is None else [note.value for batch in decode_batches(found.read()) for note in batch.notes]
