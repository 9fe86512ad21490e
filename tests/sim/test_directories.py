"""Topics that come and go on a simulated disk: cut at every single operation, failing calls, a store that forgets."""

import errno
import os

import pytest

from ottla.log.answers import StorageError
from ottla.metadata.store import Delete, StoreError
from ottla.metadata.topics import key_of
from ottla.sim.kernel.disk import PowerCut
from ottla.sim.workloads.run import DIRECTORY
from tests.harness.sim.stage import Stage

LONGEST = "t" * 249
LONGEST_TOO = pytest.mark.slow(
    "tests/sim/test_directories.py::test_a_topic_made_again_has_its_own_records_wherever_the_node_is_cut"
)
DAY_MS = 86_400_000


def deleted_and_made_again(stage: Stage, name: str) -> None:
    for generation in (b"old", b"new"):
        stage.create(name, 3, {})
        for index in (0, 2):
            for number in range(2):
                stage.put(name, index, b"%s-%d-%d" % (generation, index, number))
        if generation == b"old":
            stage.node.replicas.by_name[name].partitions[0].log.delete_records_before(1)
            stage.tick(60_000)  # the checkpoints know of it
            stage.delete(name)
            stage.settle()


@pytest.mark.parametrize("name", ["t", pytest.param(LONGEST, marks=LONGEST_TOO)], ids=["short", "longest"])
@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power"])
def test_a_topic_made_again_has_its_own_records_wherever_the_node_is_cut(name: str, power_cut: bool) -> None:
    operations = 0
    finished = False
    while not finished:
        operations += 1
        stage = Stage(operations)
        stage.disk.fuse = operations
        try:
            deleted_and_made_again(stage, name)
            finished = True
        except PowerCut:
            stage.disk.fuse = None
        stage.restart(clean=False, power_cut=power_cut)
        stage.tick(1000)
        topic = stage.node.image.topics.get(name)
        if topic is not None:
            acknowledged = stage.written.get(topic.id, [])
            # What was being appended when the cut came may be there as well.
            found = stage.stored(name)
            kinds = {value.partition(b"-")[0] for value in (*found, *acknowledged)}
            assert len(kinds) <= 1, (operations, found)
            assert set(acknowledged) - set(found) <= {b"old-0-0"}, (operations, found)
        left = [entry for entry in stage.disk.listdir(DIRECTORY) if entry.endswith(("-stray", "-delete"))]
        assert left == [], operations
    assert operations > 90


def test_a_directory_that_cannot_go_keeps_a_topic_of_its_name_from_being_made() -> None:
    stage = Stage(1)
    stage.create("t", 1, {})
    stage.put("t", 0, b"old")

    def trouble(operation: str, path: str) -> None:
        if operation in ("rename", "unlink") and "/t-0" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    stage.disk.trouble = trouble
    stage.delete("t")
    with pytest.raises(StoreError, match="can't be removed yet"):
        stage.create("t", 1, {})
    stage.restart(clean=False, power_cut=True)
    with pytest.raises(StoreError, match="can't be removed yet"):
        stage.create("t", 1, {})
    stage.disk.trouble = None
    stage.tick(60_000)
    stage.create("t", 1, {})
    assert stage.stored("t") == []


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power"])
def test_a_partition_with_a_read_error_at_the_start_comes_back_with_all_its_records(power_cut: bool) -> None:
    stage = Stage(2)
    stage.create("t", 3, {})
    for index in range(3):
        stage.put("t", index, b"%d" % index)

    def trouble(operation: str, path: str) -> None:
        if operation == "read" and "/t-1/" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    stage.disk.trouble = trouble
    stage.restart(clean=False, power_cut=power_cut)
    for index in (0, 2):
        stage.put("t", index, b"more")
    with pytest.raises(StorageError):
        stage.put("t", 1, b"refused")
    stage.tick(60_000)
    stage.restart(clean=False, power_cut=power_cut)
    stage.disk.trouble = None
    stage.tick(15_000)
    stage.put("t", 1, b"again")
    assert stage.stored("t") == [b"0", b"more", b"1", b"again", b"2", b"more"]


def test_a_store_that_forgot_a_topic_loses_none_of_its_records() -> None:
    stage = Stage(3)
    stage.create("t", 2, {"retention.ms": "-1"})
    identity = stage.node.replicas.by_name["t"].id
    for number in range(3):
        stage.put("t", 1, b"%d" % number)
    stage.store.commit([Delete(key_of("t"))])
    stage.restart(clean=False, power_cut=True)
    for _ in range(30):
        stage.tick(DAY_MS)
    assert stage.node.replicas.by_name["t"].id == identity
    assert stage.stored("t") == [b"0", b"1", b"2"]
    stage.change(stage.node.topics.configuring(stage.node.image.topics["t"], {"retention.ms": "1000"}))
    stage.tick(DAY_MS)
    stage.tick(DAY_MS)
    assert stage.stored("t") == []


def test_a_deleted_topic_does_not_come_back_with_the_names_of_its_files() -> None:
    """A start removes what an earlier life could not: only then, on the disk, may the store forget the deletion."""
    for seed in range(20):
        stage = Stage(seed)
        stage.create("t", 2, {})
        stage.put("t", 0, b"old")
        stage.put("t", 1, b"old")

        def trouble(operation: str, path: str) -> None:
            if operation in ("rename", "unlink") and "/t-" in path:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)

        stage.disk.trouble = trouble
        stage.delete("t")
        stage.tick()
        stage.disk.trouble = None
        stage.restart(clean=False, power_cut=False)
        assert stage.store.list("deleted/") == []
        stage.restart(clean=False, power_cut=True)
        assert "t" not in stage.node.image.topics, seed
        assert [entry for entry in stage.disk.listdir(DIRECTORY) if entry.startswith("t-")] == [], seed
