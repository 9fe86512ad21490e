"""Compaction meets what it can't read: that stays as it is, takes nothing away, and the rest is compacted."""

from collections.abc import Callable

import pytest

from ottla.log.answers import Origin
from ottla.log.compaction.compaction import Compaction
from ottla.log.log import Log
from ottla.protocol.records.batch import HEADER_BYTES, iter_batches, set_crc
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, keyed, open_log, put, raw, small

CONFIG = small()._replace(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
LATER = NOW + 10**9


def malformed(octets: memoryview) -> memoryview:
    """Its last record claims a header that is not there; the checksum is right."""
    octets[-1] = 2
    set_crc(octets)
    return octets


def compact(log: Log, now: int = NOW) -> list[str]:
    """Compact to the end; what was noted."""
    notes: list[str] = []
    for file in Compaction(log, now, notes=notes.append):
        if file is not None:
            file.sync()
    return notes


UNREADABLE: dict[str, Callable[[], memoryview]] = {
    "a malformed tombstone": lambda: malformed(keyed((b"a", None))),
    "a tombstone behind a malformed record": lambda: malformed(keyed((b"a", None), (b"b", b"2"))),
    "records cut short": lambda: malformed(batch(b"x", key=b"a")),
}


@pytest.mark.parametrize("made", UNREADABLE.values(), ids=UNREADABLE)
def test_a_batch_that_can_not_be_read_does_not_stop_compaction(made: Callable[[], memoryview]) -> None:
    files = disk()
    log = open_log(files, CONFIG)
    for i in range(3):
        put(log, keyed((b"k", b"%d" % i)))
    bad = bytes(made())
    put(log, memoryview(bytearray(bad)), origin=Origin.REPLICATION)
    last = put(log, keyed((b"k", b"last")))
    log.roll(NOW)
    put(log, keyed((b"other", b"1")))
    for now in (NOW, LATER, 2 * LATER):
        compact(log, now)
    assert log.cleanable_ratio(NOW) == 0.0, "it got to the end"
    kept = [header.base_offset for header, _ in iter_batches(raw(log)) if header.record_count]
    assert last in kept
    assert not {0, 1, 2} & set(kept)
    log.close(NOW)
    open_log(files, CONFIG)


def test_what_can_not_be_read_takes_no_older_record_away() -> None:
    log = open_log(disk(), CONFIG)
    put(log, keyed((b"a", b"1")))
    put(log, malformed(keyed((b"a", None))), origin=Origin.REPLICATION)
    log.roll(NOW)
    put(log, keyed((b"b", b"1")))
    notes = compact(log)
    assert len(notes) == 1
    assert "the batch at offset 1 stays as it is" in notes[0]
    assert [header.record_count for header, _ in iter_batches(raw(log))] == [1, 1, 1]


def test_tombstones_may_be_kept_for_ever() -> None:
    log = open_log(disk(), CONFIG._replace(delete_retention_ms=2**63 - 1))
    put(log, keyed((b"a", None)))
    log.roll(NOW)
    put(log, keyed((b"b", b"1")))
    assert compact(log) == []
    assert log.cleanable_ratio(NOW) == 0.0


def three_segments(files: Disk) -> Log:
    """`k` and a key of its own in each segment."""
    log = open_log(files, CONFIG._replace(segment_bytes=4096))
    for i in range(3):
        for _ in range(8):
            put(log, keyed((b"k", b"x" * 300)))
        put(log, keyed((b"only-%d" % i, b"1")))
        log.roll(NOW)
    put(log, keyed((b"z", b"1")))
    return log


@pytest.mark.parametrize("at", [8, 16, 0, HEADER_BYTES + 20], ids=["length", "magic", "offset", "record"])
def test_damage_is_neither_dropped_nor_given_a_new_checksum(at: int) -> None:
    """A flipped bit, and what stood behind it went with the old segment."""
    files = disk()
    log = three_segments(files)
    base = log.bases[1]
    path = f"{DIRECTORY}/{base:020d}.log"
    content = files._file(path).content
    content[[position for _, position in iter_batches(bytes(content))][4] + at] ^= 64
    notes = compact(log)
    assert any(f"{base:020d}.log" in note for note in notes)
    survived = files._file(path).content if files.exists(path) else b""
    if at < HEADER_BYTES:
        assert bytes(survived) == bytes(content), "its segment stays as it is"
    else:
        assert b"only-1" in bytes(raw(log))
        header = next(header for header, _ in iter_batches(raw(log)) if header.base_offset == base + 4)
        assert header.record_count == 1
        assert not _sound(raw(log), base + 4)
    assert log.cleanable_ratio(NOW) == 0.0, "compaction got to the end"
    others = files._file(f"{DIRECTORY}/{0:020d}.log").content
    assert len(others) < 1_000, "the segment before is compacted"


def _sound(octets: bytes, base_offset: int) -> bool:
    from ottla.protocol.records.batch import has_valid_crc

    return next(
        has_valid_crc(octets, at, header) for header, at in iter_batches(octets) if header.base_offset == base_offset
    )
