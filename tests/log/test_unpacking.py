"""What a small batch may make the broker unpack is bounded, and a refusal says which error it is."""

import struct

import pytest

from ottla.log.answers import AppendRefusedError, Origin
from ottla.log.config import LogConfig
from ottla.log.validation import RECORDS_NAMED_MAX, prepare_batch
from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import MAX_TIMESTAMP_AT, set_crc
from ottla.protocol.records.compression import UNPACKED_BYTES_MAX
from ottla.protocol.records.errors import TooManyPartsError
from ottla.protocol.records.outline import RECORDS_A_SLICE, outline_in_slices
from ottla.protocol.records.record import PARTS_MAX, Record, build_batch, decode_records
from tests.harness.log.support import disk, open_log, put

NOW = WallMillis(1_700_000_000_000)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_batch_that_unpacks_to_too_much_is_too_large(compression: str) -> None:
    batch = build_batch([Record(-1, NOW, b"k", bytes(UNPACKED_BYTES_MAX))], compression=compression)
    assert len(batch) < 1 << 20
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(AppendRefusedError, match="unpack to more than") as refused:
        prepare_batch(memoryview(bytearray(batch)), config, NOW, Origin.CLIENT)
    assert refused.value.error_code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_large_batch_of_another_time_is_refused_by_its_header() -> None:
    batch = bytearray(build_batch([Record(-1, 5 * NOW, None, None)] * (RECORDS_NAMED_MAX + 1), compression="zstd"))
    with pytest.raises(AppendRefusedError, match="The batch's timestamp") as refused:
        prepare_batch(memoryview(batch), LogConfig(), NOW, Origin.CLIENT)
    assert refused.value.error_code is ErrorCode.INVALID_TIMESTAMP


COMPACTED = LogConfig(cleanup_policy=frozenset({"compact"}))
RECOMPRESSED = LogConfig(compression_type="gzip")


@pytest.mark.parametrize("config", [COMPACTED, RECOMPRESSED], ids=["compacted", "recompressed"])
@pytest.mark.parametrize(("records", "headers"), [(PARTS_MAX + 1, 0), (1, PARTS_MAX), (3, PARTS_MAX // 3)])
def test_no_more_records_and_headers_are_looked_at_than_are_worth_it(
    config: LogConfig, records: int, headers: int
) -> None:
    record = Record(-1, NOW, b"k", None, [("h", None)] * headers)
    batch = build_batch([record] * records, compression="zstd")
    with pytest.raises(AppendRefusedError) as refused:
        prepare_batch(memoryview(batch), config, NOW, Origin.CLIENT)
    assert refused.value.error_code is ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(TooManyPartsError):
        decode_records(batch, parts_max=PARTS_MAX)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_recompressed_batch_has_the_same_records(compression: str) -> None:
    records = [
        Record(-1, NOW + 977 * (i % 7), None if i % 3 else b"k" * (i % 200), b"v" * i, [("h", b"x" * i)] * (i % 3))
        for i in range(300)
    ]
    batch = build_batch(records, compression=compression, producer_id=5, producer_epoch=1, base_sequence=9)
    prepared = prepare_batch(memoryview(batch), RECOMPRESSED, NOW, Origin.CLIENT)
    again = build_batch(records, compression="gzip", producer_id=5, producer_epoch=1, base_sequence=9)
    assert decode_records(prepared) == decode_records(again)
    assert prepared[8:61] == memoryview(again)[8:61]


def test_an_outline_says_what_the_records_say() -> None:
    times = [0, 5, -3, 1 << 40, 127, 128, 8191, 8192]
    records = [
        Record(-1, NOW + times[i % 8], None if i % 5 == 0 else bytes(i % 300), bytes(2 * (i % 200)))
        for i in range(9_000)
    ]
    plain = bytes(build_batch(records)[61:])
    slices, count = outline_in_slices(plain, len(records)), 1
    try:
        while True:
            next(slices)
            count += 1
    except StopIteration as done:
        timestamps, keyless = done.value
    assert count == -(-len(records) // RECORDS_A_SLICE)
    assert [NOW + delta for delta in timestamps] == [record.timestamp_ms for record in records]
    assert keyless == list(range(0, 9_000, 5))


@pytest.mark.parametrize(("field", "value"), [("timestamp", 1 << 62), ("offset", 1 << 30)])
def test_a_record_that_its_header_does_not_allow_is_not_found_by_time(field: str, value: int) -> None:
    """No answer can hold such a number, perhaps."""
    log = open_log(disk())
    odd = Record(0 if field == "timestamp" else value, NOW + (value if field == "timestamp" else 0), b"k", None)
    batch = build_batch([odd, Record(odd.offset + 1, NOW, b"k", None)])
    struct.pack_into(">i", batch, 23, 1)
    struct.pack_into(">q", batch, MAX_TIMESTAMP_AT, NOW)
    set_crc(batch)
    put(log, memoryview(batch))
    assert log.offset_for_timestamp(NOW) == (NOW, 0, 0)
