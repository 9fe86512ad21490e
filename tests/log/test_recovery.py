"""What is found after a kill, a power cut, and after somebody touched the files."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from ottla.log.answers import Origin
from ottla.log.config import LogConfig
from ottla.log.durability import SNAPSHOT_BATCHES
from ottla.log.log import Log
from ottla.protocol.records import peek
from ottla.protocol.records.batch import LOG_OVERHEAD_BYTES
from ottla.sim.kernel.disk import Disk, PowerCut
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, maintain, marker, open_log, put, raw, small, values

KILLED: dict[str, Any] = {"clean_shutdown": False}
POWER: dict[str, Any] = {"clean_shutdown": False, "same_boot": False}
ACTIVE = f"{DIRECTORY}/00000000000000000000"


def reopen(files: Disk, config: LogConfig | None = None, **how: Any) -> tuple[Log, list[str]]:
    notes: list[str] = []
    files.kill()
    return open_log(files, config, notes=notes.append, **how), notes


def idempotent(number: int, size: int = 20) -> memoryview:
    return batch(b"%d" % number + b"v" * size, producer_id=7, producer_epoch=0, base_sequence=number, at=NOW + number)


def filled(files: Disk, count: int, config: LogConfig | None = None) -> Log:
    log = open_log(files, config)
    for number in range(count):
        put(log, idempotent(number), epoch=number // 10)
    return log


@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
@pytest.mark.parametrize("garbage", [b"", b"\0" * 30, b"\xff" * 200, b"\0" * 300])
def test_a_tail_cut_at_every_byte_keeps_every_whole_batch(how: dict[str, Any], garbage: bytes) -> None:
    whole = disk()
    log = filled(whole, 30)
    octets = raw(log)
    ends: list[int] = []
    position = 0
    while position < len(octets):
        position += peek(octets, position).size_in_bytes
        ends.append(position)
    for cut in range(ends[-4], len(octets) + 1):
        files = whole.clone(random.Random(cut))
        file = files.open(f"{ACTIVE}.log")
        file.truncate(cut)
        if garbage:
            file.write(garbage)
        again, notes = reopen(files, **how)
        # A record without headers ends with a zero, so zeros may complete a batch.
        reached = cut + garbage.startswith(b"\0")
        kept = sum(end <= reached for end in ends)
        assert again.log_end_offset == kept
        assert raw(again) == octets[: ends[kept - 1]]
        if how is KILLED:
            assert bool(notes) == (cut not in ends or bool(garbage))
        assert again.producers.entries[7].last_sequence == kept - 1
        assert again.epochs.entries == [(0, 0), (1, 10), (2, 20)]
        put(again, idempotent(kept), epoch=3)


@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
def test_a_flipped_bit_in_the_tail_cuts_there(how: dict[str, Any]) -> None:
    files = disk()
    log = filled(files, 30)
    octets = bytearray(raw(log))
    octets[-10] ^= 1
    files.open(f"{ACTIVE}.log").truncate(0)
    files.open(f"{ACTIVE}.log").write(octets)
    again, notes = reopen(files, **how)
    assert again.log_end_offset == 29
    assert any("no whole batch" in note for note in notes)


DAMAGES: list[tuple[str, Callable[[Disk, str], None]]] = [
    ("lost", lambda files, path: files.unlink(path)),
    ("empty", lambda files, path: files.open(path).truncate(0)),
    ("cut", lambda files, path: files.open(path).truncate(files.size(path) // 2 + 3)),
    ("zeros behind", lambda files, path: files.open(path).write(bytes(1000))),
    ("nonsense behind", lambda files, path: files.open(path).write(b"\x7f" * 333)),
    (
        "of another segment",
        lambda files, path: _replace(files, path, b"\0\0\0\5\0\0\0\7\0\0\0\x20\0\0\1\0\0\0\0\x70\0\0\2\1"),
    ),
    ("zeros", lambda files, path: _replace(files, path, bytes(120))),
]


def _replace(files: Disk, path: str, octets: bytes) -> None:
    files.open(path).truncate(0)
    files.open(path).write(octets)


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", "both"])
@pytest.mark.parametrize("damage", [row[1] for row in DAMAGES], ids=[row[0] for row in DAMAGES])
@pytest.mark.parametrize("base", [0, 1], ids=["closed", "active"])
def test_damaged_indexes_are_rebuilt(
    how: dict[str, Any], suffix: str, damage: Callable[[Disk, str], None], base: int
) -> None:
    config = small(segment_bytes=6000)
    files = disk()
    log = filled(files, 90, config)
    log.close(NOW)
    assert len(log.bases) == 2
    path = log.segments[base].path
    octets = raw(open_log(files.clone(random.Random(1)), config))
    originals = {kind: files.read_bytes(path + kind) for kind in (".index", ".timeindex")}
    for kind in originals:
        if suffix in (kind, "both"):
            damage(files, path + kind)
    if base == 0 and how is not POWER and damage is DAMAGES[5][1] and suffix != ".index":
        return  # a closed segment's time index that is whole, but another's, is not looked into
    again, _ = reopen(files, config, **how)
    assert raw(again) == octets
    for offset in range(90):
        assert again.read(offset, 1).slice is not None
        assert again.offset_for_timestamp(NOW + offset) == (NOW + offset, offset, offset // 10)
    assert again.max_timestamp() == (NOW + 89, 89, 8)
    again.close(NOW)
    assert files.read_bytes(path + ".index") == originals[".index"]


def test_leftovers_go() -> None:
    files = disk()
    log = filled(files, 40, small())
    log.close(NOW)
    octets = raw(open_log(files.clone(random.Random(1)), small()))
    kept = files.listdir(DIRECTORY)
    for name in (
        "00000000000000000000.log.deleted",
        "00000000000000000000.log.cleaned",
        "00000000000000000000.index.cleaned",
        "00000000000000000003.timeindex.swap",
        "00000000000000000003.index.deleted",
        "leader-epoch-checkpoint.tmp",
        "partition.metadata.tmp",
        "00000000000000000777.index",
        "00000000000000000777.txnindex",
        "00000000000000000099.snapshot",
    ):
        files.open(f"{DIRECTORY}/{name}", create=True).write(b"whatever")
    again, notes = reopen(files, small(), **KILLED)
    assert raw(again) == octets
    assert [name for name in files.listdir(DIRECTORY) if name not in kept] == []
    assert len(notes) >= 10


@pytest.mark.parametrize("how", [KILLED, POWER], ids=["killed", "power cut"])
@pytest.mark.parametrize("torn", [b"", b"0\n", b"0\n1\n", b"\0" * 12, None])
def test_a_torn_epoch_checkpoint_is_read_from_the_batches(how: dict[str, Any], torn: bytes | None) -> None:
    files = disk()
    filled(files, 40, small())
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    if torn is None:
        files.unlink(path)
    else:
        _replace(files, path, torn)
    again, _ = reopen(files, small(), **how)
    assert again.epochs.entries == [(0, 0), (1, 10), (2, 20), (3, 30)]


def test_a_stale_epoch_checkpoint_is_completed_and_cut() -> None:
    files = disk()
    filled(files, 40, small())
    _replace(files, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n1\n0 0\n")
    again, _ = reopen(files, small(), **POWER)
    assert again.epochs.entries == [(0, 0), (1, 10), (2, 20), (3, 30)]
    _replace(files, f"{DIRECTORY}/leader-epoch-checkpoint", b"0\n5\n0 0\n1 10\n2 20\n3 30\n4 4711\n")
    again, _ = reopen(files, small(), **POWER)
    assert again.epochs.entries == [(0, 0), (1, 10), (2, 20), (3, 30)]


@pytest.mark.parametrize("rolled", [False, True])
def test_a_power_cut_that_takes_the_epoch_checkpoint_leaves_the_epoch_of_the_batches(rolled: bool) -> None:
    """It is not synced with an epoch's first batch, which may be on the disk, and its segment closed, without it."""
    files = disk()
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    log = open_log(files)
    put(log, batch(b"a"))
    log.truncate_fully_and_start_at(1, now=NOW)
    log.close(NOW)
    before = files.read_bytes(path)
    again, _ = reopen(files, log_start_offset=1, high_watermark=1, recovery_point=1)
    again.assign_epoch(0)
    put(again, batch(b"b"))
    if rolled:
        again.roll(NOW)
    _replace(files, path, before)  # what the disk may have kept
    for _ in range(2):  # a start whose recovery point passed the batch must find it mended
        after, _ = reopen(files, log_start_offset=1, recovery_point=1, **POWER)
        assert after.epochs.entries == [(0, 1)]
        assert files.read_bytes(path) == b"0\n1\n0 1\n"


@pytest.mark.parametrize("seed", range(8))
def test_a_flush_after_a_kill_covers_the_names_that_the_killed_process_made(seed: int) -> None:
    """The directory, `partition.metadata` and the epochs: the recovery point says that a power cut takes none."""
    files = disk(seed)
    put(open_log(files), batch(b"a"), epoch=3)
    again, _ = reopen(files, **KILLED)
    again.flush()
    assert again.recovery_point == 1
    files.crash()
    after, _ = reopen(files, recovery_point=1, **POWER)
    assert values(after) == [b"a"]
    assert files.exists(f"{DIRECTORY}/partition.metadata")
    assert files.exists(f"{DIRECTORY}/leader-epoch-checkpoint")


def test_epochs_of_a_lost_history_go_by_the_batches_that_took_its_offsets() -> None:
    """A follower was cut back and took other batches; the power cut took the checkpoint that said so."""
    files = disk()
    log = open_log(files)
    for epoch in (0, 0, 3):
        put(log, batch(b"a", b"b"), epoch=epoch)
    log.close(NOW)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    lost = files.read_bytes(path)
    log, _ = reopen(files, recovery_point=6)
    log.truncate_to(4, now=NOW)
    at_4 = batch(b"c", b"d", b"e")
    at_7 = batch(b"f")
    for octets, base, epoch in ((at_4, 4, 0), (at_7, 7, 1)):
        octets[:8], octets[12:16] = base.to_bytes(8, "big"), epoch.to_bytes(4, "big")
        log.append_as_follower(octets, now=NOW)
    assert log.epochs.entries == [(0, 0), (1, 7)]
    _replace(files, path, lost)
    again, _ = reopen(files, recovery_point=4, **POWER)
    assert again.epochs.entries == [(0, 0), (1, 7)]


@pytest.mark.parametrize("damage", [row[1] for row in DAMAGES[:5]], ids=[row[0] for row in DAMAGES[:5]])
def test_damaged_producer_snapshots_fall_back_to_the_log(damage: Callable[[Disk, str], None]) -> None:
    files = disk()
    log = filled(files, 60, small())
    log.close(NOW)
    names = [name for name in files.listdir(DIRECTORY) if name.endswith(".snapshot")]
    assert len(names) > 2
    for broken in (names[-1:], names):
        copy = files.clone(random.Random(1))
        for name in broken:
            damage(copy, f"{DIRECTORY}/{name}")
        again, _ = reopen(copy, small())
        assert again.producers.entries[7].last_sequence == 59
        put(again, idempotent(60), epoch=6)


def test_snapshots_are_taken_as_the_log_grows_and_bound_the_replay() -> None:
    files = disk()
    log = filled(files, SNAPSHOT_BATCHES + 10)
    assert log.durability.snapshots == [SNAPSHOT_BATCHES]
    for number in range(SNAPSHOT_BATCHES + 10, 2 * SNAPSHOT_BATCHES + 5):
        put(log, idempotent(number), epoch=999)
    assert log.durability.snapshots == [2 * SNAPSHOT_BATCHES], "older ones inside a segment go"
    again, _ = reopen(files, **KILLED)
    assert again.producers.entries[7].last_sequence == 2 * SNAPSHOT_BATCHES + 4
    assert len(again.producers.entries[7].batches) == 5


def test_a_log_start_past_the_end_empties_the_log() -> None:
    files = disk()
    filled(files, 10)
    again, notes = reopen(files, log_start_offset=25, high_watermark=25)
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (25, 25, 25)
    assert put(again, batch(b"a")) == 25
    assert any("below its log start" in note for note in notes)


@pytest.mark.parametrize("how", [{}, KILLED, POWER], ids=["clean", "killed", "power cut"])
@pytest.mark.parametrize("damaged", ["log_start_offset", "high_watermark"])
def test_one_checkpoint_with_a_number_that_is_too_large_costs_no_record(how: dict[str, Any], damaged: str) -> None:
    files = disk()
    filled(files, 10).close(NOW)
    sound = {"log_start_offset": 0, "high_watermark": 10, "recovery_point": 10}
    again, notes = reopen(files, **{**sound, damaged: 1 << 60}, **how)
    assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (0, 10, 10)
    assert len(values(again)) == 10
    assert any("log starts is damaged" in note for note in notes) == (damaged == "log_start_offset")
    assert put(again, batch(b"a")) == 10


def test_high_watermark_and_log_start_are_clamped() -> None:
    files = disk()
    filled(files, 10)
    files.kill()
    for asked, found in ((0, 0), (4, 4), (99, 10)):
        log = Log.open(
            files, DIRECTORY, LogConfig(), topic_id=bytes(16), now=NOW, clean_shutdown=True, same_boot=True,
            recovery_point=0, high_watermark=asked,
        )  # fmt: skip
        assert log.high_watermark == found
        files.kill()


def test_aborted_transactions_are_found_again() -> None:
    files = disk()
    log = open_log(files)
    for number in range(3):
        put(log, batch(b"a", producer_id=7, producer_epoch=0, base_sequence=number, transactional=True))
        put(log, marker(7, commit=False), origin=Origin.COORDINATOR)
    expected = log.segments[0].txn_index.aborted()
    for damage in ("lost", "torn", "zeros", "half an entry"):
        copy = files.clone(random.Random(1))
        path = f"{ACTIVE}.txnindex"
        if damage == "lost":
            copy.unlink(path)
        elif damage == "torn":
            copy.open(path).truncate(50)
        elif damage == "half an entry":  # the sector that it ends in was written, the one that it begins in was not
            octets = copy.open(path).read(0, 102)
            copy.open(path).truncate(34)
            copy.open(path).write(bytes(18) + octets[34 + 18 :])
        else:
            copy.open(path).truncate(34)
            copy.open(path).write(bytes(68))
        again, _ = reopen(copy, **POWER)
        assert again.segments[0].txn_index.aborted() == expected
        assert again.last_stable_offset == 6


@pytest.mark.parametrize("damage", ["zeros", "twice"])
def test_aborted_transactions_before_a_snapshot_are_found_again(damage: str) -> None:
    """What stands behind an entry that cannot be is not believed either: the replay begins before it."""
    files = disk()
    log = open_log(files, small())
    for number in range(3):
        put(log, batch(b"a", producer_id=7, producer_epoch=0, base_sequence=number, transactional=True))
        put(log, marker(7, commit=False), origin=Origin.COORDINATOR)
    while len(log.segments) < 3:
        put(log, batch(b"v" * 60))
    expected = log.segments[0].txn_index.aborted()
    log.close(NOW)
    index = files.open(f"{ACTIVE}.txnindex")
    octets = index.read(0, 102)
    index.truncate(0)
    index.write(bytes(34) + octets if damage == "zeros" else octets[:34] + octets)
    again, notes = reopen(files, small(), recovery_point=log.log_end_offset, **KILLED)
    assert again.segments[0].txn_index.aborted() == expected
    assert any("transaction index" in note for note in notes)


def workload(files: Disk, acknowledged: list[bytes], synced: list[int]) -> None:
    """Appends, rolls, flushes, retention and a truncation; what is promised is noted as it is promised."""
    config = small(segment_bytes=500, retention_bytes=1500, file_delete_delay_ms=5)
    log = open_log(files, config)
    for number in range(40):
        put(log, idempotent(number, 30), now=NOW + number, epoch=number // 15 if number <= 25 else 8)
        acknowledged.append(raw(log, start=number)[LOG_OVERHEAD_BYTES:])
        if number % 4 == 3:
            log.flush()
            synced.append(log.log_end_offset)
        if number % 9 == 8:
            maintain(log, NOW + number)
        if number == 25:
            del acknowledged[22:]
            synced[:] = [min(offset, 22) for offset in synced]
            log.truncate_to(22, now=NOW)
            for again in range(22, 26):
                put(log, idempotent(again, 31), now=NOW + number, epoch=7)
                acknowledged.append(raw(log, start=again)[LOG_OVERHEAD_BYTES:])
    log.close(NOW)
    synced.append(log.log_end_offset)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
def test_a_crash_at_every_step_of_a_workload(power: bool) -> None:
    fuse = 1
    while True:
        files = disk(fuse)
        files.fuse = fuse
        acknowledged: list[bytes] = []
        synced: list[int] = [0]
        try:
            workload(files, acknowledged, synced)
        except PowerCut:
            pass
        else:
            assert fuse > 100
            return
        if power:
            files.crash()
        else:
            files.kill()
        promised = synced[-1]
        log = open_log(
            files, small(segment_bytes=500), clean_shutdown=False, same_boot=not power, recovery_point=promised
        )
        assert log.log_end_offset >= (promised if power else len(acknowledged)), fuse
        octets = memoryview(raw(log))
        position, offset = 0, log.log_start_offset
        while position < len(octets):
            header = peek(octets, position)
            end = position + header.size_in_bytes
            assert header.base_offset == offset, fuse
            if offset < min(promised if power else len(acknowledged), len(acknowledged)):
                assert bytes(octets[position + LOG_OVERHEAD_BYTES : end]) == acknowledged[offset], (fuse, offset)
            position, offset = end, header.next_offset
        assert offset == log.log_end_offset
        if log.log_end_offset:
            put(log, idempotent(log.log_end_offset, 32), epoch=99)
        else:
            put(log, batch(b"first"), epoch=99)
        assert values(log)
        fuse += 1
