"""Appending as the leader: offsets, stamps, and every refusal with its code."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.log.answers import AppendRefusedError, Origin
from ottla.log.config import HOUR_MS, LogConfig
from ottla.log.log import Log
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, build_batch, decode_records, has_valid_crc, peek, set_crc
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, keyed, marker, open_log, put, raw, values


@pytest.fixture
def log() -> Iterator[Log]:
    made = open_log(disk())
    yield made
    made.check()


def code_of(log: Log, octets: memoryview, **how: Any) -> ErrorCode:
    """The refusal's code; nothing was written."""
    before = log.log_end_offset
    with pytest.raises(AppendRefusedError) as refusal:
        log.append_as_leader(octets, now=NOW, leader_epoch=0, **how)
    assert log.log_end_offset == before
    assert refusal.value.sentence
    return refusal.value.error_code


def patched(octets: memoryview, form: str, position: int, value: int, *, crc: bool = True) -> memoryview:
    struct.pack_into(form, octets, position, value)
    if crc:
        set_crc(octets)
    return octets


def test_offsets_and_epoch_are_stamped_outside_the_crc(log: Log) -> None:
    first = log.append_as_leader(batch(b"a", b"b", b"c"), now=NOW, leader_epoch=4)
    assert first == (0, 2, -1, False)
    second = log.append_as_leader(batch(b"d"), now=NOW, leader_epoch=4)
    assert second == (3, 3, -1, False)
    octets = raw(log)
    header = peek(octets)
    assert (header.base_offset, header.last_offset, header.partition_leader_epoch) == (0, 2, 4)
    assert has_valid_crc(octets, 0, header)
    later = peek(octets, header.size_in_bytes)
    assert (later.base_offset, later.partition_leader_epoch) == (3, 4)
    assert log.epochs.entries == [(4, 0)]


def test_nothing_is_on_disk_before_the_first_append() -> None:
    files = disk()
    log = open_log(files)
    assert not files.exists(DIRECTORY)
    log.assign_epoch(3)
    log.flush()
    log.close(NOW)
    assert not files.exists(DIRECTORY)
    assert code_of(log, memoryview(bytearray(10))) == ErrorCode.INVALID_RECORD
    assert not files.exists(DIRECTORY)
    put(log, batch(b"a"), epoch=3)
    assert files.listdir(DIRECTORY) == [
        "00000000000000000000.log",
        "gaps-below",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert files.read_bytes(f"{DIRECTORY}/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n"


MALFORMED: list[tuple[str, memoryview, ErrorCode]] = [
    ("nothing", memoryview(bytearray()), ErrorCode.INVALID_RECORD),
    ("garbage", memoryview(bytearray(b"\7" * 40)), ErrorCode.CORRUPT_MESSAGE),
    ("cut off", batch(b"a" * 50)[:-1], ErrorCode.INVALID_RECORD),
    ("cut in the header", batch(b"a")[:40], ErrorCode.INVALID_RECORD),
    ("a length below any record", patched(batch(b"a"), ">i", 8, 13, crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("a negative length", patched(batch(b"a"), ">i", 8, -1, crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("a length below the header", patched(batch(b"a"), ">i", 8, 30, crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("magic 0", patched(batch(b"a"), ">b", 16, 0, crc=False), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 1", patched(batch(b"a"), ">b", 16, 1, crc=False), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 3", patched(batch(b"a"), ">b", 16, 3, crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("a flipped bit", patched(batch(b"a"), ">b", 65, 99, crc=False), ErrorCode.CORRUPT_MESSAGE),
    ("a base offset", batch(b"a", base_offset=3), ErrorCode.INVALID_RECORD),
    ("two batches", memoryview(bytearray(bytes(batch(b"a")) + bytes(batch(b"b")))), ErrorCode.INVALID_RECORD),
    ("one record too many", patched(batch(b"a"), ">i", 57, 2), ErrorCode.INVALID_RECORD),
    ("no records", patched(batch(b"a"), ">i", 57, 0), ErrorCode.INVALID_RECORD),
    ("a last offset delta too far", patched(batch(b"a"), ">i", 23, 1), ErrorCode.INVALID_RECORD),
    ("a negative last offset delta", patched(batch(b"a"), ">i", 23, -1), ErrorCode.INVALID_RECORD),
    ("a control batch", patched(batch(b"a"), ">h", 21, 0x20), ErrorCode.INVALID_RECORD),
    ("codec 5", patched(batch(b"a"), ">h", 21, 5), ErrorCode.UNKNOWN_SERVER_ERROR),
    ("a producer id without a sequence", patched(batch(b"a"), ">q", 43, 9), ErrorCode.INVALID_RECORD),
    ("too large", batch(b"a" * (1 << 20)), ErrorCode.MESSAGE_TOO_LARGE),
    ("the future", batch(b"a", at=NOW + HOUR_MS + 1), ErrorCode.INVALID_TIMESTAMP),
]


@pytest.mark.parametrize(("octets", "code"), [row[1:] for row in MALFORMED], ids=[row[0] for row in MALFORMED])
def test_refusals(log: Log, octets: memoryview, code: ErrorCode) -> None:
    assert code_of(log, octets) == code
    assert put(log, batch(b"fine")) == 0


def test_a_few_bytes_behind_the_batch_are_ignored(log: Log) -> None:
    for tail in (b"\0", b"garbage", bytes(16), bytes(batch(b"cut"))[:40]):
        put(log, memoryview(bytearray(bytes(batch(b"a")) + tail)))
    assert values(log) == [b"a"] * 4


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    log = open_log(disk(), LogConfig(segment_bytes=500))
    assert code_of(log, batch(b"a" * 600)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_configs_change_while_the_log_runs(log: Log) -> None:
    put(log, batch(b"a" * 2000))
    log.configure(LogConfig(max_message_bytes=1000))
    assert code_of(log, batch(b"a" * 2000)) == ErrorCode.MESSAGE_TOO_LARGE
    log.configure(LogConfig())
    put(log, batch(b"a" * 2000))


def test_timestamps_before_1970_and_none_pass(log: Log) -> None:
    put(log, batch(b"a", at=-5))
    put(log, batch(b"a", at=-1))
    assert len(values(log)) == 2


def test_before_max_looks_at_every_record() -> None:
    log = open_log(disk(), LogConfig(message_timestamp_before_max_ms=1000))
    mixed = [Record(timestamp_ms=at, key=b"k", value=b"v") for at in (NOW, NOW - 1001, NOW)]
    assert code_of(log, memoryview(build_batch(mixed))) == ErrorCode.INVALID_TIMESTAMP
    put(log, batch(b"a", at=NOW - 1000))
    put(log, batch(b"a", at=-1))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compacted_topics_need_keys(codec: str) -> None:
    log = open_log(disk(), LogConfig(cleanup_policy=frozenset({"compact"})))
    mixed = [Record(timestamp_ms=NOW, key=key, value=b"v") for key in (b"a", None)]
    assert code_of(log, memoryview(build_batch(mixed, compression=codec))) == ErrorCode.INVALID_RECORD
    put(log, keyed((b"", b"an empty key is a key"), compression=codec))
    log.append_as_leader(batch(b"x", key=None), now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)


def test_records_that_cannot_be_read_are_refused_where_they_are_looked_at() -> None:
    log = open_log(disk(), LogConfig(cleanup_policy=frozenset({"compact"})))
    assert code_of(log, patched(batch(b"abc"), ">b", 61, 2)) == ErrorCode.INVALID_RECORD
    broken = batch(b"abc" * 50, compression="gzip")
    assert code_of(log, patched(broken, ">b", 61, 0)) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_log_append_time_is_the_time_of_every_record() -> None:
    log = open_log(disk(), LogConfig(message_timestamp_type="LogAppendTime"))
    appended = log.append_as_leader(batch(b"a", b"b", at=5), now=NOW + 7, leader_epoch=0)
    assert appended.log_append_time_ms == NOW + 7
    octets = raw(log)
    header = peek(octets)
    assert has_valid_crc(octets, 0, header)
    assert [record.timestamp_ms for record in decode_records(octets)] == [NOW + 7] * 2
    assert code_of(log, patched(batch(b"a"), ">h", 21, 8)) == ErrorCode.INVALID_TIMESTAMP


def test_a_client_does_not_choose_log_append_time(log: Log) -> None:
    put(log, patched(batch(b"a"), ">h", 21, 8))
    octets = raw(log)
    assert peek(octets).timestamp_type == 0
    assert has_valid_crc(octets, 0, peek(octets))


@pytest.mark.parametrize("source", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_recompression(source: str, target: Any) -> None:
    log = open_log(disk(), LogConfig(compression_type=target))
    put(log, batch(b"first"))
    sent = batch(b"a" * 50, None, b"c" * 50, compression=source, producer_id=9, producer_epoch=2, base_sequence=5)
    assert put(log, sent) == 1
    octets = raw(log, start=1)
    header = peek(octets)
    assert header.compression == {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}[target]
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset) == (9, 2, 5, 3)
    assert has_valid_crc(octets, 0, header)
    assert [record.value for record in decode_records(octets)] == [b"a" * 50, None, b"c" * 50]


def test_recompression_refuses_gaps_between_offsets() -> None:
    log = open_log(disk(), LogConfig(compression_type="gzip"))
    gappy = build_batch([Record(0, NOW, b"k", b"a"), Record(5, NOW, b"k", b"b")], compression="zstd")
    struct.pack_into(">i", gappy, 23, 1)
    set_crc(gappy)
    assert code_of(log, memoryview(gappy)) == ErrorCode.INVALID_RECORD


def test_duplicates_succeed_with_the_first_offsets(log: Log) -> None:
    def sent(sequence: int) -> memoryview:
        return batch(b"a", b"b", producer_id=9, producer_epoch=0, base_sequence=sequence, at=NOW - 3)

    for number in range(7):
        put(log, sent(2 * number))
    for number in range(2, 7):
        again = log.append_as_leader(sent(2 * number), now=NOW, leader_epoch=0)
        assert again == (2 * number, 2 * number + 1, NOW - 3, True)
    assert code_of(log, sent(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert code_of(log, sent(16)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    newer = batch(b"a", producer_id=9, producer_epoch=1, base_sequence=0)
    put(log, newer)
    assert code_of(log, sent(14)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.log_end_offset == 15


def test_what_repeats_a_transaction_that_has_ended_is_no_duplicate(log: Log) -> None:
    """librdkafka gives other records these numbers: they would be acknowledged, committed and nowhere."""

    def sent(sequence: int) -> memoryview:
        return batch(b"a", b"b", producer_id=9, producer_epoch=0, base_sequence=sequence, transactional=True)

    def append(octets: memoryview) -> tuple[int, bool]:
        appended = log.append_as_leader(octets, now=NOW, leader_epoch=0)
        return appended.base_offset, appended.duplicate

    assert [append(sent(0)), append(sent(2)), append(sent(0))] == [(0, False), (2, False), (0, True)]
    put(log, marker(9, commit=False), origin=Origin.COORDINATOR)
    assert code_of(log, sent(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [append(sent(4)), append(sent(4))] == [(5, False), (5, True)]
    assert code_of(log, sent(2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_markers_come_from_coordinators_only(log: Log) -> None:
    assert code_of(log, marker(9, commit=True)) == ErrorCode.INVALID_RECORD
    put(log, marker(9, commit=True, coordinator_epoch=4), origin=Origin.COORDINATOR)
    assert (
        code_of(log, marker(9, commit=True, coordinator_epoch=3), origin=Origin.COORDINATOR)
        == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )
    put(log, batch(b"a", producer_id=9, producer_epoch=3, base_sequence=0))
    assert (
        code_of(log, marker(9, commit=True, epoch=2, coordinator_epoch=5), origin=Origin.COORDINATOR)
        == ErrorCode.INVALID_PRODUCER_EPOCH
    )


def test_segments_roll_by_size_time_index_and_config() -> None:
    log = open_log(disk(), LogConfig(segment_bytes=1000, segment_ms=10_000))
    size = len(batch(b"v" * 20))
    for _ in range(1000 // size + 1):
        put(log, batch(b"v" * 20))
    assert log.bases == [0, 1000 // size]
    put(log, batch(b"v", at=NOW + 10_000))
    assert len(log.bases) == 2
    put(log, batch(b"v", at=NOW + 10_001))
    assert len(log.bases) == 3
    log.configure(log.config._replace(segment_ms=5))
    put(log, batch(b"v", at=NOW + 10_005))
    assert len(log.bases) == 3
    put(log, batch(b"v", at=NOW + 10_007))
    assert len(log.bases) == 4
    for _ in range(3):  # without timestamps the clock decides
        put(log, batch(b"v" * 800, at=-1), now=NOW)
    assert len(log.bases) == 6
    put(log, batch(b"v", at=-1), now=NOW + 5)
    assert len(log.bases) == 6
    put(log, batch(b"v", at=-1), now=NOW + 6)
    assert len(log.bases) == 7
    tight = open_log(disk(), LogConfig(index_interval_bytes=0, segment_index_bytes=12 * 4))
    for _ in range(20):
        put(tight, batch(b"v"))
    assert len(tight.bases) > 4
    assert log.roll(NOW) is True
    assert log.roll(NOW) is False
