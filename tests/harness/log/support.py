"""What the log's tests share: batches, an opened log, and the records that a reader gets."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from ottla.log import retention
from ottla.log.answers import Isolation
from ottla.log.config import LogConfig
from ottla.log.files import FileSystem, ReadError
from ottla.log.log import Log
from ottla.log.syncing import Syncable
from ottla.protocol.records import Record, build_batch, decode_records, iter_batches
from ottla.protocol.records.control import EndTransactionMarker, build_marker_batch
from ottla.sim.kernel.disk import Disk

NOW = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
DIRECTORY = "/data/t-0"


def disk(seed: int = 1) -> Disk:
    """A simulated disk with a data directory that is there for certain."""
    made = Disk(random.Random(seed))
    made.makedirs("/data")
    made.sync_directory("/")
    return made


def batch(*values: bytes | None, key: bytes | None = b"k", at: int = NOW, **header: Any) -> memoryview:
    """One batch with a record per value, all at the same time."""
    return memoryview(build_batch([Record(timestamp_ms=at, key=key, value=value) for value in values], **header))


def keyed(*pairs: tuple[bytes, bytes | None], at: int = NOW, **header: Any) -> memoryview:
    return memoryview(build_batch([Record(timestamp_ms=at, key=key, value=value) for key, value in pairs], **header))


def marker(producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, at: int = NOW) -> memoryview:
    return memoryview(
        build_marker_batch(
            EndTransactionMarker(commit, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp_ms=at,
        )
    )


def open_log(files: FileSystem, config: LogConfig | None = None, directory: str = DIRECTORY, **how: Any) -> Log:
    """A log as after a clean stop, unless told otherwise; all of it is committed where no `high_watermark` is told."""
    given: dict[str, Any] = {
        "topic_id": TOPIC_ID,
        "now": NOW,
        "clean_shutdown": True,
        "same_boot": True,
        "recovery_point": 0,
    }
    given.update(how)
    log = Log.open(files, directory, config or LogConfig(), **given)
    if "high_watermark" not in how:
        log.advance_high_watermark(log.log_end_offset)
    log.check()
    return log


def small(**settings: Any) -> LogConfig:
    """Segments of a kilobyte with an index entry for nearly every batch."""
    return LogConfig(segment_bytes=1024, index_interval_bytes=100)._replace(**settings)


def put(log: Log, octets: memoryview, *, now: int = NOW, epoch: int = 0, **how: Any) -> int:
    """Append and commit; the base offset."""
    appended = log.append_as_leader(octets, now=now, leader_epoch=epoch, **how)
    log.advance_high_watermark(log.log_end_offset)
    return appended.base_offset


def sync_all(steps: Iterator[Syncable]) -> int:
    """Take these steps, syncing what each yields before the next. How many there were."""
    count = 0
    for count, file in enumerate(steps, 1):  # noqa: B007
        file.pin()
        file.sync()
        file.unpin()
    return count


def maintain(log: Log, now: int) -> bool:
    """All that is due, here and now. True if the log start moved."""
    before = log.log_start_offset
    sync_all(log.maintaining(now))
    return log.log_start_offset != before


def delete_old_segments(log: Log, now: int) -> int:
    """Apply retention by log start, time and size, here and now. How many segments went."""
    before, _ = set(log.bases), sync_all(retention.deleting_old(log, now))
    return len(before.difference(log.bases))


def raw(
    log: Log, start: int | None = None, isolation: Isolation = Isolation.LOG_END, max_bytes: int = 1 << 20
) -> bytes:
    """All bytes that a sequential reader gets."""
    offset = log.log_start_offset if start is None else start
    parts: list[bytes] = []
    while True:
        result = log.read(offset, max_bytes, isolation)
        if result.slice is None:
            assert result.next_offset >= offset
            if result.next_offset == offset:
                return b"".join(parts)
        else:
            octets = result.slice.read()
            assert len(octets) == result.slice.length
            headers = list(iter_batches(memoryview(octets)))
            assert headers, "a slice holds whole batches"
            assert headers[-1][1] + headers[-1][0].size_in_bytes == len(octets)
            assert headers[0][0].next_offset > offset
            parts.append(octets)
        assert result.next_offset > offset
        offset = result.next_offset


def records(log: Log, **how: Any) -> list[Record]:
    """All data records a sequential reader gets, those below where it began left out."""
    octets = memoryview(raw(log, **how))
    found: list[Record] = []
    for header, position in iter_batches(octets):
        if not header.is_control:
            found.extend(decode_records(octets, position))
    return found


def values(log: Log, **how: Any) -> list[bytes | None]:
    return [record.value for record in records(log, **how)]


def offsets(found: Sequence[Record]) -> list[int]:
    return [record.offset for record in found]


def is_readable(disk: Disk, path: str) -> bool:
    """Whether the disk can read all of this file."""
    try:
        disk.read_bytes(path)
    except ReadError:
        return False
    return True
