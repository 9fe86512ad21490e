"""Timestamps of the future: none get in, and those that older versions stored do not stop retention for ever."""

from struct import Struct

import pytest

from ottla.log.answers import AppendRefusedError, Origin
from ottla.log.log import Log
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import MAX_TIMESTAMP_AT, set_crc
from ottla.protocol.records.record import Record, build_batch
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import NOW, batch, delete_old_segments, disk, maintain, open_log, put, records, small

DAY = 86_400_000
FAR = NOW + 50 * 365 * DAY
CONFIG = small(retention_ms=7 * DAY)
_int64 = Struct(">q")


def claiming(max_timestamp: int, *timestamps: int, codec: str = "none") -> memoryview:
    """A batch whose header says this of its records' timestamps."""
    made = build_batch([Record(timestamp_ms=at, key=b"k", value=b"v") for at in timestamps], compression=codec)
    _int64.pack_into(made, MAX_TIMESTAMP_AT, max_timestamp)
    set_crc(made)
    return memoryview(made)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_header_that_lies_about_its_records_is_put_right(codec: str) -> None:
    log = open_log(disk(), CONFIG)
    put(log, claiming(FAR, NOW - 5, NOW - 1, NOW - 9, codec=codec))
    assert log.segments[0].max_timestamp()[0] == NOW - 1
    assert [record.timestamp_ms for record in records(log)] == [NOW - 5, NOW - 1, NOW - 9]
    assert delete_old_segments(log, NOW + 8 * DAY) == 1
    assert log.log_start_offset == 3


def test_records_of_the_future_are_refused() -> None:
    log = open_log(disk(), CONFIG)
    with pytest.raises(AppendRefusedError) as refused:
        put(log, batch(b"v", at=FAR))
    assert refused.value.error_code is ErrorCode.INVALID_TIMESTAMP


def stored_ahead(files: Disk) -> Log:
    """A log of an older version: a segment with a timestamp of the future."""
    log = open_log(files, CONFIG)
    put(log, claiming(FAR, NOW, NOW), origin=Origin.REPLICATION, now=FAR)
    return log


def test_what_is_stored_already_does_not_stop_retention() -> None:
    files = disk()
    log = stored_ahead(files)
    log.roll(NOW + DAY)
    put(log, batch(b"w", at=NOW + 2 * DAY), now=NOW + 2 * DAY)
    assert delete_old_segments(log, NOW + 2 * DAY) == 0
    due = log.deadline(NOW + 2 * DAY)
    assert due is not None
    assert due <= NOW + 9 * DAY
    assert delete_old_segments(log, NOW + 8 * DAY) == 0
    assert delete_old_segments(log, NOW + 8 * DAY + 1) == 1, "a week after it was closed"
    assert [record.value for record in records(log)] == [b"w"]


def test_a_segment_that_was_never_closed_is_closed_when_retention_looks() -> None:
    """Its own timestamps would keep it open: they are what rolling by time counts from."""
    files = disk()
    log = stored_ahead(files)
    log.close(NOW)
    again = open_log(files, CONFIG, now=NOW + DAY)
    assert len(again.segments) == 1, "a start changes nothing"
    due = again.deadline(NOW + DAY)
    assert due is not None
    assert again.deadline(due) == due
    maintain(again, due)
    assert len(again.segments) == 2
    assert again.segments[0].created_ms == due < NOW + DAY + 3_600_000
    assert maintain(again, due + 7 * DAY) is False
    assert delete_old_segments(again, due + 7 * DAY) == 0
    assert delete_old_segments(again, due + 7 * DAY + 1) == 1
    assert again.log_start_offset == again.log_end_offset == 2


def test_a_clock_that_steps_back_deletes_nothing() -> None:
    """Sound timestamps look like the future then, and every segment was closed long ago by that clock."""
    files = disk()
    log = open_log(files, CONFIG)
    for day in range(6):
        put(log, batch(b"v", at=NOW + day * DAY), now=NOW + day * DAY)
        log.roll(NOW + day * DAY)
    for now in (NOW + 3 * DAY, NOW, NOW - 300 * DAY):
        assert delete_old_segments(log, now) == 0
        assert delete_old_segments(open_log(files.clone(files.rng), CONFIG, now=now), now) == 0
    assert delete_old_segments(log, NOW + 7 * DAY + 1) == 1


def test_timestamps_of_the_future_count_where_they_are_allowed() -> None:
    log = open_log(disk(), small(retention_ms=7 * DAY, message_timestamp_after_max_ms=2**63 - 1))
    put(log, batch(b"v", at=FAR))
    log.roll(NOW)
    assert delete_old_segments(log, NOW + 30 * DAY) == 0
