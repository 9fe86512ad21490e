"""A node remembers how far it has seen the metadata store that it shares: an older one is noticed at its next start."""

import copy
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.broker.cluster.membership import Joining
from ottla.broker.cluster.metadata import RowBatch, RowChange, planned
from ottla.broker.cluster.store_memory import Seen, read_seen
from ottla.log.checkpoints import SEEN_FILE, CheckpointUnreadableError
from ottla.log.files import DiskFiles
from ottla.metadata.history import HISTORY, HISTORY_KEY, HistoryRecord
from ottla.metadata.memory import MemoryStore
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.store import Put
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of
from tests.harness.node_stage import NodeStage

LEASE_MS = 3_600_000
ID = bytes(range(16))


class Cluster:
    """Nodes over one store, one at a time. Each start has a name of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = MemoryStore()
        self.starts = 0

    def start(self, node_id: int) -> NodeStage:
        self.starts += 1
        joining = Joining("127.0.0.1", 9000 + node_id, f"life-{self.starts}", LEASE_MS)
        stage = NodeStage(
            self.directory / str(node_id),
            store=self.store,
            joining=joining,
            node_id=str(node_id),
            ottla_cluster_secret="secret",
        )
        assert stage.node.membership is not None
        stage.node.membership.confirmed(stage.now)
        stage.node.membership.seen(stage.now, {node_id: joining.incarnation})
        stage.run()
        return stage

    def backup(self) -> MemoryStore:
        return copy.deepcopy(self.store)

    def write(self, commits: int) -> None:
        """Commits of somebody else."""
        for _ in range(commits):
            self.store.commit([Put("other", b"")])

    def lost(self, node_id: int) -> int:
        """What the row of the node says."""
        row = self.store.get(f"nodes/{node_id}")
        assert row is not None
        return NodeRecord.decode(row.value).lost_commits


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_a_restored_store_is_older_than_what_a_node_has_seen(cluster: Cluster) -> None:
    cluster.start(1).end()
    backup = cluster.backup()
    stage = cluster.start(1)
    stage.end()
    seen = cluster.store.generation
    cluster.store = backup
    stage = cluster.start(1)
    assert cluster.lost(1) == seen - backup_generation(stage, seen) > 0


def backup_generation(stage: NodeStage, seen: int) -> int:
    """The generation of the store before the start of this node, as its row says, which skips what was seen."""
    assert stage.node.image[HISTORY] is not None
    assert stage.node.image[HISTORY].version == seen + 1
    assert stage.node.membership is not None
    record = stage.node.membership.record
    assert record is not None
    return seen - record.lost_commits


def test_nothing_is_lost_where_nodes_start_one_after_the_other(cluster: Cluster) -> None:
    for node_id in (1, 2, 1, 2, 2):
        cluster.start(node_id).end()
        assert cluster.lost(node_id) == 0


def test_a_node_notices_however_far_others_went_meanwhile(cluster: Cluster) -> None:
    """Node 1 has seen nothing of what is lost, and writes more than was lost before node 2 starts."""
    cluster.start(2).end()
    cluster.start(1).end()
    backup = cluster.backup()
    generation = backup.generation
    cluster.write(5)
    stage = cluster.start(2)
    stage.end()
    seen = cluster.store.generation
    cluster.store = backup
    cluster.start(1).end()
    assert cluster.lost(1) == 0
    cluster.write(500)
    cluster.start(2)
    assert cluster.lost(2) == seen - generation


def test_two_nodes_that_have_seen_the_lost_past_both_say_so(cluster: Cluster) -> None:
    cluster.start(1).end()
    cluster.start(2).end()
    backup = cluster.backup()
    generation = backup.generation
    cluster.start(1).end()
    first_saw = cluster.store.generation
    cluster.write(3)
    cluster.start(2).end()
    second_saw = cluster.store.generation
    cluster.store = backup
    cluster.start(1).end()
    assert cluster.store.generation > first_saw
    cluster.start(2).end()
    assert (cluster.lost(1), cluster.lost(2)) == (first_saw - generation, second_saw - generation)
    assert cluster.store.generation > second_saw
    cluster.start(1).end()
    assert cluster.lost(1) == 0, "the controller has seen it"


def test_numbers_left_out_by_one_node_hide_nothing_from_another(cluster: Cluster) -> None:
    """Node 2 has seen more of the lost past than node 1, which starts last."""
    cluster.start(1).end()
    cluster.start(2).end()
    backup = cluster.backup()
    generation = backup.generation
    cluster.start(1).end()
    saw = cluster.store.generation
    cluster.start(2).end()
    cluster.store = backup
    cluster.start(2).end()
    cluster.start(1)
    assert cluster.lost(1) == saw - generation


def test_what_is_lost_is_said_until_the_controller_has_heard_it(cluster: Cluster) -> None:
    cluster.start(1).end()
    backup = cluster.backup()
    cluster.start(1).end()
    lost = cluster.store.generation - backup.generation
    cluster.store = backup
    joining = Joining("127.0.0.1", 9001, "unheard", LEASE_MS)
    stage = NodeStage(cluster.directory / "1", store=cluster.store, joining=joining, ottla_cluster_secret="secret")
    stage.end(clean=False)  # it is killed before it has registered
    cluster.start(1)
    assert cluster.lost(1) == lost


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PartitionRecord((1, 2), (1, 2), 1), PartitionRecord((1, 2), (1, 2), 2, 1, 1)),
        (PartitionRecord((1, 2), (1, 2), 1), PartitionRecord((1, 2), (1,), 1, 0, 1)),
        (PartitionRecord((1, 2, 3), (1,), 1, elr=(3,)), PartitionRecord((1, 2, 3), (1, 2), 1, 0, 1)),
    ],
    ids=["leader", "in sync", "eligible"],
)
def test_the_file_is_written_before_the_node_acts(
    cluster: Cluster, before: PartitionRecord, after: PartitionRecord
) -> None:
    """A node that is killed right after the commit remembers it, if its partitions' leaders or eligible replicas are
    others since: acknowledgements build on that."""
    stage = cluster.start(1)
    assert stage.node.membership is not None
    stage.node.membership.seen(stage.now, {1: "life-1", 2: "other"})
    stage.change(planned(RowBatch([RowChange("nodes/2", NodeRecord("127.0.0.1", 9002, incarnation="other"), 0)])))
    stage.change(planned(RowBatch([RowChange(key_of("t"), TopicRecord(ID, {}, (before,)), 0)])))
    backup = cluster.backup()
    cluster.write(4)
    stage.change(planned(RowBatch([RowChange(key_of("t"), TopicRecord(ID, {}, (after,)))])))
    seen = read_seen(DiskFiles(), f"{stage.directory}/{SEEN_FILE}")
    assert seen is not None
    assert seen.generation == stage.node.image.generation == cluster.store.generation
    stage.end(clean=False)
    cluster.store = backup
    cluster.start(1)
    assert cluster.lost(1) >= 5


def test_a_damaged_file_is_said_and_done_without(cluster: Cluster) -> None:
    cluster.start(1).end()
    (cluster.directory / "1" / SEEN_FILE).write_text("generation=x\nstarts=\nlost=0\n")
    stage = cluster.start(1)
    assert cluster.lost(1) == 0
    assert any("does not say which metadata the node has seen" in note for note in stage.notes)


def test_a_node_that_has_lost_the_file_says_so_also_after_a_kill(cluster: Cluster) -> None:
    """It can't compare the store any more, so it counts as missing where the store may have been restored."""

    def knows_store() -> bool:
        row = cluster.store.get("nodes/1")
        assert row is not None
        return NodeRecord.decode(row.value).knows_store

    cluster.start(1).end()
    assert knows_store(), "it was new"
    (cluster.directory / "1" / SEEN_FILE).unlink()
    cluster.start(1).end(clean=False)
    assert not knows_store()
    cluster.start(1).end()
    assert not knows_store()


def test_a_flipped_bit_does_not_look_like_another_store(tmp_path: Path) -> None:
    seen, path = Seen(107, ((88, "a"), (90, "b")), 0), tmp_path / SEEN_FILE
    path.write_bytes(seen.encode())
    assert read_seen(DiskFiles(), str(path)) == seen
    path.write_bytes(b"".join(line for line in seen.encode().splitlines(keepends=True) if b"checksum" not in line))
    assert read_seen(DiskFiles(), str(path)) == seen, "an earlier version wrote no checksum"
    for bit in range(8 * len(seen.encode())):
        content = bytearray(seen.encode())
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with suppress(CheckpointUnreadableError):
            assert read_seen(DiskFiles(), str(path)) == seen, content


def test_a_node_alone_forgets_what_it_shared(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start(1).end()
    NodeStage(tmp_path / "1", store=MemoryStore()).end()
    assert not (tmp_path / "1" / SEEN_FILE).exists()


def test_the_history_names_the_starts(cluster: Cluster) -> None:
    for node_id in (1, 2):
        cluster.start(node_id).end()
    row = cluster.store.get(HISTORY_KEY)
    assert row is not None
    record = HistoryRecord.decode(row.value)
    assert (record.newest, [entry.name for entry in record.earlier]) == ("life-2", ["life-1"])
