"""Compaction under transactions: what a reader of committed records finds is what it found before, however the
transactions lie over segments and rounds, and what the log knows of its producers survives.

Random runs: producers whose transactions begin, go on and end across segments, plain records between them, rounds with
a small map, tombstones, restarts. The reader is a client's: it leaves out what the read's list of aborted transactions
names, until the marker (CompletedFetch.java).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from ottla.log.answers import Isolation, Origin
from ottla.log.compaction.compaction import Compaction
from ottla.log.log import Log
from ottla.log.producers import marker_in
from ottla.protocol.records import decode_records, iter_batches
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import DIRECTORY, NOW, disk, keyed, marker, open_log, put, records, small

COMPACT = small(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01, file_delete_delay_ms=10)
HORIZON = COMPACT.delete_retention_ms
PRODUCERS = (5, 6, 7)
KEYS = 4


def compact(log: Log, now: int, room: int) -> None:
    for wanted in Compaction(log, now, map_bytes_max=200 * room):
        if wanted is not None:
            wanted.sync()
    log.check()


def seen_by_a_client(log: Log, start: int, max_bytes: int) -> dict[int, tuple[bytes | None, bytes | None]]:
    """Key and value by offset, as a consumer with `read_committed` delivers them."""
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    offset = start
    while True:
        result = log.read(offset, max_bytes, Isolation.TXN_COMMITTED)
        aborted: set[int] = set()
        coming = sorted(result.aborted or (), key=lambda entry: entry.first_offset)
        octets = memoryview(b"" if result.slice is None else result.slice.read())
        for header, position in iter_batches(octets):
            while coming and coming[0].first_offset <= header.last_offset:
                aborted.add(coming.pop(0).producer_id)
            if header.is_control:
                whole = octets[position : position + header.size_in_bytes]
                ended = marker_in(whole) if header.record_count else None
                if ended is not None and not ended.committed:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                rows = decode_records(octets, position) if header.record_count else []
                found.update((row.offset, (row.key, row.value)) for row in rows if row.offset >= start)
        if result.next_offset <= offset:
            return found
        offset = result.next_offset


class Writers:
    """Producers of one log, and what committed records there are."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.sequences: dict[int, int] = dict.fromkeys(PRODUCERS, 0)
        self.epochs: dict[int, int] = dict.fromkeys(PRODUCERS, 0)
        self.open: dict[int, dict[int, tuple[bytes, bytes | None]]] = {}
        self.committed: dict[int, tuple[bytes, bytes | None]] = {}
        self.count = 0

    def write(self, log: Log, producer_id: int | None) -> None:
        rows: list[tuple[bytes, bytes | None]] = []
        for _ in range(self.rng.randint(1, 3)):
            self.count += 1
            value = None if self.rng.random() < 0.1 else b"value-%d" % self.count
            rows.append((b"key-%d" % self.rng.randrange(KEYS), value))
        how: dict[str, Any] = {}
        if producer_id is not None:
            sequence = self.sequences[producer_id]
            how = {"producer_id": producer_id, "producer_epoch": self.epochs[producer_id], "base_sequence": sequence}
            self.sequences[producer_id] += len(rows)
        base = put(log, keyed(*rows, transactional=producer_id is not None, **how))
        goes_to = self.committed if producer_id is None else self.open.setdefault(producer_id, {})
        goes_to.update((base + at, row) for at, row in enumerate(rows))

    def end(self, log: Log, producer_id: int) -> None:
        """With the second version of the protocol a marker raises the producer's epoch."""
        commits, second = self.rng.random() < 0.5, self.rng.random() < 0.5
        if second:
            self.epochs[producer_id] += 1
            self.sequences[producer_id] = 0
        octets = marker(producer_id, commit=commits, epoch=self.epochs[producer_id])
        put(log, octets, origin=Origin.COORDINATOR)
        rows = self.open.pop(producer_id, {})
        if commits:
            self.committed.update(rows)

    def newest(self, below: int) -> dict[bytes, tuple[int, bytes | None]]:
        """The last committed record of each key before an offset."""
        found: dict[bytes, tuple[int, bytes | None]] = {}
        for offset in sorted(self.committed):
            if offset < below:
                key, value = self.committed[offset]
                found[key] = (offset, value)
        return found


def check_what_is_read(log: Log, writers: Writers, rng: random.Random) -> None:
    stable = log.last_stable_offset
    assert stable == min((min(rows) for rows in writers.open.values() if rows), default=log.high_watermark)
    for start in (log.log_start_offset, rng.randint(log.log_start_offset, stable)):
        seen = seen_by_a_client(log, start, rng.choice((1, 700, 1 << 20)))
        assert all(writers.committed.get(offset) == row for offset, row in seen.items()), "not what was committed"
        for key, (offset, value) in writers.newest(stable).items():
            if offset >= start and value is not None:
                assert seen.get(offset) == (key, value), f"the newest record of {key!r} at {offset} is gone"


def reopened(log: Log, files: Disk, *, clean: bool) -> Log:
    """The log after a stop, or after a power cut that took the producers' snapshots: then its batches tell of them."""
    before = {each.producer_id: (each.epoch, each.last_sequence) for each in log.producers.entries.values()}
    end, stable = log.log_end_offset, log.last_stable_offset
    if clean:
        log.close(NOW)
    else:
        log.flush()
        for name in files.listdir(DIRECTORY) if end else ():
            if name.endswith(".snapshot"):
                files.unlink(f"{DIRECTORY}/{name}")
    again = open_log(files, COMPACT, clean_shutdown=clean, same_boot=clean, recovery_point=end if clean else 0)
    assert (again.log_end_offset, again.last_stable_offset) == (end, stable)
    assert {each.producer_id: (each.epoch, each.last_sequence) for each in again.producers.entries.values()} == before
    return again


@pytest.mark.parametrize("seed", range(24))
def test_a_reader_of_committed_records_finds_what_was_committed(seed: int) -> None:
    rng = random.Random(seed)
    files = disk(seed)
    log = open_log(files, COMPACT)
    writers, now = Writers(rng), NOW
    for _ in range(rng.randint(20, 120)):
        kind = rng.choice(("write", "write", "write", "plain", "end", "compact", "restart"))
        if kind == "write":
            writers.write(log, rng.choice(PRODUCERS))
        elif kind == "plain":
            writers.write(log, None)
        elif kind == "end" and writers.open:
            writers.end(log, rng.choice(sorted(writers.open)))
        elif kind == "compact":
            if rng.random() < 0.5:
                log.roll(now)
            compact(log, now, rng.choice((1, 3, 1000)))
            now += rng.choice((1, HORIZON + 1))
            check_what_is_read(log, writers, rng)
        elif kind == "restart" and rng.random() < 0.3:
            log = reopened(log, files, clean=rng.random() < 0.5)
    for producer_id in sorted(writers.open):
        writers.end(log, producer_id)
    for _ in range(4):  # data goes, markers are seen to be without data, and go after their time
        writers.write(log, None)
        log.roll(now)
        compact(log, now, 1000)
        check_what_is_read(log, writers, rng)
        now += HORIZON + 1
    log = reopened(log, files, clean=True)
    check_what_is_read(log, writers, rng)
    closed = [row for row in records(log) if row.offset < (log.segments.cleaned_to or 0)]
    assert all(row.offset in writers.committed for row in closed), "aborted data takes room still"
    # a live producer's last batch stays, empty, and with it the marker and its entry
    assert sum(len(segment.txn_index.aborted()) for segment in log.segments) <= len(PRODUCERS)
