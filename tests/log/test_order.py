"""A flipped bit in a batch's base offset or leader epoch, which no checksum covers, hides no record from any reader."""

from __future__ import annotations

import contextlib
import random
from functools import cache

import pytest

from ottla.log.answers import DamagedLogError, DivergingOffsetError, Isolation
from ottla.log.compaction.compaction import Compaction
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.record import decode_records
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import NOW, batch, disk, open_log, put, small, values

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300)
COUNT = 70


@cache
def whole() -> tuple[Disk, tuple[str, ...], tuple[int, ...]]:
    """A log with a batch at each offset, whose record says it; its segments' paths and their base offsets."""
    files = disk()
    log = open_log(files, CONFIG)
    for number in range(COUNT):
        put(log, batch(b"%d" % number), epoch=1 + number // 30)
    paths, bases = tuple(f"{segment.path}.log" for segment in log.segments), tuple(log.bases)
    log.close(NOW)
    assert len(bases) > 2
    return files, paths, bases


def with_flipped_bit(segment: int, number: int, bit: int) -> Log:
    """The log, opened after this bit of the eight bytes at the beginning of a batch was flipped, and of the four at
    twelve beyond these."""
    files = whole()[0].clone(random.Random(1))
    file = files._file(whole()[1][segment])
    places = [position for _, position in iter_batches(bytes(file.content))]
    at = 7 - bit // 8 if bit < 64 else 12 + 3 - (bit - 64) // 8
    file.content[places[number] + at] ^= 1 << (bit % 8)
    file.kept[:] = file.content
    return open_log(files, CONFIG)


def consumed(log: Log, position: int, max_bytes: int, isolation: Isolation, count: int = COUNT) -> list[int]:
    """What a consumer gets from an offset on: batches that end below its position it skips, as clients do."""
    got: list[int] = []
    while position < log.log_end_offset and len(got) < count:
        result = log.read(position, max_bytes, isolation)
        if result.slice is None:
            assert result.next_offset > position
            position = result.next_offset
            continue
        octets = memoryview(result.slice.read())
        before = position
        for header, at in iter_batches(octets):
            if header.next_offset > position:
                got += [int(record.value or b"") for record in decode_records(octets, at)]
                position = header.next_offset
        assert position > before
    return got


@pytest.mark.parametrize("isolation", [Isolation.HIGH_WATERMARK, Isolation.LOG_END])
@pytest.mark.parametrize("number", [0, 1, 7, -1])
@pytest.mark.parametrize("segment", [0, 1])
def test_a_flipped_bit_of_a_base_offset_hides_no_record(segment: int, number: int, isolation: Isolation) -> None:
    for bit in (*range(17), 20, 31, 40, 62, 63):
        for max_bytes in (1, 300, 1 << 20):
            log = with_flipped_bit(segment, number, bit)
            with pytest.raises(DamagedLogError):
                consumed(log, 0, max_bytes, isolation)
        log = with_flipped_bit(segment, number, bit)
        for start in range(0, COUNT, 3):
            try:
                got = consumed(log, start, 1, isolation, count=1)
            except DamagedLogError:
                continue
            assert got == [start], (bit, start)


def test_a_flipped_bit_of_an_epoch_reaches_no_follower_and_stops_no_consumer() -> None:
    for bit in range(64, 96):
        log = with_flipped_bit(1, 5, bit)
        with pytest.raises(DamagedLogError, match="leader epoch"):
            consumed(log, 0, 1 << 20, Isolation.LOG_END)
        log = with_flipped_bit(1, 5, bit)
        assert consumed(log, 0, 1 << 20, Isolation.HIGH_WATERMARK) == list(range(COUNT))


def test_what_was_found_in_order_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.log import reading

    log = open_log(whole()[0].clone(random.Random(1)), CONFIG)
    walks: list[int] = []
    really = reading.verify_order
    monkeypatch.setattr(reading, "verify_order", lambda *how: (walks.append(how[1]), really(*how))[1])
    for _ in range(3):
        assert consumed(log, 0, 500, Isolation.HIGH_WATERMARK) == list(range(COUNT))
        before = len(walks)
    assert before < 20
    put(log, batch(b"70"))
    consumed(log, COUNT, 500, Isolation.HIGH_WATERMARK)
    assert len(walks) == before


def test_many_small_batches_are_verified_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.log import reading

    monkeypatch.setattr(reading, "BATCHES_VERIFIED_MAX", 3)
    log = open_log(whole()[0].clone(random.Random(1)), CONFIG)
    result = log.read(0, 1 << 20)
    assert result.next_offset == 3
    assert consumed(log, 0, 1 << 20, Isolation.HIGH_WATERMARK) == list(range(COUNT))


def test_a_compacted_log_is_read_through() -> None:
    files = disk()
    config = small(cleanup_policy=frozenset({"compact"}), index_interval_bytes=300)
    log = open_log(files, config)
    for number in range(90):
        put(log, batch(b"%d" % number, key=b"%d" % (number % 7)), epoch=number // 25)
    for file in Compaction(log, NOW):
        if file is not None:
            file.sync()
    expected = consumed(log, 0, 1 << 20, Isolation.LOG_END)
    log.close(NOW)
    assert len(expected) < 60
    for start in range(90):
        again = open_log(files.clone(random.Random(1)), config)
        for max_bytes in (1, 400):
            got = consumed(again, start, max_bytes, Isolation.LOG_END)
            assert got == [number for number in expected if number >= start]


@pytest.mark.parametrize("number", [0, 1, 7])
def test_a_follower_takes_nothing_that_the_next_batch_contradicts(number: int) -> None:
    files, paths, _ = whole()
    sound = files.read_bytes(paths[0])
    places = [position for _, position in iter_batches(sound)]
    for bit in range(64):
        octets = bytearray(sound)
        octets[places[number] + 7 - bit // 8] ^= 1 << (bit % 8)
        log = open_log(disk(), LogConfig())
        with contextlib.suppress(DamagedLogError, DivergingOffsetError):
            log.append_as_follower(memoryview(octets), now=NOW)
            log.append_as_follower(memoryview(octets)[places[log.log_end_offset] :], now=NOW)
        assert log.log_end_offset <= number
        assert [int(value or b"") for value in values(log)] == list(range(log.log_end_offset))


def test_a_follower_says_which_batch_does_not_match_its_checksum() -> None:
    files, paths, _ = whole()
    octets = bytearray(files.read_bytes(paths[0]))
    places = [position for _, position in iter_batches(octets)]
    octets[places[3] + 63] ^= 1
    log = open_log(disk(), LogConfig())
    assert log.append_as_follower(memoryview(octets), now=NOW) == (0, 2, -1, False)
    with pytest.raises(DamagedLogError, match="offset 3 does not match its checksum"):
        log.append_as_follower(memoryview(octets)[places[3] :], now=NOW)
