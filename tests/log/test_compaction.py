"""Compaction against a dictionary, and every step of it against a power cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.answers import Isolation, Origin
from ottla.log.checkpoints import read_offsets
from ottla.log.compaction.compaction import Compaction
from ottla.log.config import LogConfig
from ottla.log.log import Log
from ottla.log.recovery.found import What
from ottla.protocol.records import Record, build_batch, decode_records, has_valid_crc, iter_batches, peek, set_crc
from ottla.sim.kernel.disk import Disk, PowerCut
from tests.harness.log.support import (
    DIRECTORY,
    NOW,
    batch,
    delete_old_segments,
    disk,
    keyed,
    maintain,
    marker,
    open_log,
    put,
    raw,
    records,
    small,
    values,
)

COMPACT = small(cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01, file_delete_delay_ms=10)
HORIZON = COMPACT.delete_retention_ms


def compact(log: Log, now: int = NOW, **how: Any) -> None:
    """Run one to its end, doing what a shell does with what it yields."""
    for wanted in Compaction(log, now, **how):
        if wanted is not None:
            wanted.sync()
    log.check()


def filled(files: Disk, config: LogConfig = COMPACT, **how: Any) -> Log:
    return open_log(files, config, **how)


def fill(log: Log, count: int, keys: int = 5, tag: bytes = b"v", **how: Any) -> None:
    for number in range(count):
        put(log, keyed((b"key-%d" % (number % keys), tag + b"-%d" % number), at=NOW + number, **how))


def table(log: Log) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for record in records(log):
        assert record.key is not None
        found[record.key] = record.value
        if record.value is None:
            del found[record.key]
    return found


def test_the_last_value_of_each_key_stays_with_its_offset() -> None:
    log = filled(disk())
    fill(log, 60)
    before = {record.offset: record for record in records(log)}
    expected = table(log)
    compact(log)
    after = records(log)
    assert len(after) < len(before)
    assert all(before[record.offset] == record for record in after)
    assert table(log) == expected
    dirty_end = log.active.base_offset if log.active else 0
    clean = [record for record in after if record.offset < dirty_end]
    assert len({record.key for record in clean}) == len(clean)
    assert log.segments.cleaned_to == dirty_end
    assert (log.log_start_offset, log.log_end_offset) == (0, 60)
    octets = raw(log)
    for header, position in iter_batches(memoryview(octets)):
        assert has_valid_crc(octets, position, header)


def test_segments_are_grouped_and_old_ones_go_after_the_delay() -> None:
    files = disk()
    log = filled(files)
    fill(log, 100)
    count = len(log.segments)
    compact(log)
    assert len(log.segments) == count, "full segments make no common one"
    fill(log, 10)
    log.roll(NOW)
    compact(log)
    assert len(log.segments) <= 4, "but what was left of them does"
    assert any(name.endswith(".deleted") for name in files.listdir(DIRECTORY))
    assert not any(name.endswith((".swap", ".cleaned")) for name in files.listdir(DIRECTORY))
    maintain(log, NOW + 10)
    assert not any(name.endswith(".deleted") for name in files.listdir(DIRECTORY))


def test_readers_keep_what_they_were_given() -> None:
    log = filled(disk())
    fill(log, 60)
    result = log.read(0, 1 << 20)
    assert result.slice is not None
    octets = result.slice.read()
    compact(log)
    maintain(log, NOW + 100)
    assert result.slice.read() == octets


def test_the_ratio_says_when_and_the_checkpoint_where() -> None:
    files = disk()
    log = filled(files)
    assert log.cleanable_ratio(NOW) == 0.0
    fill(log, 60)
    assert log.cleanable_ratio(NOW) == 1.0
    compact(log)
    cleaned_to = log.segments.cleaned_to
    assert log.cleanable_ratio(NOW) == 0.0
    assert read_offsets(files, "/data/cleaner-offset-checkpoint") == {("t", 0): cleaned_to}
    log.close(NOW)
    log = filled(files)
    assert log.cleanable_ratio(NOW) == 0.0
    fill(log, 30)
    assert 0 < log.cleanable_ratio(NOW) < 1
    log.configure(COMPACT._replace(min_cleanable_dirty_ratio=1.0))
    assert log.cleanable_ratio(NOW) == 0.0
    log.configure(COMPACT._replace(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=1000))
    assert log.cleanable_ratio(NOW + 900) == 0.0
    assert log.cleanable_ratio(NOW + 1100) > 0
    log.configure(COMPACT._replace(min_compaction_lag_ms=1000))
    assert log.cleanable_ratio(NOW + 500) == 0.0
    assert log.cleanable_ratio(NOW + 2000) > 0
    log.configure(COMPACT._replace(cleanup_policy=frozenset({"delete"})))
    assert log.cleanable_ratio(NOW + 2000) == 0.0
    log.truncate_to(5, now=NOW)
    log.configure(COMPACT)
    assert log.cleanable_ratio(NOW) == 0.0
    log.delete()
    assert b"t 0" not in files.read_bytes("/data/cleaner-offset-checkpoint")


def test_truncation_cuts_the_checkpoint() -> None:
    log = filled(disk())
    fill(log, 60)
    compact(log)
    cleaned_to = log.segments.cleaned_to
    log.truncate_to(cleaned_to - 10, now=NOW)
    fill(log, 60, tag=b"new")
    expected = table(log)
    compact(log)
    assert table(log) == expected
    assert all(value is not None and value.startswith(b"new") for value in table(log).values())


def test_tombstones_stay_until_their_horizon() -> None:
    log = filled(disk())
    fill(log, 20)
    put(log, keyed((b"key-1", None), (b"key-9", b"kept"), at=NOW))
    log.roll(NOW)
    compact(log, NOW + 1)
    tombstones = [record for record in records(log) if record.value is None]
    assert [record.key for record in tombstones] == [b"key-1"]
    assert tombstones[0].timestamp_ms == NOW
    marked = [header for header, _ in iter_batches(memoryview(raw(log))) if header.has_delete_horizon]
    assert [header.delete_horizon_ms for header in marked] == [NOW + 1 + HORIZON]
    fill(log, 30, keys=1)
    compact(log, NOW + HORIZON)
    assert [record.key for record in records(log) if record.value is None] == [b"key-1"]
    fill(log, 30, keys=1)
    compact(log, NOW + 1 + HORIZON)
    assert [record.key for record in records(log) if record.value is None] == []
    assert b"kept" in values(log)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_batch_is_kept_in_part_in_its_compression(codec: str) -> None:
    log = filled(disk())
    put(
        log,
        keyed((b"a", b"1" * 40), (b"b", b"2" * 40), (b"c", b"3" * 40), compression=codec, producer_id=5,
              producer_epoch=1, base_sequence=7),
    )  # fmt: skip
    put(log, keyed((b"b", b"newer")))
    log.roll(NOW)
    compact(log)
    octets = raw(log)
    header = peek(octets)
    assert header.compression == ["none", "gzip", "snappy", "lz4", "zstd"].index(codec)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 2)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 1, 7)
    assert [(record.offset, record.key) for record in decode_records(octets)] == [(0, b"a"), (2, b"c")]
    assert has_valid_crc(octets, 0, header)


def test_max_timestamp_of_what_is_left() -> None:
    log = filled(disk())
    mixed = [Record(timestamp_ms=NOW + at, key=key, value=b"v") for key, at in ((b"a", 0), (b"b", 50), (b"c", 10))]
    put(log, memoryview(build_batch(mixed)))
    put(log, keyed((b"b", b"newer"), at=NOW))
    log.roll(NOW)
    compact(log)
    assert peek(raw(log)).max_timestamp == NOW + 10
    assert log.max_timestamp() == (NOW + 10, 2, 0)


def test_more_keys_than_the_map_holds_take_several_rounds() -> None:
    log = filled(disk())
    fill(log, 120, keys=40)
    expected = table(log)
    ends: list[int] = []
    while log.cleanable_ratio(NOW) > 0:
        compact(log, map_bytes_max=200 * 15)
        ends.append(log.segments.cleaned_to)
        assert table(log) == expected
    assert len(ends) > 3
    assert ends == sorted(set(ends))


def test_a_producers_last_sequence_survives() -> None:
    log = filled(disk())
    for sequence in range(10):
        put(log, keyed((b"same", b"%d" % sequence), producer_id=5, producer_epoch=0, base_sequence=sequence))
    put(log, keyed((b"same", b"end")))
    log.roll(NOW)
    compact(log)
    (kept,) = [header for header, _ in iter_batches(memoryview(raw(log))) if header.producer_id == 5]
    assert (kept.record_count, kept.base_sequence, kept.base_offset) == (0, 9, 9)
    for snapshot in list(log.durability.snapshots):
        log.durability.drop_snapshot(snapshot)
    again = open_log(log.files, COMPACT, clean_shutdown=False)
    assert again.producers.entries[5].last_sequence == 9


def transactional(sequence: int, key: bytes, value: bytes) -> memoryview:
    return keyed((key, value), producer_id=5, producer_epoch=0, base_sequence=sequence, transactional=True)


def control_batches(log: Log) -> list[int]:
    return [header.base_offset for header, _ in iter_batches(memoryview(raw(log))) if header.is_control]


def test_aborted_data_goes_and_its_marker_after_the_horizon() -> None:
    log = filled(disk())
    put(log, keyed((b"a", b"good")))
    put(log, transactional(0, b"a", b"aborted"))
    put(log, marker(5, commit=False), origin=Origin.COORDINATOR)  # offset 2
    put(log, transactional(1, b"b", b"committed"))
    put(log, marker(5, commit=True), origin=Origin.COORDINATOR)  # offset 4
    fill(log, 20, keys=3)
    log.roll(NOW)
    compact(log)
    assert b"aborted" not in values(log)
    assert b"good" in values(log), "an aborted value does not take the older one away"
    assert b"committed" in values(log)
    assert control_batches(log) == [2, 4]
    assert [entry.first_offset for entry in log.segments[0].txn_index.aborted()] == [1]
    now = NOW + 1
    for _ in range(2):  # once to see that the data is gone, once after the horizon
        fill(log, 20, keys=3)
        log.roll(NOW)
        compact(log, now)
        now += HORIZON + 1
    assert control_batches(log) == [4]
    assert log.segments[0].txn_index.aborted() == []
    assert b"committed" in values(log)


def test_a_marker_that_was_emptied_says_which_epoch_its_producer_is_in() -> None:
    log = filled(disk())
    put(log, transactional(0, b"a", b"committed"))
    put(log, marker(5, commit=True, epoch=1), origin=Origin.COORDINATOR)
    put(log, marker(5, commit=False, epoch=2), origin=Origin.COORDINATOR)  # of a transaction without data here
    for round_ in range(3):
        fill(log, 20, keys=3)
        log.roll(NOW)
        compact(log, NOW + round_ * (HORIZON + 1))
    markers = [header for header, _ in iter_batches(memoryview(raw(log))) if header.is_control]
    assert [(header.producer_epoch, header.record_count) for header in markers][-1] == (2, 0)
    for snapshot in list(log.durability.snapshots):
        log.durability.drop_snapshot(snapshot)
    again = open_log(log.files, COMPACT, clean_shutdown=False)
    assert again.producers.entries[5].epoch == 2
    follower = open_log(disk(), COMPACT)
    follower.append_as_follower(memoryview(bytearray(raw(log))), now=NOW)
    assert follower.producers.entries[5].epoch == 2


def test_tombstones_and_markers_stay_while_a_replica_is_away() -> None:
    """It has what they are about, and would never hear of them."""
    log = filled(disk())
    put(log, keyed((b"x", None)))
    put(log, transactional(0, b"a", b"aborted"))
    put(log, marker(5, commit=False), origin=Origin.COORDINATOR)  # offset 2
    put(log, keyed((b"b", b"later"), producer_id=5, producer_epoch=0, base_sequence=1))
    for round_, in_sync in enumerate((False, False, False, True)):
        put(log, keyed((b"y", b"new")))
        log.roll(NOW)
        compact(log, NOW + round_ * (HORIZON + 1), in_sync=in_sync)
        markers = [header for header, _ in iter_batches(memoryview(raw(log))) if header.is_control]
        assert (values(log).count(None), len(markers)) == ((0, 0) if in_sync else (1, 1))


def test_nothing_above_the_last_stable_offset_is_touched() -> None:
    log = filled(disk())
    fill(log, 20, keys=2)
    put(log, transactional(0, b"key-0", b"open"))
    fill(log, 20, keys=2, tag=b"later")
    log.roll(NOW)
    assert log.last_stable_offset == 20
    compact(log)
    assert [value for value in values(log) if value and value.startswith(b"later")] == [
        b"later-%d" % n for n in range(20)
    ]


def test_an_abort_that_is_not_committed_settles_nothing() -> None:
    """Another leader may cut its marker off again, and give these records to readers meanwhile."""
    log = filled(disk())
    put(log, keyed((b"a", b"good")))
    put(log, transactional(0, b"a", b"open"))
    log.roll(NOW)
    log.append_as_leader(marker(5, commit=False), now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)
    assert log.last_stable_offset == 1
    compact(log)
    assert values(log) == [b"good", b"open"]
    log.advance_high_watermark(log.log_end_offset)
    log.roll(NOW)
    compact(log)
    assert values(log) == [b"good"]


def test_what_is_known_of_an_abort_that_is_not_committed_stays() -> None:
    """Its marker stands in a segment that is compacted: what stays of the data must not count as committed then."""
    log = filled(disk())
    put(log, keyed((b"a", b"good")))
    put(log, transactional(0, b"a", b"aborted"))
    log.append_as_leader(marker(5, commit=False), now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)
    log.roll(NOW)
    compact(log)
    log.advance_high_watermark(log.log_end_offset)
    aborted = log.read(0, 1 << 20, Isolation.TXN_COMMITTED).aborted
    assert [(entry.first_offset, entry.last_offset) for entry in aborted or ()] == [(1, 2)]
    fill(log, 20, keys=3)
    log.roll(NOW)
    compact(log)
    assert b"aborted" not in values(log)
    assert control_batches(log) == [2]


def test_data_of_an_abort_that_is_not_committed_takes_nothing_away() -> None:
    """A log whose snapshot Kafka wrote has forgotten that this transaction holds the last stable offset back."""
    files = disk()
    log = filled(files)
    put(log, keyed((b"a", b"good")))
    put(log, transactional(0, b"a", b"aborted"))
    log.append_as_leader(marker(5, commit=False), now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)
    log.producers.ended.clear()
    log.close(NOW)
    again = open_log(files, log.config, topic_id=log.topic_id, high_watermark=2)
    again.roll(NOW)
    assert again.last_stable_offset == 2
    compact(again)
    assert b"good" in values(again)


def test_records_that_cannot_be_read_stay() -> None:
    log = open_log(disk(), small())
    broken = batch(b"x" * 30)
    broken[61] = 3
    set_crc(broken)
    put(log, broken)
    fill(log, 20, keys=2)
    log.roll(NOW)
    log.configure(COMPACT)
    compact(log)
    assert peek(raw(log)).base_offset == 0
    assert bytes(broken[61:]) in raw(log)


@pytest.mark.parametrize("interfere", ["truncate", "delete", "retention", "append", "roll"])
def test_it_gives_up_when_the_log_changes_under_it(interfere: str) -> None:
    """At every slice: what it leaves is the old log or the new one."""
    for at in range(40):
        files = disk()
        log = filled(files)
        fill(log, 60)
        steps: Iterator[Any] = iter(Compaction(log, NOW))
        left = False
        for number, wanted in enumerate(steps):
            if wanted is not None:
                wanted.sync()
            if number == at:
                left = True
                match interfere:
                    case "truncate":
                        log.truncate_to(30, now=NOW)
                    case "delete":
                        log.delete()
                    case "retention":
                        log.delete_records_before(20)
                        delete_old_segments(log, NOW)
                    case "append":
                        put(log, keyed((b"key-0", b"meanwhile")))
                    case _:
                        log.roll(NOW)
        if not left:
            assert at > 3
            return
        if interfere == "delete":
            assert not [name for name in files.files() if name.startswith("/data/t-0")]
            continue
        log.check()
        expected = table(log)
        assert not any(name.endswith((".swap", ".cleaned")) for name in files.listdir(DIRECTORY))
        again = open_log(files, COMPACT, clean_shutdown=False)
        assert table(again) == expected


@pytest.mark.parametrize("replaced", [True, False])
def test_a_damaged_swap_file_takes_the_place_of_nothing_that_is_there(replaced: bool) -> None:
    """`replaced`: the kill came when the old segment was gone already, so that the damage can only be reported."""
    files = disk()
    log = filled(files)
    fill(log, 60)
    compact(log)
    expected = table(log)
    segment = f"{log.segments[0].path}.log"
    octets = bytearray(files.read_bytes(segment))
    octets[-1] ^= 1
    files.write_atomically(f"{segment}.swap", bytes(octets))
    if replaced:
        files.unlink(segment)
    again = open_log(files, COMPACT, clean_shutdown=False, recovery_point=60)
    assert not any(".swap" in name for name in files.listdir(DIRECTORY))
    if replaced:
        assert What.DAMAGED in [finding.what for finding in again.found.findings]
        assert again.found.damaged_from is not None
    else:
        assert again.found.is_complete
        assert table(again) == expected


def test_an_abandoned_compaction_leaves_no_files() -> None:
    files = disk()
    log = filled(files)
    fill(log, 60)
    steps = iter(Compaction(log, NOW))
    for _ in range(6):
        next(steps)
    del steps
    assert not any(name.endswith((".swap", ".cleaned")) for name in files.listdir(DIRECTORY))
    compact(log)


def test_a_full_disk_ends_it_and_the_log_goes_on() -> None:
    files = disk()
    log = filled(files)
    fill(log, 60)
    expected = table(log)
    files.capacity = files.used + 300
    with pytest.raises(OSError, match="No space"):
        compact(log)
    assert log.failed is None
    assert table(log) == expected
    assert not any(name.endswith((".swap", ".cleaned")) for name in files.listdir(DIRECTORY))
    files.capacity = None
    compact(log)
    assert table(log) == expected


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_at_every_step(seed: int) -> None:
    """With aborted data, tombstones and several groups; what is found later is what a reader knew before."""
    fuse = 1
    while True:
        files = disk(seed * 1000 + fuse)
        log = filled(files)
        fill(log, 40)
        put(log, transactional(0, b"key-0", b"aborted"))
        put(log, marker(5, commit=False), origin=Origin.COORDINATOR)
        put(log, keyed((b"key-3", None)))
        fill(log, 10, keys=2)
        log.roll(NOW)
        log.flush()
        committed = log.read(0, 1, Isolation.TXN_COMMITTED).last_stable_offset
        aborted = {b"aborted"}
        expected = {key: value for key, value in table(log).items() if value not in aborted}
        end = log.log_end_offset
        files.fuse = fuse
        try:
            compact(log, NOW + 5)
        except PowerCut:
            pass
        else:
            assert fuse > 20
            return
        files.crash()
        for again_seed in range(2):
            found = open_log(
                files.clone(random.Random(again_seed)),
                COMPACT,
                clean_shutdown=False,
                same_boot=False,
                recovery_point=end,
            )
            assert found.log_end_offset == end
            assert found.last_stable_offset == committed
            now_found = {key: value for key, value in table(found).items() if value not in aborted}
            assert now_found == expected, fuse
            ends = [segment.next_offset() for segment in found.segments[:-1]]
            assert ends == found.bases[1:]
        fuse += 1


KEYS = st.binary(min_size=0, max_size=2) | st.sampled_from([b"k" * 40, b"k" * 41])
BATCHES = st.lists(
    st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=30)), min_size=1, max_size=5), min_size=1, max_size=40
)


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.integers(1, 40), st.integers(1, 3), st.sampled_from(["none", "zstd"]))
def test_against_a_dictionary(
    batches: list[list[tuple[bytes, bytes | None]]], room: int, rounds: int, codec: str
) -> None:
    log = filled(disk())
    written: dict[int, tuple[bytes, bytes | None]] = {}
    last: dict[bytes, int] = {}
    share = max(1, len(batches) // rounds)
    for start in range(0, len(batches), share):
        for pairs in batches[start : start + share]:
            base = put(log, keyed(*pairs, at=NOW, compression=codec))
            for at, (key, value) in enumerate(pairs):
                written[base + at] = (key, value)
                last[key] = base + at
        compact(log, NOW, map_bytes_max=200 * room)
        found = {record.offset: (record.key, record.value) for record in records(log)}
        assert all(written[offset] == pair for offset, pair in found.items())
        for key, offset in last.items():
            assert found[offset] == written[offset], (key, offset)
    if room == 40 and log.active is not None:
        clean = [record for record in records(log) if record.offset < (log.segments.cleaned_to or 0)]
        assert len(clean) == len({record.key for record in clean})
