"""A log notices files that another process has removed, replaced or changed beneath it, and repairs what it can."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.log import beneath
from ottla.log.answers import Damage, Origin
from ottla.log.beneath import comparing
from ottla.log.checkpoints import LEADER_EPOCH_FILE, PARTITION_METADATA_FILE
from ottla.log.config import LogConfig
from ottla.log.files import DiskFile, DiskFiles
from ottla.log.index.comparing import OffsetEntries
from ottla.log.index.offsets import OFFSET_ENTRY, IndexCache, OffsetIndex
from ottla.log.log import Log
from ottla.log.scrubbing import scrubbing
from ottla.log.segment import RawHeader
from ottla.protocol.records.batch import iter_batches
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, marker, open_log, put, raw

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)
Harm = Callable[[Disk, str], None]


def filled(config: LogConfig = CONFIG) -> tuple[Disk, Log]:
    files = disk()
    log = open_log(files, config)
    for number in range(70):
        put(log, batch(b"%d" % number, at=NOW + number), epoch=1 + number // 30)
    return files, log


def remove(files: Disk, path: str) -> None:
    files.put(path, None)


def replace(files: Disk, path: str) -> None:
    content = files.content(path)
    files.put(path, content[: len(content) // 2])


def flip(files: Disk, path: str) -> None:
    content = bytearray(files.content(path))
    content[-3] ^= 4
    files.overwrite(path, bytes(content))


def cut(files: Disk, path: str) -> None:
    files.overwrite(path, files.content(path)[:12])


def empty(files: Disk, path: str) -> None:
    files.overwrite(path, b"")


def scrubbed(log: Log) -> tuple[list[Damage], list[str]]:
    """The damage that a pass finds, and the sentences about what it has repaired."""
    notes: list[str] = []
    steps = [*comparing(log, notes.append, NOW), *scrubbing(log, notes.append)]
    log.check()
    return [found for found in steps if isinstance(found, Damage)], notes


def as_a_start_finds_it(files: Disk, config: LogConfig = CONFIG) -> Log:
    return open_log(files.clone(random.Random(1)), config, clean_shutdown=False)


def test_a_log_whose_files_are_in_place_is_left_alone() -> None:
    files, log = filled()
    before = files.operations
    assert scrubbed(log) == ([], [])
    assert files.operations == before


@pytest.mark.parametrize("at", [0, 2, -1])
def test_a_segment_that_was_removed_is_written_again_from_the_open_file(at: int) -> None:
    files, log = filled()
    whole, path = raw(log), log.segments[at].file.path
    files.settle_everything()
    remove(files, path)
    damage, (note,) = scrubbed(log)
    assert not damage
    assert note.startswith(f"{path}: another process has removed this file")
    assert raw(as_a_start_finds_it(files)) == raw(log) == whole
    put(log, batch(b"more", at=NOW + 100), epoch=3)
    assert scrubbed(log) == ([], [])
    assert raw(as_a_start_finds_it(files)) == raw(log) != whole


def test_a_power_cut_leaves_a_file_that_was_written_again() -> None:
    files, log = filled()
    whole = raw(log)
    files.settle_everything()
    remove(files, log.segments[1].file.path)
    scrubbed(log)
    files.crash()
    assert raw(open_log(files, CONFIG, clean_shutdown=False)) == whole


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_segment_that_is_cut_while_it_is_written_again_is_not_mixed_up(step: int) -> None:
    files, log = filled()
    files.settle_everything()
    assert log.active is not None
    remove(files, log.active.file.path)
    slices, first = comparing(log, lambda _: None, NOW), log.active.base_offset
    for _ in range(step):
        next(slices, None)
    log.truncate_to(first + 1, now=NOW)
    put(log, batch(b"other", at=NOW + 100), epoch=3)
    list(slices)
    scrubbed(log)
    assert raw(as_a_start_finds_it(files)) == raw(log)


@pytest.mark.parametrize("room", [0, 100])
def test_a_full_disk_leaves_a_removed_segment_to_another_replica(room: int) -> None:
    files, log = filled()
    whole, segment = raw(log), log.segments[1]
    files.settle_everything()
    remove(files, segment.file.path)
    files.capacity = files.used + room
    (damage,), _ = scrubbed(log)
    assert (damage.path, damage.first) == (segment.file.path, segment.base_offset)
    assert raw(log) == whole


@pytest.mark.parametrize("at", [0, 2, -1])
def test_a_segment_that_was_replaced_is_damaged_and_can_be_copied_again(at: int) -> None:
    files, log = filled()
    whole = raw(log)
    segment = log.segments[at]
    files.settle_everything()
    replace(files, segment.file.path)
    (damage,), notes = scrubbed(log)
    assert (damage.path, damage.first) == (segment.file.path, segment.base_offset)
    assert not notes
    assert raw(log) == whole, "until it is repaired, readers get what is in the open file"
    log.truncate_to(damage.first, now=NOW)
    for number in range(log.log_end_offset, 70):
        put(log, batch(b"%d" % number, at=NOW + number), epoch=1 + number // 30)
    assert scrubbed(log) == ([], [])
    assert raw(as_a_start_finds_it(files)) == raw(log) == whole


@pytest.mark.parametrize("at", [1, -1])
def test_a_segment_that_was_removed_is_written_again_on_the_real_file_system(at: int, tmp_path: Path) -> None:
    directory = f"{tmp_path}/t-0"
    log = open_log(DiskFiles(), CONFIG, directory)
    for number in range(70):
        put(log, batch(b"%d" % number))
    whole, path = raw(log), Path(log.segments[at].file.path)
    content = path.read_bytes()
    path.unlink()
    damage, (note,) = scrubbed(log)
    assert not damage
    assert str(path) in note
    assert path.read_bytes() == content
    put(log, batch(b"more"))
    assert raw(open_log(DiskFiles(), CONFIG, directory, clean_shutdown=False)) == raw(log) != whole
    assert not list(Path(directory).glob("*.tmp"))


def test_a_file_is_not_put_back_over_another_one_nor_without_its_descriptor(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=1)
    path = tmp_path / "a"
    file = files.open(str(path), create=True)
    file.write(b"hello")
    path.unlink()
    path.write_bytes(b"other")
    with pytest.raises(FileExistsError):
        list(file.put_back())
    assert (path.read_bytes(), file.read(0, 5)) == (b"other", b"hello")
    path.unlink()
    assert sum(file.put_back()) == 0
    assert (path.read_bytes(), file.is_in_place()) == (b"hello", True)
    path.unlink()
    file.let_go()
    with pytest.raises(FileNotFoundError):
        list(file.put_back())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("harm", ["closed", "replaced"])
@pytest.mark.parametrize("at", [1, -1])
def test_a_segment_that_is_gone_is_noticed_on_the_real_file_system(at: int, harm: str, tmp_path: Path) -> None:
    directory = f"{tmp_path}/t-0"
    log = open_log(DiskFiles(), CONFIG, directory)
    for number in range(70):
        put(log, batch(b"%d" % number))
    path, file = Path(log.segments[at].file.path), log.segments[at].file
    if harm == "closed":
        assert isinstance(file, DiskFile)
        file.let_go()
        path.unlink()
    else:
        Path(f"{path}.copy").write_bytes(path.read_bytes())
        os.replace(f"{path}.copy", path)
    (damage,) = [found for found in comparing(log, lambda _: None, NOW) if isinstance(found, Damage)]
    assert (damage.path, damage.first) == (str(path), log.bases[at])
    log.truncate_to(damage.first, now=NOW)
    for number in range(log.log_end_offset, 70):
        put(log, batch(b"%d" % number))
    assert scrubbed(log) == ([], [])
    assert raw(open_log(DiskFiles(), CONFIG, directory, clean_shutdown=False)) == raw(log)


def test_a_file_that_was_replaced_while_its_descriptor_was_closed_is_not_read(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=1)
    file = files.open(f"{tmp_path}/a", create=True)
    file.write(b"hello")
    files.open(f"{tmp_path}/b", create=True)
    assert file.is_in_place()
    (tmp_path / "c").write_bytes(b"older")
    os.replace(tmp_path / "c", tmp_path / "a")
    assert not file.is_in_place()
    with pytest.raises(OSError, match="another process has replaced this file"):
        file.read(0, 5)
    assert files.open(f"{tmp_path}/a").read(0, 5) == b"older"


def test_an_empty_newest_segment_that_was_removed_is_created_again() -> None:
    files, log = filled()
    log.roll(NOW)
    assert log.active is not None
    files.put(log.active.file.path, None)
    damage, (note,) = scrubbed(log)
    assert not damage
    assert "created again" in note
    put(log, batch(b"more", at=NOW + 100), epoch=3)
    assert raw(as_a_start_finds_it(files)) == raw(log)


def test_a_segment_that_the_log_does_not_have_is_removed() -> None:
    files, log = filled()
    log.truncate_to(log.bases[-1] + 1, now=NOW)
    stranger = f"{DIRECTORY}/{log.bases[-1] + 2:020d}"
    for kind in (".log", ".index"):
        files.put(stranger + kind, files.content(f"{log.segments[0].path}{kind}"))
    damage, (note,) = scrubbed(log)
    assert not damage
    assert note.endswith("which another process has put there.")
    assert all(path.endswith(".deleted") for path in files.files() if path.startswith(stranger))
    assert raw(as_a_start_finds_it(files)) == raw(log)


def test_a_new_segment_is_empty_whatever_file_has_its_name() -> None:
    files, log = filled()
    files.put(f"{DIRECTORY}/{log.log_end_offset:020d}.log", files.content(log.segments[0].file.path))
    log.roll(NOW)
    put(log, batch(b"more", at=NOW + 100), epoch=3)
    assert scrubbed(log) == ([], [])
    assert raw(as_a_start_finds_it(files)) == raw(log)


def is_written_again(files: Disk, log: Log, path: str, harm: Harm) -> None:
    before = files.content(path)
    files.settle_everything()
    harm(files, path)
    damage, (note,) = scrubbed(log)
    assert not damage
    assert note.startswith(f"{path}: written again")
    assert files.content(path) == before


@pytest.mark.parametrize("harm", [remove, replace, flip])
@pytest.mark.parametrize("name", [LEADER_EPOCH_FILE, PARTITION_METADATA_FILE])
def test_a_small_file_is_written_again(name: str, harm: Harm) -> None:
    files, log = filled()
    is_written_again(files, log, f"{DIRECTORY}/{name}", harm)


# ---- indexes -------------------------------------------------------------------------------------------------------


def assert_a_clean_stop_leaves_it_sound(files: Disk, log: Log) -> None:
    whole, notes = raw(log), list[str]()
    log.close(NOW)
    assert (raw(open_log(files, log.config, notes=notes.append)), notes) == (whole, [])


@pytest.mark.parametrize("harm", [remove, replace, flip, cut, empty])
@pytest.mark.parametrize("at", [1, -1])
@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_an_index_is_rebuilt_in_place(kind: str, at: int, harm: Harm) -> None:
    files, log = filled(LogConfig(segment_bytes=3000, index_interval_bytes=300))
    segment = log.segments[at]
    segment.flush_indexes()
    files.settle_everything()
    path = f"{segment.path}{kind}"
    before = files.content(path)
    assert len(before) > 24
    harm(files, path)
    damage, (note,) = scrubbed(log)
    assert not damage
    assert note.startswith(f"{path}: ")
    assert note.endswith("Its indexes were rebuilt.")
    segment.flush_indexes()
    assert files.content(path) == before
    assert scrubbed(log) == ([], [])
    put(log, batch(b"more", at=NOW + 100), epoch=3)
    assert_a_clean_stop_leaves_it_sound(files, log)


def test_no_flipped_bit_of_an_offset_index_hides_a_record() -> None:
    """A flipped entry may still be right: it names a later offset behind its position."""
    files, log = filled()
    path = f"{log.segments[1].path}.index"
    before = files.content(path)
    batches = [
        (header.base_offset, position) for header, position in iter_batches(files.content(log.segments[1].file.path))
    ]
    files.settle_everything()
    rebuilt = 0
    for bit in range(8 * len(before)):
        content = bytearray(before)
        content[bit // 8] ^= 1 << bit % 8
        files.overwrite(path, bytes(content))
        damage, notes = scrubbed(log)
        assert not damage, bit
        rebuilt += len(notes)
        index = OffsetIndex(files, path, log.bases[1], IndexCache(), active=False)
        assert all(index.lookup(offset) <= position for offset, position in batches), bit
        files.settle_everything()
    assert rebuilt > 7 * len(before)


def test_the_index_of_aborted_transactions_is_written_again() -> None:
    files = disk()
    log = open_log(files, CONFIG)
    for number in range(20):
        put(log, batch(b"x", producer_id=7, producer_epoch=0, base_sequence=number, transactional=True))
        put(log, marker(7, commit=False), origin=Origin.COORDINATOR)
    segment = log.segments[0]
    path = f"{segment.path}.txnindex"
    before, aborted = files.content(path), list(segment.txn_index.aborted())
    assert aborted
    for harm in (remove, replace, flip, empty):
        is_written_again(files, log, path, harm)
    files.put(f"{log.segments[-1].path}.txnindex", before)
    assert scrubbed(log)[1]
    assert as_a_start_finds_it(files).segments[0].txn_index.aborted() == aborted


def test_an_empty_index_of_aborted_transactions_may_go() -> None:
    files = disk()
    log = open_log(files, CONFIG)
    put(log, batch(b"w"))
    put(log, batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True))
    put(log, marker(7, commit=False), origin=Origin.COORDINATOR)
    log.truncate_to(1, now=NOW)
    path = f"{log.segments[0].path}.txnindex"
    assert files.content(path) == b""
    remove(files, path)
    assert scrubbed(log)[0] == []
    assert scrubbed(log) == ([], [])


@pytest.mark.parametrize("event", ["append", "roll", "cut"])
def test_the_log_may_change_while_its_index_is_rebuilt(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath, "REBUILD_BATCHES", 2)
    files, log = filled(LogConfig(index_interval_bytes=300))
    segment = log.segments[0]
    segment.flush_indexes()
    files.settle_everything()
    remove(files, f"{segment.path}.index")
    notes: list[str] = []
    steps = scrubbing(log, notes.append)
    while not files.exists(f"{segment.path}.index.tmp") and segment.offset_index.is_in_place:
        next(steps)
    for _ in range(3):
        next(steps)
    changes: dict[str, Callable[[], object]] = {
        "append": lambda: [put(log, batch(b"more", at=NOW + 100), epoch=3) for _ in range(10)],
        "roll": lambda: log.roll(NOW),
        "cut": lambda: log.truncate_to(40, now=NOW),
    }
    changes[event]()
    assert not [found for found in steps if isinstance(found, Damage)]
    assert bool(notes) == (event != "cut")
    if event == "cut":
        assert scrubbed(log)[1]
    segment.flush_indexes()
    assert scrubbed(log) == ([], [])
    assert_a_clean_stop_leaves_it_sound(files, log)


# ---- entries and batches -------------------------------------------------------------------------------------------


def header(base: int, last: int) -> RawHeader:
    return (base, 100, 0, 2, 0, 0, last - base, 0, 0, -1, -1, -1, last - base + 1)


def compared(entries: list[tuple[int, int]], batches: list[tuple[int, int]]) -> tuple[bool, tuple[int, int] | None]:
    """Whether entries (offset, position) match batches (base, last) of 100 bytes each, and the doubtful batch."""
    offsets, expected = OffsetEntries(b"".join(OFFSET_ENTRY.pack(*entry) for entry in entries), 0), 0
    for at, (base, last) in enumerate(batches):
        if not offsets.batch(100 * at, header(base, last), expected):
            return False, offsets.doubtful
        expected = last + 1
    return offsets.is_through, offsets.doubtful


@pytest.mark.parametrize(
    ("entries", "batches", "agrees", "doubtful"),
    [
        ([(3, 100)], [(0, 1), (2, 3), (4, 5)], True, None),
        ([(5, 100)], [(0, 1), (2, 3), (4, 5)], True, None),  # Kafka's: the last of the batches appended together
        ([(2, 100)], [(0, 1), (2, 3), (4, 5)], False, None),
        ([(3, 101)], [(0, 1), (2, 3), (4, 5)], False, None),
        ([(3, -100)], [(0, 1), (2, 3), (4, 5)], False, None),
        ([(9, 200)], [(0, 1), (2, 3), (4, 5)], False, None),
        ([(3, 100), (5, 200)], [(0, 1), (2, 3), (4, 5)], True, None),
        ([(30, 100)], [(0, 1), (20, 21), (40, 41)], False, (100, 2)),  # a gap on both sides: which one is wrong?
        ([(11, 100)], [(0, 1), (20, 21), (40, 41)], False, (100, 2)),
        ([(1, 100)], [(0, 1), (20, 21), (40, 41)], False, None),
        ([(41, 100)], [(0, 1), (20, 21), (40, 41)], True, None),
        ([(50, 100)], [(0, 1), (20, 21), (40, 41)], False, None),
    ],
)
def test_entries_are_compared_with_batches(
    entries: list[tuple[int, int]],
    batches: list[tuple[int, int]],
    agrees: bool,
    doubtful: tuple[int, int] | None,
) -> None:
    assert compared(entries, batches) == (agrees, doubtful)


def test_a_batch_behind_a_gap_whose_offset_the_index_contradicts_is_damaged() -> None:
    """No checksum covers the offset, and no neighbour contradicts it: it has to be copied again."""
    files = disk()
    log = open_log(files, LogConfig(index_interval_bytes=0))
    for number in range(4):
        base = 100 * number
        octets = batch(b"%d" % number)
        octets[:8] = base.to_bytes(8, "big")
        log.append_as_follower(octets, now=NOW)
    segment = log.segments[0]
    segment.flush_indexes()
    position = [position for _, position in iter_batches(files.content(segment.file.path))][2]
    files._file(segment.file.path).content[position + 7] ^= 16
    (damage,), _ = scrubbed(log)
    assert (damage.position, damage.first) == (position, 101)


def slices(log: Log) -> Iterator[int | Damage]:
    return comparing(log, lambda _: None, NOW)


def test_the_names_of_many_segments_are_compared_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath, "NAMES_PER_SLICE", 2)
    _, log = filled()
    assert len(list(slices(log))) == (len(log.segments) - 1) // 2


# ---- places that can't be read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("place", ["first", "last", "all"])
def test_a_log_is_cut_although_the_segment_can_not_be_read(at: int, place: str) -> None:
    """It then has no record of that segment left, which another replica has, and accepts records again."""
    files, log = filled()
    segment = log.segments[at]
    size = files.size(segment.file.path)
    last = log.bases[at + 1] - 1 if place == "first" else log.bases[at] + 5
    bad = {"first": range(1), "last": range(size - 1, size), "all": range(size)}[place]
    files.make_unreadable(segment.file.path, bad)
    log.segments.cursors.clear()
    log.truncate_to(last, now=NOW)
    assert log.failed is None
    assert log.bases[at] <= log.log_end_offset <= last
    log.check()
    for number in range(log.log_end_offset, 70):
        put(log, batch(b"%d" % number, at=NOW + number), epoch=1 + number // 30)
    assert log.log_end_offset == 70


def test_a_failed_fsync_cuts_no_more_than_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that nobody else has is closed instead."""
    files, log = filled()
    monkeypatch.setattr(log.durability.syncing, "recovery_point", log.bases[-1] + 1)
    log.pending_sync()
    log.sync_failed(OSError("no"))
    files.make_unreadable(log.segments[-1].file.path, range(1_000))
    monkeypatch.setattr(log.offsets, "high_watermark", log.recovery_point)
    assert not log.reopen(NOW)
    assert log.failed is not None
    assert files.size(log.segments[-1].file.path) > 0
