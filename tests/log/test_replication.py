"""The follower's append path, isolation levels, and the last stable offset."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.log.answers import DamagedLogError, DivergingOffsetError, Isolation, Origin
from ottla.log.log import Log
from ottla.log.recovery.found import What
from ottla.protocol.records import iter_batches, set_crc
from ottla.sim.kernel.disk import Disk, PowerCut
from tests.harness.log.support import DIRECTORY, NOW, batch, disk, maintain, marker, open_log, put, raw, small, values


def transactional(producer_id: int, sequence: int, *payload: bytes, epoch: int = 0) -> memoryview:
    return batch(*payload, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, transactional=True)


STEPS = st.lists(
    st.sampled_from(["plain", "idempotent", "transaction", "commit", "abort", "epoch", "roll"]), min_size=1, max_size=40
)


def play(log: Log, steps: list[str]) -> None:
    epoch, sequences, open_transaction = 0, {1: 0, 2: 0}, False
    for number, step in enumerate(steps):
        match step:
            case "plain":
                put(log, batch(b"%d" % number, b"x"), epoch=epoch)
            case "idempotent":
                put(
                    log,
                    batch(b"%d" % number, producer_id=1, producer_epoch=0, base_sequence=sequences[1]),
                    epoch=epoch,
                )
                sequences[1] += 1
            case "transaction":
                put(log, transactional(2, sequences[2], b"%d" % number), epoch=epoch)
                sequences[2] += 1
                open_transaction = True
            case "commit" | "abort":
                put(log, marker(2, commit=step == "commit"), origin=Origin.COORDINATOR, epoch=epoch)
                open_transaction = False
            case "epoch":
                epoch += 1
            case _:
                log.roll(NOW)
    assert (log.last_stable_offset < log.log_end_offset) == open_transaction


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(80, 900))
def test_a_follower_becomes_the_leader_byte_for_byte(steps: list[str], fetched: int) -> None:
    leader = open_log(disk(), small())
    play(leader, steps)
    follower = open_log(disk(), small())
    while follower.log_end_offset < leader.log_end_offset:
        result = leader.read(follower.log_end_offset, fetched, Isolation.LOG_END)
        assert result.slice is not None
        before = follower.log_end_offset
        taken = follower.append_as_follower(memoryview(bytearray(result.slice.read())), now=NOW)
        assert taken is not None
        assert taken.base_offset == before
        follower.advance_high_watermark(min(result.high_watermark, follower.log_end_offset))
        follower.check()
    assert raw(follower) == raw(leader)
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.last_stable_offset == leader.last_stable_offset
    assert follower.producers.encode() == leader.producers.encode()
    assert [entry for segment in follower.segments for entry in segment.txn_index.aborted()] == [
        entry for segment in leader.segments for entry in segment.txn_index.aborted()
    ]


def test_a_follower_stops_before_what_it_should_not_take() -> None:
    leader = open_log(disk())
    for number, epoch in enumerate((0, 0, 1, 1, 2)):
        put(leader, batch(b"%d" % number), epoch=epoch)
    octets = bytearray(raw(leader))
    positions = [position for _, position in iter_batches(octets)]
    follower = open_log(disk())
    assert follower.append_as_follower(memoryview(octets[: positions[1] - 1]), now=NOW) is None
    taken = follower.append_as_follower(memoryview(octets[:-1]), leader_epoch=1, now=NOW)
    assert taken is not None
    assert (taken.base_offset, taken.last_offset) == (0, 3), "the fifth is of an epoch above the one asked with"
    broken = bytearray(octets[positions[4] :])
    broken[-3] ^= 1
    with pytest.raises(DamagedLogError):
        follower.append_as_follower(memoryview(broken), now=NOW)
    assert follower.append_as_follower(memoryview(octets[positions[4] :]), now=NOW) is not None
    assert raw(follower) == octets


def test_a_follower_refuses_what_does_not_continue_its_log() -> None:
    follower = open_log(disk())
    first = batch(b"a", b"b", base_offset=0, partition_leader_epoch=0)
    follower.append_as_follower(first, now=NOW)
    with pytest.raises(DivergingOffsetError):
        follower.append_as_follower(first, now=NOW)
    assert follower.append_as_follower(batch(b"gap", base_offset=7, partition_leader_epoch=0), now=NOW) is not None
    assert follower.log_end_offset == 8


def test_an_empty_follower_restarts_at_a_batch_that_straddles_its_end() -> None:
    follower = open_log(disk())
    follower.truncate_fully_and_start_at(12, now=NOW)
    assert (
        follower.append_as_follower(batch(b"a", b"b", b"c", base_offset=10, partition_leader_epoch=3), now=NOW)
        is not None
    )
    assert (follower.log_start_offset, follower.log_end_offset) == (10, 13)
    assert follower.epochs.entries == [(3, 10)]
    follower.truncate_fully_and_start_at(20, now=NOW)
    with pytest.raises(DivergingOffsetError):
        follower.append_as_follower(batch(b"a", base_offset=10, partition_leader_epoch=3), now=NOW)


def gaps_in(log: Log) -> list[int]:
    """Where records are missing between segments: a power cut may keep a later one of those that were dropped."""
    return [finding.first for finding in log.found.findings if finding.what is What.MIDDLE]


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("offset", [0, 3, 4, 11, 12, 20])
def test_a_log_that_is_emptied_stands_at_its_old_end_or_at_its_new_start(offset: int, power: bool) -> None:
    """However it dies meanwhile: a log that begins anew gives offsets that others had."""
    for step in itertools.count(1):
        done = False
        for seed in range(10):
            files = disk(100 * step + seed)
            log = open_log(files)
            for number in range(12):
                if number in (4, 8):
                    log.roll(NOW)
                put(log, batch(b"%d" % number))
            log.flush()
            files.fuse = step
            try:
                log.truncate_fully_and_start_at(offset, now=NOW)
            except PowerCut:
                done = False
            else:
                done = True
                assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (offset, offset, offset)
            files.crash() if power else files.kill()
            point = log.recovery_point if done else 12
            again = open_log(files, clean_shutdown=False, same_boot=not power, recovery_point=point)
            again.truncate_to(min([again.log_end_offset, *gaps_in(again)]), now=NOW)
            found = [int(value or b"") for value in values(again)]
            assert not (done and found), (step, seed)
            assert again.log_end_offset in {offset, *(number + 1 for number in found[-1:])}, (step, seed)
            assert again.log_end_offset >= min(offset, 12), (step, seed)
            assert found == sorted(found), (step, seed)
        if done:
            return


def test_isolation_levels_see_up_to_their_limit() -> None:
    log = open_log(disk())
    log.append_as_leader(batch(b"0"), now=NOW, leader_epoch=0)
    log.append_as_leader(transactional(2, 0, b"1"), now=NOW, leader_epoch=0)
    log.append_as_leader(batch(b"2"), now=NOW, leader_epoch=0)
    log.append_as_leader(marker(2, commit=False), now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)
    log.append_as_leader(batch(b"4"), now=NOW, leader_epoch=0)
    seen: list[tuple[int, int, int]] = []
    for high_watermark in range(6):
        log.advance_high_watermark(high_watermark)
        result = log.read(0, 1 << 20, Isolation.TXN_COMMITTED)
        reach = [len(raw(log, isolation=isolation)) for isolation in Isolation]
        assert reach[0] >= reach[1] >= reach[2]
        assert result.next_offset == log.last_stable_offset
        seen.append((log.high_watermark, log.last_stable_offset, len(result.aborted or [])))
    assert seen == [(0, 0, 0), (1, 1, 0), (2, 1, 0), (3, 1, 0), (4, 4, 1), (5, 5, 1)]
    result = log.read(0, 1 << 20, Isolation.TXN_COMMITTED)
    assert result.aborted is not None
    assert (result.aborted[0].producer_id, result.aborted[0].first_offset) == (2, 1)
    assert log.read(0, 1 << 20).aborted is None
    assert log.read(4, 1 << 20, Isolation.TXN_COMMITTED).aborted == []
    assert log.read(5, 1 << 20, Isolation.TXN_COMMITTED).aborted == []


def log_with_an_end_that_is_not_committed(files: Disk, *, commit: bool) -> Log:
    """Offsets 0 to 4, of which 1 and 2 are a transaction whose marker stands at 3; up to 2 all is committed."""
    log = open_log(files)
    put(log, batch(b"0"))
    put(log, transactional(2, 0, b"1"))
    log.append_as_leader(transactional(2, 1, b"2"), now=NOW, leader_epoch=0)
    log.append_as_leader(marker(2, commit=commit), now=NOW, leader_epoch=0, origin=Origin.COORDINATOR)
    log.append_as_leader(batch(b"4"), now=NOW, leader_epoch=0)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    return log


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_keeps_in_mind_which_ends_are_not_committed(commit: bool, clean: bool) -> None:
    """Its snapshot of producers stands behind the marker, which another leader may cut off again."""
    files = disk()
    log = log_with_an_end_that_is_not_committed(files, commit=commit)
    if clean:
        log.close(NOW)
    else:
        log.roll(NOW)  # killed behind a snapshot
    again = open_log(files, log.config, topic_id=log.topic_id, clean_shutdown=clean, high_watermark=2)
    assert (again.high_watermark, again.last_stable_offset) == (2, 1)
    assert again.read(0, 1 << 20, Isolation.TXN_COMMITTED).next_offset == 1
    again.advance_high_watermark(3)
    assert again.last_stable_offset == 1
    again.advance_high_watermark(4)
    assert again.last_stable_offset == 4


def test_a_log_that_is_cut_keeps_in_mind_which_ends_are_not_committed() -> None:
    log = log_with_an_end_that_is_not_committed(disk(), commit=True)
    log.roll(NOW)
    log.append_as_leader(batch(b"5"), now=NOW, leader_epoch=0)
    log.truncate_to(5, now=NOW)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    log.advance_high_watermark(5)
    assert log.last_stable_offset == 5


def test_the_high_watermark_only_rises() -> None:
    log = open_log(disk())
    for _ in range(4):
        log.append_as_leader(batch(b"x"), now=NOW, leader_epoch=0)
    assert log.advance_high_watermark(3) is True
    assert log.advance_high_watermark(3) is False
    assert log.advance_high_watermark(2) is False
    with pytest.raises(AssertionError):
        log.advance_high_watermark(5)
    assert log.high_watermark == 3


def test_truncation_takes_state_with_it() -> None:
    log = open_log(disk(), small())
    play(
        log, ["transaction", "abort", "epoch", "idempotent", "plain", "roll", "transaction", "plain", "epoch", "plain"]
    )
    log.flush()
    assert log.last_stable_offset == 5
    log.truncate_to(5, now=NOW)
    assert (log.log_end_offset, log.high_watermark, log.last_stable_offset, log.recovery_point) == (5, 5, 5, 5)
    assert log.epochs.entries == [(0, 0), (1, 2)]
    assert not log.producers.open
    log.truncate_to(1, now=NOW)
    assert log.last_stable_offset == 0, "the transaction is open again without its marker"
    assert log.segments[0].txn_index.aborted() == []
    assert log.epochs.entries == [(0, 0)]
    assert log.end_offset_for(0) == (0, 1)
    assert list(log.producers.entries) == [2]


def test_what_was_truncated_under_a_sync_is_not_promised() -> None:
    log = open_log(disk())
    for _ in range(10):
        put(log, batch(b"x"))
    up_to, files = log.log_end_offset, log.pending_sync()
    log.truncate_to(4, now=NOW)
    for _ in range(10):
        put(log, batch(b"y"))
    for file in files:
        file.sync()
    log.synced(up_to)
    assert log.recovery_point == 4


def test_deleting_records_moves_the_start_and_keeps_producers() -> None:
    log = open_log(disk(), small())
    play(log, ["idempotent"] * 30)
    log.delete_records_before(13)
    assert log.log_start_offset == 13
    assert log.producers.entries[1].last_sequence == 29
    assert log.earliest() == (-1, 13, 0)
    maintain(log, NOW)
    assert log.bases[0] <= 13 < log.bases[1]
    assert values(log, start=13)
    log.delete()
    assert not log.files.exists(DIRECTORY)


def test_corrupt_crc_in_a_control_batch_changes_nothing() -> None:
    log = open_log(disk())
    put(log, transactional(2, 0, b"1"))
    strange = marker(2, commit=True)
    strange[70] = 9  # another control type
    set_crc(strange)
    put(log, strange, origin=Origin.COORDINATOR)
    assert log.last_stable_offset == 0
