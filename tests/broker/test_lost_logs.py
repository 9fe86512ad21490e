"""A start finds out that a log is gone, also if it was lost before the first checkpoint of its high watermark."""

import errno
import random
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

from ottla.broker.cluster.membership import Membership
from ottla.broker.upkeep.checkpoints import HIGH_WATERMARK, LOG_START
from ottla.broker.upkeep.written import WRITTEN_FILE, WrittenPartitions, decoded
from ottla.log.checkpoints import encode_offsets
from ottla.log.files import DiskFile
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.replica.copy_status import CopyStatus
from tests.harness.node_pair import NodePair


@pytest.fixture
def pair(tmp_path: Path) -> NodePair:
    """t-0 has records on both nodes, and t-1 was never written."""
    made = NodePair(tmp_path)
    assignments = [CreatableReplicaAssignment(index, [1, 2]) for index in range(2)]
    made.ask(1, CreateTopicsRequest([CreatableTopic("t", -1, -1, assignments=assignments)]))
    made.stages[1].append("t")
    for _ in range(4):
        made.run(500)
    assert made.stages[2].node.replicas.by_name["t"].partitions[0].log.log_end_offset == 1
    return made


def restart(pair: NodePair, files: dict[str, bytes | None]) -> dict[int, CopyStatus]:
    """Kill node 2, change files in its directory, and start it. Returns what the start finds out about each
    partition."""
    stage = pair.stages[2]
    stage.end(clean=False)
    directory = Path(stage.directory)
    (directory / HIGH_WATERMARK).write_bytes(encode_offsets({("t", 0): 0, ("t", 1): 0}))
    for name, content in files.items():
        if content is not None:
            (directory / name).write_bytes(content)
        elif (directory / name).is_dir():
            shutil.rmtree(directory / name)
        else:
            (directory / name).unlink(missing_ok=True)
    stage.start()
    logs = stage.node.topics._placement.logs
    return {
        index: logs.copy_of(partition.log, index).status
        for index, partition in stage.node.replicas.by_name["t"].partitions.items()
    }


WHOLE, MAY_LACK, EMPTY = CopyStatus.COMPLETE, CopyStatus.TAIL_LOST, CopyStatus.EMPTY


def test_a_log_that_is_there_is_whole(pair: NodePair) -> None:
    assert restart(pair, {}) == {0: WHOLE, 1: WHOLE}


@pytest.mark.parametrize("lost", ["t-0", "t-0/00000000000000000000.log"])
def test_a_log_that_is_lost_before_its_first_checkpoint_is_missed(pair: NodePair, lost: str) -> None:
    assert restart(pair, {lost: None}) == {0: EMPTY, 1: WHOLE}
    assert restart(pair, {}) == {0: EMPTY, 1: WHOLE}, "it is still missed"


def replaced_while_it_runs(pair: NodePair) -> dict[int, CopyStatus]:
    """Put an older copy in the place of a partition's directory after an append, and restart the killed node."""
    log = Path(pair.stages[2].directory) / "t-0"
    older = log.parent.parent / "older"
    shutil.copytree(log, older)
    pair.stages[1].append("t")
    for _ in range(4):
        pair.run(500)
    log.rename(older.with_name("newer"))
    older.rename(log)
    return restart(pair, {})


def test_a_directory_that_an_older_copy_has_replaced_may_lack_records(pair: NodePair) -> None:
    assert restart(pair, {}) == {0: WHOLE, 1: WHOLE}
    assert replaced_while_it_runs(pair) == {0: MAY_LACK, 1: WHOLE}


def test_a_directory_that_was_replaced_since_its_first_record_may_lack_records(pair: NodePair) -> None:
    assert replaced_while_it_runs(pair) == {0: MAY_LACK, 1: WHOLE}


def test_only_the_identity_shows_that_a_directory_was_replaced(pair: NodePair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WrittenPartitions, "is_replaced", lambda *_: False)
    assert replaced_while_it_runs(pair) == {0: WHOLE, 1: WHOLE}


def test_after_a_clean_stop_a_copy_of_a_directory_is_whole(pair: NodePair) -> None:
    stage = pair.stages[2]
    stage.end(clean=True)
    log = Path(stage.directory) / "t-0"
    shutil.copytree(log, log.with_name("copy"))
    shutil.rmtree(log)
    shutil.move(log.with_name("copy"), log)
    stage.start()
    assert stage.node.replicas.by_name["t"].partitions[0].log.found.is_complete
    assert restart(pair, {}) == {0: WHOLE, 1: WHOLE}, "its new identity is noted"


@pytest.mark.parametrize("content", [None, b"", b"0 0 1\n"])
def test_without_the_file_a_partition_without_a_log_may_have_lost_it(pair: NodePair, content: bytes | None) -> None:
    assert restart(pair, {WRITTEN_FILE: content}) == {0: WHOLE, 1: MAY_LACK}


def test_a_cut_or_a_flipped_bit_in_the_file_is_noticed(pair: NodePair) -> None:
    """Of a cut exactly between two lines that were appended, only the file's own count could tell."""
    restart(pair, {})
    path = Path(pair.stages[2].directory) / WRITTEN_FILE
    content = path.read_bytes()
    (place,) = decoded(content, may_be_torn=False)
    assert place[1] == 0
    for size in range(len(content)):
        with pytest.raises(ValueError, match="damaged"):
            decoded(content[:size], may_be_torn=False)
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match="damaged"):
            decoded(bytes(flipped), may_be_torn=False)


def test_a_flipped_bit_in_any_small_file_hides_no_record(pair: NodePair) -> None:
    stage, rng = pair.stages[2], random.Random(1)
    for _ in range(4):
        pair.stages[1].append("t")
    for each in pair.stages.values():
        each.node.replicas.by_name["t"].partitions[0].log.delete_records_before(1)
    pair.run(70_000)
    pair.run(500)
    directory = Path(stage.directory)
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    small = [path for path in files if not path.name.startswith("0")]  # no segment, and nothing beside one
    assert {"meta.properties", LOG_START, HIGH_WATERMARK, WRITTEN_FILE} <= {path.name for path in small}
    for path in small * 3:
        stage.end(clean=False)
        octets = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(octets))
        octets[bit // 8] ^= 1 << bit % 8
        path.write_bytes(octets)
        stage.start()
        log = stage.node.replicas.by_name["t"].partitions[0].log
        assert (log.log_start_offset <= 1, log.log_end_offset) == (True, 5), (path, bit)


def test_a_power_cut_may_tear_the_newest_line(pair: NodePair) -> None:
    restart(pair, {})
    pair.settle()
    stage = pair.stages[2]
    path = Path(stage.directory) / WRITTEN_FILE
    before = path.read_bytes()
    pair.stages[1].append("t", 1)
    for _ in range(4):
        pair.run(500)
    content = path.read_bytes()
    assert len(decoded(content, may_be_torn=False)) == 2
    for size in range(len(before) + 1, len(content) - 1):
        assert len(decoded(content[:size], may_be_torn=True)) == 1
        with pytest.raises(ValueError, match="damaged"):
            decoded(content[:size], may_be_torn=False)


def test_a_partition_that_is_deleted_is_not_missed(pair: NodePair) -> None:
    node = pair.stages[2].node
    partition = node.replicas.by_name["t"].partitions[0]
    node.upkeep.written.forget(partition)
    assert restart(pair, {"t-0": None}) == {0: WHOLE, 1: WHOLE}


def test_with_fsync_durability_the_file_is_synced_with_the_first_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = NodePair(tmp_path, ottla_durability="fsync")
    placed = [CreatableReplicaAssignment(0, [1, 2])]
    pair.ask(1, CreateTopicsRequest([CreatableTopic("t", -1, -1, placed)]))
    synced: list[str] = []
    sync = DiskFile.sync

    def note(self: DiskFile) -> None:
        synced.append(self.path)
        sync(self)

    monkeypatch.setattr(DiskFile, "sync", note)
    for _ in range(2):
        pair.stages[1].append("t")
        for _ in range(4):
            pair.run(500)
    assert [path for path in synced if path.endswith(WRITTEN_FILE)] == [
        f"{pair.stages[node_id].directory}/{WRITTEN_FILE}" for node_id in (1, 2)
    ]


def test_the_list_is_written_again_after_a_failed_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next fsync would succeed although the lines are not on the disk."""
    pair = NodePair(tmp_path, ottla_durability="fsync")
    pair.ask(1, CreateTopicsRequest([CreatableTopic("t", 1, 2)]))
    path = Path(pair.stages[1].directory) / WRITTEN_FILE
    before, sync = path.stat().st_ino, DiskFile.sync
    failed: list[str] = []

    def fail(self: DiskFile) -> None:
        if self.path == str(path) and not failed:
            failed.append(self.path)
            raise OSError(errno.EIO, "Input/output error")
        sync(self)

    monkeypatch.setattr(DiskFile, "sync", fail)
    pair.stages[1].append("t")
    for _ in range(4):
        pair.run(500)
    assert failed
    assert path.stat().st_ino != before
    assert decoded(path.read_bytes(), may_be_torn=False)


def test_a_start_that_ends_before_it_has_stored_the_losses_leaves_them_to_the_next(
    pair: NodePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = pair.stages[2]
    stage.end(clean=False)
    files = [Path(stage.directory) / name for name in (HIGH_WATERMARK, WRITTEN_FILE)]
    for file in files:
        file.unlink(missing_ok=True)

    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError("no room")

    monkeypatch.setattr(Membership, "join", fails)
    with pytest.raises(OSError, match="no room"):
        stage.start()
    assert not [file for file in files if file.exists()]
