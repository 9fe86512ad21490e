"""The sparse indexes: their bytes, their lookups, and what a damaged file is worth."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.index.offsets import INDEX_FLUSH_ENTRIES, IndexCache, OffsetIndex
from ottla.log.index.times import TimeIndex
from ottla.sim.kernel.disk import Disk

PATH = "/data/00000000000000000100.index"


def disk() -> Disk:
    import random

    made = Disk(random.Random(1))
    made.makedirs("/data")
    return made


def offset_index(files: Disk, *entries: tuple[int, int], active: bool = True) -> OffsetIndex:
    index = OffsetIndex(files, PATH, 100, IndexCache(), active=active)
    for last_offset, position in entries:
        index.append(last_offset, position)
    return index


def test_entries_are_kafkas_bytes() -> None:
    files = disk()
    index = offset_index(files, (105, 300), (117, 4500))
    index.flush()
    assert files.read_bytes(PATH) == bytes.fromhex("00000005 0000012c 00000011 00001194")
    times = TimeIndex(files, "/data/t", 100, empty=True)
    times.maybe_append(1_700_000_000_000, 105)
    times.maybe_append(1_600_000_000_000, 110)  # older: no entry
    times.maybe_append(1_700_000_000_001, 117)
    times.flush()
    assert files.read_bytes("/data/t") == bytes.fromhex("0000018bcfe56800 00000005 0000018bcfe56801 00000011")


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=30), st.integers(90, 2000))
def test_lookups_give_the_floor(steps: list[tuple[int, int]], asked: int) -> None:
    entries: list[tuple[int, int]] = []
    offset, position = 100, 0
    for up, on in steps:
        offset, position = offset + up, position + on
        entries.append((offset, position))
    index = offset_index(disk(), *entries)
    assert index.lookup(asked) == max((p for o, p in entries if o <= asked), default=0)
    assert index.boundary(asked) == max((p for _, p in entries if p <= asked), default=0)


@given(
    st.integers(0, 200),
    st.integers(0, 200),
    st.lists(st.integers(1, 5), max_size=200),
)
def test_truncation_and_persistence_agree(flush_at: int, cut_at: int, steps: list[int]) -> None:
    files = disk()
    index, times = offset_index(files), TimeIndex(files, "/data/t", 100, empty=True)
    entries: list[tuple[int, int]] = []
    offset = 100
    for number, up in enumerate(steps):
        offset += up
        entries.append((offset, number * 10 + 7))
        index.append(offset, number * 10 + 7)
        times.maybe_append(1000 + number, offset)
        if number == flush_at:
            index.flush()
            times.flush()
    cut = 100 + cut_at
    index.truncate_to(cut)
    times.truncate_to(cut)
    kept = [entry for entry in entries if entry[0] < cut]
    assert index.entries == times.entries == len(kept)
    index.append(cut + 1000, 99_999)
    times.maybe_append(10**6, cut + 1000)
    index.flush()
    times.flush()
    again = offset_index(files, active=False)
    assert again.load() == 0
    assert again.entries == len(kept) + 1
    assert again.last() == (cut + 1000, 99_999)
    later = TimeIndex(files, "/data/t", 100, empty=False)
    for number, (offset, _) in enumerate(kept):
        assert later.lookup(1000 + number) == (1000 + number, offset)
    assert later.last() == (10**6, cut + 1000)
    assert later.lookup(999) == (-1, 100)


@pytest.mark.parametrize("torn", [b"", b"\1", b"\0" * 80, bytes.fromhex("00000003 00000200"), b"\0" * 10_000])
def test_unsound_ends_are_cut(torn: bytes) -> None:
    files = disk()
    index = offset_index(files, (105, 300), (117, 4500))
    index.flush()
    files.open(PATH).write(torn)
    again = offset_index(files, active=False)
    assert again.load() == len(torn)
    assert again.entries == 2
    again.cut_file()
    assert files.size(PATH) == 16
    times = files.open("/data/t", create=True)
    times.write(struct.pack(">qiqi", 5000, 1, 6000, 9) + torn)
    later = TimeIndex(files, "/data/t", 100, empty=False)
    if torn != bytes.fromhex("00000003 00000200"):
        assert later.load() == len(torn)
        assert later.last() == (6000, 109)


def test_preallocated_files_of_nothing_but_zeros_are_empty() -> None:
    files = disk()
    files.open(PATH, create=True).write(bytes(800))
    index = offset_index(files, active=False)
    assert (index.load(), index.entries) == (800, 0)
    files.open("/data/t", create=True).write(bytes(1200))
    times = TimeIndex(files, "/data/t", 100, empty=False)
    assert (times.load(), times.entries, times.last()) == (1200, 0, (-1, 100))


def test_closing_a_segment_may_repeat_the_last_timestamp() -> None:
    times = TimeIndex(disk(), "/data/t", 100, empty=True)
    times.maybe_append(5000, 110)
    times.maybe_append(5000, 120)
    assert times.entries == 1
    times.maybe_append(5000, 120, closing=True)
    assert (times.entries, times.last()) == (2, (5000, 120))


def test_the_cache_lets_the_longest_unused_index_go() -> None:
    files = disk()
    cache = IndexCache(bytes_max=3 * 80)
    indexes: list[OffsetIndex] = []
    for number in range(6):
        index = OffsetIndex(files, f"/data/{number}.index", 0, cache, active=True)
        for entry in range(1, 11):
            index.append(entry, entry * 100)
        index.deactivate()
        indexes.append(index)
    assert sum(index._offsets is not None for index in indexes) == 3
    for index in indexes:
        assert index.lookup(5) == 500
    assert sum(index._offsets is not None for index in indexes) == 3


def test_pending_entries_are_written_in_groups() -> None:
    index = offset_index(disk())
    for entry in range(1, INDEX_FLUSH_ENTRIES + 1):
        index.append(100 + entry, entry)
    assert index.pending_entries == INDEX_FLUSH_ENTRIES
    index.flush()
    assert index.pending_entries == 0
