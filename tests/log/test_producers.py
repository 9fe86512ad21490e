"""Producer state: what may be appended, what is a duplicate, and the snapshot's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.log.answers import AppendRefusedError
from ottla.log.producers import ProducerState, SnapshotUnreadableError, decode_snapshot
from ottla.protocol.errors import ErrorCode

DAY = 86_400_000
MAX = 2**31 - 1


def state() -> ProducerState:
    return ProducerState(DAY)


def refused(known: ProducerState, epoch: int, first: int, **how: bool) -> ErrorCode | None:
    given = {"transactional": False, "client": True, **how}
    try:
        known.verify(7, epoch, first, **given)
    except AppendRefusedError as refusal:
        return refusal.error_code
    return None


@pytest.mark.parametrize(
    ("epoch", "first", "code"),
    [
        (5, 10, None),
        (5, 9, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (5, 11, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (5, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (6, 0, None),
        (6, 10, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        (4, 10, ErrorCode.INVALID_PRODUCER_EPOCH),
        (4, 0, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_what_follows_sequence_nine_of_epoch_five(epoch: int, first: int, code: ErrorCode | None) -> None:
    known = state()
    known.add(7, 5, 0, 100, 109, 1, transactional=False)
    assert refused(known, epoch, first) == code


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert refused(state(), 3, 4711) is None


def test_coordinators_are_held_to_the_epoch_only() -> None:
    known = state()
    known.add(7, 5, 0, 100, 109, 1, transactional=False)
    assert refused(known, 5, -1, client=False) is None
    assert refused(known, 4, -1, client=False) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_after_the_last_sequence_comes_zero() -> None:
    known = state()
    known.add(7, 0, MAX - 1, 0, 1, 1, transactional=False)
    assert known.entries[7].last_sequence == MAX
    assert refused(known, 0, 0) is None
    assert refused(known, 0, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    known.add(7, 0, 0, 2, 2, 1, transactional=False)
    known.add(7, 0, 1, 3, 3, 1, transactional=False)
    assert known.find_duplicate(7, 0, MAX - 1, 1) is not None


def test_the_last_five_batches_are_recognised() -> None:
    known = state()
    for number in range(7):
        known.add(7, 0, number * 10, number * 10, number * 10 + 9, 1000 + number, transactional=False)
    for number in range(7):
        found = known.find_duplicate(7, 0, number * 10, 9)
        assert (found is not None) == (number >= 2)
        if found is not None:
            assert (found.first_offset, found.last_offset, found.timestamp) == (
                number * 10,
                number * 10 + 9,
                1000 + number,
            )
    assert known.find_duplicate(7, 0, 30, 8) is None
    assert known.find_duplicate(7, 1, 30, 9) is None
    known.add(7, 1, 0, 70, 70, 1, transactional=False)
    assert known.find_duplicate(7, 0, 60, 9) is None, "a new epoch forgets the batches of the old one"


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    known = state()
    known.add(7, 0, 0, 100, 109, 1, transactional=True)
    assert refused(known, 0, 10) == ErrorCode.INVALID_TXN_STATE
    assert refused(known, 0, 10, transactional=True) is None


@pytest.mark.parametrize(
    ("version", "epoch", "coordinator_epoch", "code"),
    [
        (0, 5, 3, None),
        (0, 6, 3, None),
        (0, 4, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (0, 5, 2, ErrorCode.TRANSACTION_COORDINATOR_FENCED),
        (2, 5, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (2, 6, 3, None),
    ],
)
def test_markers_of_an_open_transaction(
    version: int, epoch: int, coordinator_epoch: int, code: ErrorCode | None
) -> None:
    known = state()
    known.add(7, 5, 0, 1, 1, 1, transactional=True)
    ended = known.end_transaction(7, 5, 3, 2, 1, aborted=False)
    assert ended is not None
    known.complete(ended)
    known.add(7, 5, 1, 3, 3, 1, transactional=True)
    found = None
    try:
        known.verify_marker(7, epoch, coordinator_epoch, transaction_version=version)
    except AppendRefusedError as refusal:
        found = refusal.error_code
    assert found == code


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (-1, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (-1, -1, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (8, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
        (8, -2, ErrorCode.INVALID_PRODUCER_EPOCH),
        (7, -1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_marker_is_of_a_producer_in_an_epoch(producer_id: int, epoch: int, code: ErrorCode) -> None:
    known = state()
    known.add(7, 5, 0, 1, 1, 1, transactional=True)
    with pytest.raises(AppendRefusedError) as refusal:
        known.verify_marker(producer_id, epoch, 0)
    assert refusal.value.error_code is code


def test_a_repeated_marker_of_version_two_passes_with_nothing_open() -> None:
    known = state()
    known.end_transaction(7, 5, 3, 2, 1, aborted=False)
    known.verify_marker(7, 5, 3, transaction_version=2)


def test_the_first_unstable_offset_follows_transactions_and_the_high_watermark() -> None:
    known = state()
    assert known.first_unstable_offset is None
    known.add(1, 0, 0, 10, 10, 1, transactional=True)
    known.add(2, 0, 0, 11, 11, 1, transactional=True)
    assert known.first_unstable_offset == 10
    ended = known.end_transaction(1, 0, 0, 12, 1, aborted=True)
    assert ended is not None
    assert known.last_stable_offset_after(ended) == 11
    known.complete(ended)
    assert known.first_unstable_offset == 10, "the marker is not replicated yet"
    known.high_watermark_moved(12)
    assert known.first_unstable_offset == 10
    known.high_watermark_moved(13)
    assert known.first_unstable_offset == 11
    ended = known.end_transaction(2, 0, 0, 13, 1, aborted=False)
    assert ended is not None
    assert known.last_stable_offset_after(ended) == 14
    known.complete(ended)
    known.high_watermark_moved(14)
    assert known.first_unstable_offset is None
    known.check()


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    known = state()
    known.add(1, 0, 0, 0, 0, 1000, transactional=False)
    known.add(2, 0, 0, 1, 1, 1000, transactional=True)
    known.add(3, 0, 0, 2, 2, 2000, transactional=False)
    assert known.expire(1000 + DAY - 1) == 0
    assert known.expire(1000 + DAY) == 1
    assert sorted(known.entries) == [2, 3]


def test_the_snapshot_is_kafkas() -> None:
    known = state()
    known.add(0x0102, 3, 40, 500, 509, 0x0A0B, transactional=True)
    snapshot = known.encode()
    assert snapshot[:2].hex() == "0001"
    assert snapshot[6:].hex(" ") == " ".join(
        (
            "00 00 00 01",
            "00 00 00 00 00 00 01 02",
            "00 03",
            "00 00 00 31",
            "00 00 00 00 00 00 01 fd",
            "00 00 00 09",
            "00 00 00 00 00 00 0a 0b",
            "ff ff ff ff",
            "00 00 00 00 00 00 01 f4",
        )
    )


ENTRIES = st.dictionaries(
    st.integers(0, 2**63 - 1),
    st.tuples(st.integers(0, 2**15 - 1), st.integers(0, MAX), st.integers(0, 200), st.booleans(), st.booleans()),
    max_size=8,
)


@given(ENTRIES)
def test_a_snapshot_brings_the_last_batch_back(entries: dict[int, tuple[int, int, int, bool, bool]]) -> None:
    known = state()
    offset = 0
    for producer_id, (epoch, first, delta, transactional, only_marker) in entries.items():
        if only_marker:
            known.end_transaction(producer_id, epoch, 2, offset, 1000, aborted=False)
        else:
            known.add(producer_id, epoch, first, offset, offset + delta, 1000, transactional=transactional)
        offset += delta + 1
    again = state()
    again.restore(known.encode(), offset, 1000)
    again.check()
    assert again.open == known.open
    assert again.encode() == known.encode()
    for producer_id, entry in known.entries.items():
        other = again.entries[producer_id]
        assert (other.last_sequence, other.last_data_offset, other.epoch) == (
            entry.last_sequence,
            entry.last_data_offset,
            entry.epoch,
        )
        if entry.batches:
            assert other.batches[-1] == entry.batches[-1]


def test_restoring_leaves_expired_producers_out() -> None:
    known = state()
    known.add(1, 0, 0, 0, 0, 1000, transactional=False)
    known.add(2, 0, 0, 1, 1, 1000, transactional=True)
    again = state()
    again.restore(known.encode(), 2, 1000 + DAY)
    assert list(again.entries) == [2]


@given(st.integers(0, 200), st.integers(1, 255))
def test_damaged_snapshots_are_refused(position: int, flip: int) -> None:
    known = state()
    known.add(1, 0, 0, 0, 0, 1000, transactional=False)
    snapshot = bytearray(known.encode())
    with pytest.raises(SnapshotUnreadableError):
        decode_snapshot(bytes(snapshot[: position % len(snapshot)]))
    snapshot[position % len(snapshot)] ^= flip
    with pytest.raises(SnapshotUnreadableError):
        decode_snapshot(bytes(snapshot))
