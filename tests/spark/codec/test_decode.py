"""The compiled decoder beside its plain twin: the same rows for every batch, and the same refusals of broken bytes."""

from __future__ import annotations

import ctypes
import mmap
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.protocol.records import CorruptRecordsError, Record, UnsupportedMagicError, build_batch, set_crc
from ottla.protocol.records.compression import NAMES
from ottla.protocol.records.control import EndTransactionMarker, build_marker_batch
from ottla.spark.codec import decode as decoder
from ottla.spark.codec.decode import SCHEMA, SCHEMA_WITH_HEADERS, Decoded, decode
from tests.harness.spark.codec.decode_twin import plain_decode

FOREVER = 1 << 62

blocks = st.none() | st.binary(max_size=12) | st.integers(60, 9_000).map(bytes)
header = st.tuples(st.text(max_size=3) | st.just(b"\xff\xc3"), st.none() | st.binary(max_size=4))
times = st.integers(-1, 1 << 43) | st.sampled_from([-(1 << 61), 1 << 61])


@st.composite
def one_batch(draw: st.DrawFn, base_offset: int) -> tuple[bytes, int]:
    """A batch of any kind and the offset behind it."""
    kind = draw(st.sampled_from(["plain", "plain", "transactional", "commit", "abort", "empty"]))
    producer = draw(st.integers(1, 2)) if kind in ("transactional", "commit", "abort") else -1
    if kind in ("commit", "abort"):
        marker = EndTransactionMarker(kind == "commit", 0)
        made = build_marker_batch(
            marker, producer_id=producer, producer_epoch=0, timestamp_ms=1, base_offset=base_offset
        )
        return bytes(made), base_offset + 1
    gaps = draw(st.lists(st.integers(1, 3), max_size=0 if kind == "empty" else 6, min_size=kind != "empty"))
    offsets = [base_offset + sum(gaps[: i + 1]) - 1 for i in range(len(gaps))]
    records = [
        Record(offset, draw(times), draw(blocks), draw(blocks), draw(st.lists(header, max_size=3)))
        for offset in offsets
    ]
    last = (offsets[-1] if offsets else base_offset) + draw(st.integers(0, 2))
    made = build_batch(
        records,
        base_offset=base_offset,
        compression=draw(st.sampled_from(NAMES)),
        producer_id=producer,
        producer_epoch=0 if producer > 0 else -1,
        transactional=kind == "transactional",
        timestamp_type=draw(st.integers(0, 1)),
        last_offset_delta=last - base_offset,
        max_timestamp=draw(times),
        delete_horizon_ms=draw(st.none() | st.integers(0, 1 << 42)),
    )
    return bytes(made), last + 1


@st.composite
def answers(draw: st.DrawFn) -> dict[str, Any]:
    """What `decode` may be called with."""
    parts: list[bytes] = []
    offset = start = draw(st.sampled_from([0, 5, 1 << 40]))
    for _ in range(draw(st.integers(0, 6))):
        made, offset = draw(one_batch(offset + draw(st.integers(0, 2))))
        parts.append(made)
    if parts and draw(st.booleans()):
        parts[-1] = parts[-1][: draw(st.integers(0, len(parts[-1]) - 1))]
    first = start + draw(st.integers(0, 9))
    return {
        "records": b"".join(parts),
        "topic": "t",
        "partition": 7,
        "first": first,
        "until": draw(st.just(FOREVER) | st.integers(0, 20).map(lambda more: first + more)),
        "include_headers": draw(st.booleans()),
        "aborted": draw(st.lists(st.tuples(st.integers(1, 2), st.integers(start, start + 20)), max_size=3)),
        "check_crcs": draw(st.booleans()),
    }


def rows_of(decoded: Decoded) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in decoded.batches:
        batch.validate(full=True)
        plain = batch.set_column(5, "timestamp", batch["timestamp"].cast(pa.int64()))
        rows += plain.to_pylist()
    return rows


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(answers())
def test_the_same_rows_as_the_twin(answer: dict[str, Any]) -> None:
    rows, next_offset = plain_decode(**answer)
    decoded = decode(**answer)
    assert rows_of(decoded) == rows
    assert (decoded.next_offset, decoded.records) == (next_offset, len(rows))
    for batch in decoded.batches:
        assert batch.schema == (SCHEMA_WITH_HEADERS if answer["include_headers"] else SCHEMA)


def at_the_edge(data: bytes) -> memoryview:
    """The bytes in front of a page that may not be read: one byte too far ends the process."""
    pages = -(-max(len(data), 1) // mmap.PAGESIZE)
    room = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    guard = ctypes.c_void_p(address + pages * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(guard, mmap.PAGESIZE, 0) == 0
    start = pages * mmap.PAGESIZE - len(data)
    view = memoryview(room)[start : start + len(data)]
    view[:] = data
    return view


def outcome(how: Any, answer: dict[str, Any]) -> Any:
    try:
        return how(**answer)
    except CorruptRecordsError:
        return None


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(answers(), st.data())
def test_broken_bytes_are_refused_where_the_twin_refuses_them(answer: dict[str, Any], data: st.DataObject) -> None:
    broken = bytearray(answer["records"])
    for _ in range(data.draw(st.integers(1, 3))):
        if broken:
            place = data.draw(st.integers(0, len(broken) - 1))
            broken[place] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 127, 128, 255]))
    answer |= {"records": bytes(broken), "first": 0, "until": FOREVER, "include_headers": True, "check_crcs": False}
    expected = outcome(plain_decode, answer)
    answer["records"] = at_the_edge(answer["records"])
    decoded = outcome(decode, answer)
    if expected is None:
        assert decoded is None
    else:
        assert decoded is not None
        assert (rows_of(decoded), decoded.next_offset) == expected
    answer |= {"first": 3, "until": 9, "include_headers": False}  # what nobody asked for is not looked at so closely
    outcome(decode, answer)


def test_nothing_asked_nothing_given() -> None:
    decoded = decode(b"", topic="t", partition=0, first=5, until=9)
    assert decoded == Decoded([], 5, 0)


def test_a_large_batch_comes_in_parts() -> None:
    count = 150_000
    made = bytes(build_batch([Record(value=b"%d" % i, timestamp_ms=i) for i in range(count)], compression="lz4"))
    decoded = decode(made, topic="t", partition=0, first=10, until=count - 5, include_headers=True)
    assert [batch.num_rows for batch in decoded.batches] == [65_536, 65_536, count - 15 - 2 * 65_536]
    table = pa.Table.from_batches(decoded.batches)
    assert table["offset"].to_pylist() == list(range(10, count - 5))
    assert table["value"].to_pylist() == [b"%d" % i for i in range(10, count - 5)]
    assert table["topic"].unique().to_pylist() == ["t"]


def test_groups_and_tables_are_cut_where_they_are_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "BODIES_MAX_BYTES", 1_000)
    monkeypatch.setattr(decoder, "BATCHES_MAX", 3)
    made = [build_batch([Record(value=bytes(300))] * 2, base_offset=2 * i, compression=NAMES[i % 5]) for i in range(10)]
    answer = {"records": b"".join(map(bytes, made)), "topic": "t", "partition": 0, "first": 0, "until": FOREVER}
    decoded = decode(**answer)
    assert (rows_of(decoded), decoded.next_offset) == plain_decode(**answer)
    assert len(decoded.batches) > 4


def test_many_headers_find_room() -> None:
    headers = [(f"name-{i}", None if i % 3 else b"%d" % i) for i in range(1_000)]
    made = bytes(build_batch([Record(headers=headers), Record()]))
    (batch,) = decode(made, topic="t", partition=0, first=0, until=2, include_headers=True).batches
    assert batch["headers"].to_pylist() == [[{"key": k, "value": v} for k, v in headers], None]


def patched(made: bytearray, at: int, layout: str, value: int, crc: bool = True) -> bytes:
    struct.pack_into(layout, made, at, value)
    if crc:
        set_crc(made)
    return bytes(made)


@pytest.mark.parametrize(
    ("at", "layout", "value", "says"),
    [
        (0, ">q", -4, "range of offsets"),
        (8, ">i", 20, "shorter than its own header"),
        (23, ">i", -2, "range of offsets"),
        (57, ">i", -1, "range of offsets"),
        (57, ">i", 3, "range of offsets"),
        (57, ">i", 1, "bytes behind the last record"),
        (21, ">h", 7, "no compression codec 7"),
        (21, ">h", 2, "snappy"),
        (61, "B", 0x7E, "does not end where it says"),
        (61, "B", 0x13, "does not end where it says"),
        (64, "B", 8, "offset"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(at: int, layout: str, value: int, says: str) -> None:
    made = build_batch([Record(value=b"abc"), Record(value=b"def")], base_offset=40)
    broken = patched(made, at, layout, value)
    with pytest.raises(CorruptRecordsError, match=says) as failure:
        decode(broken, topic="clicks", partition=3, first=40, until=FOREVER)
    place = -4 if at == 0 else 40
    assert f"topic clicks, partition 3, batch at offset {place}: " in str(failure.value)


def test_more_records_than_bytes_can_hold() -> None:
    made = build_batch([Record()], base_offset=40, last_offset_delta=1 << 30)
    with pytest.raises(CorruptRecordsError, match="1073741824 records in 7 bytes cannot be"):
        decode(patched(made, 57, ">i", 1 << 30), topic="t", partition=0, first=0, until=FOREVER)


@pytest.mark.parametrize("magic", [0, 1, 3])
def test_other_formats_are_refused(magic: int) -> None:
    made = patched(build_batch([Record()], base_offset=9), 16, "B", magic, crc=False)
    says = f"topic t, partition 0, batch at offset 9: message format {magic} is not supported, only format 2 is"
    with pytest.raises(UnsupportedMagicError, match=says):
        decode(made, topic="t", partition=0, first=0, until=FOREVER)


def test_checksums_are_held_only_when_asked() -> None:
    made = build_batch([Record(value=b"abc")], base_offset=9)
    made[-2] ^= 1
    assert decode(bytes(made), topic="t", partition=0, first=0, until=FOREVER).records == 1
    with pytest.raises(CorruptRecordsError, match="batch at offset 9: the checksum does not match"):
        decode(bytes(made), topic="t", partition=0, first=0, until=FOREVER, check_crcs=True)


def test_any_kind_of_bytes_will_do() -> None:
    made = build_batch([Record(value=b"abc")])
    for kind in (bytes, bytearray, memoryview):
        assert decode(kind(made), topic="t", partition=0, first=0, until=1).batches[0]["value"].to_pylist() == [b"abc"]
