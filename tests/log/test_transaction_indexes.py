"""Transaction indexes that are damaged between two starts: no checksum covers them, and a reader of committed records
relies on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.log.answers import Origin
from ottla.log.compaction import cleanable
from ottla.log.compaction.compaction import Compaction
from ottla.log.log import Log
from ottla.log.names import snapshot_name
from ottla.sim.kernel.disk import Disk
from tests.harness.log.support import (
    DIRECTORY,
    NOW,
    batch,
    delete_old_segments,
    disk,
    marker,
    open_log,
    put,
    small,
    sync_all,
)

KILLED: dict[str, Any] = {"clean_shutdown": False}
CLEAN: dict[str, Any] = {}
FIRST = f"{DIRECTORY}/00000000000000000000.txnindex"


def aborted_in(log: Log) -> list[tuple[int, int, int]]:
    """The aborted transactions that the indexes list."""
    listed = [each for segment in log.segments for each in segment.txn_index.aborted()]
    return [(each.producer_id, each.first_offset, each.last_offset) for each in listed]


def rebuilt(notes: list[str]) -> list[str]:
    return [note for note in notes if "rebuilt its indexes of aborted transactions" in note]


def with_aborts(files: Disk) -> Log:
    """A log whose first segment has three aborted transactions, and whose newest one has another."""
    log = open_log(files, small())
    for number in range(3):
        put(log, batch(b"a", producer_id=7, producer_epoch=0, base_sequence=number, transactional=True))
        put(log, marker(7, commit=False), origin=Origin.COORDINATOR)
    while len(log.segments) < 3:
        put(log, batch(b"v" * 60))
    put(log, batch(b"a", producer_id=8, producer_epoch=0, base_sequence=0, transactional=True))
    put(log, marker(8, commit=False), origin=Origin.COORDINATOR)
    return log


def lost(files: Disk) -> None:
    files.put(FIRST, None)


def shortened(files: Disk) -> None:
    files.put(FIRST, files.content(FIRST)[:34])


def of_another_producer(files: Disk) -> None:
    content = bytearray(files.content(FIRST))
    content[34 + 9] ^= 1
    files.put(FIRST, bytes(content))


@pytest.mark.parametrize("how", [CLEAN, KILLED], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", [lost, shortened, of_another_producer])
def test_a_damaged_index_is_rebuilt(damage: Callable[[Disk], None], how: dict[str, Any]) -> None:
    files = disk()
    log = with_aborts(files)
    expected = aborted_in(log)
    assert len(expected) == 4
    if how is CLEAN:
        log.close(NOW)
    files.kill()
    damage(files)
    notes: list[str] = []
    again = open_log(files, small(), recovery_point=log.log_end_offset, notes=notes.append, **how)
    assert aborted_in(again) == expected
    assert rebuilt(notes)
    assert 7 in again.producers.entries, "from the snapshot"


def test_an_entry_behind_the_snapshot_is_replaced() -> None:
    files = disk()
    log = with_aborts(files)
    expected = aborted_in(log)
    path = f"{log.segments[-1].path}.txnindex"
    files.kill()
    content = bytearray(files.content(path))
    content[9] ^= 1
    files.put(path, bytes(content))
    assert aborted_in(open_log(files, small(), **KILLED)) == expected


def test_an_index_that_compaction_has_written_is_sound() -> None:
    files = disk()
    config = small(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01)
    later = NOW + config.delete_retention_ms + 1
    log = open_log(files, config)
    for number in range(60):
        header: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": number}
        put(log, batch(b"a", key=b"%d" % number, transactional=True, **header))
        put(log, marker(7, commit=number % 2 == 0), origin=Origin.COORDINATOR)
    before = aborted_in(log)
    for _ in range(3):
        log.roll(later)
        cleanable.write_checkpoint(log, 0)
        sync_all(step for step in Compaction(log, later) if step is not None)
    expected = aborted_in(log)
    assert len(expected) < len(before)
    files.kill()
    notes: list[str] = []
    again = open_log(files, config, notes=notes.append, **KILLED)
    assert (aborted_in(again), rebuilt(notes)) == (expected, [])


def test_a_snapshot_without_summaries_is_trusted() -> None:
    """Kafka and older versions write none."""
    files = disk()
    log = with_aborts(files)
    expected = aborted_in(log)
    log.close(NOW)
    path = f"{DIRECTORY}/{snapshot_name(log.log_end_offset)}"
    files.put(path, log.producers.encode())
    files.kill()
    notes: list[str] = []
    again = open_log(files, small(), recovery_point=log.log_end_offset, notes=notes.append)
    assert (aborted_in(again), rebuilt(notes)) == (expected, [])


def test_an_index_that_retention_has_deleted_is_not_missed() -> None:
    files = disk()
    log = with_aborts(files)
    log.delete_records_before(log.segments[1].base_offset)
    delete_old_segments(log, NOW)
    assert aborted_in(log) == [(8, log.log_end_offset - 2, log.log_end_offset - 1)]
    expected = aborted_in(log)
    files.kill()
    notes: list[str] = []
    again = open_log(files, small(), log_start_offset=log.log_start_offset, notes=notes.append, **KILLED)
    assert (aborted_in(again), rebuilt(notes)) == (expected, [])
