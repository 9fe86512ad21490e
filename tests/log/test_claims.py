"""How many records a produced batch may claim: as many as its bytes can hold, as Kafka finds by reading them."""

from struct import Struct

import pytest

from ottla.log.answers import AppendRefusedError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import HEADER_BYTES, set_crc
from ottla.protocol.records.record import RECORD_BYTES_MIN, Record, build_batch
from tests.harness.log.support import NOW, disk, open_log, put
from tests.harness.lying_batches import claiming

_int32 = Struct(">i").pack_into


@pytest.mark.parametrize(
    ("count", "body", "codec"),
    [
        (2**31 - 1, b"", 0),
        (2**31 - 1, b"\x05" * 4_300, 0),
        (2**31 - 1, b"\xff" * 100_000, 0),
        (11, bytes(70), 0),
        (2**31 - 1, bytes(70), 4),
        (1_000, bytes(70), 2),
        (1_000_000, bytes(6_999_999), 4),
    ],
)
def test_more_records_than_bytes_can_hold_are_refused(count: int, body: bytes, codec: int) -> None:
    log = open_log(disk())
    with pytest.raises(AppendRefusedError, match=f"reports {count} records in") as refused:
        put(log, memoryview(claiming(count, body, codec=codec, timestamp_ms=NOW)))
    assert refused.value.error_code is ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


def test_broken_compression_with_more_records_than_bytes_is_refused_as_kafka_does() -> None:
    with pytest.raises(AppendRefusedError) as refused:
        put(open_log(disk()), _broken())
    assert refused.value.error_code is ErrorCode.UNKNOWN_SERVER_ERROR


def _broken() -> memoryview:
    batch = claiming(10_000, b"?" * 100, timestamp_ms=NOW)
    batch[22] |= 4
    set_crc(batch)
    return memoryview(batch)


@pytest.mark.parametrize("codec", range(5))
def test_the_smallest_records_are_taken(codec: int) -> None:
    """Seven bytes each; compressed there are more of them than bytes."""
    batch = build_batch([Record(timestamp_ms=NOW) for _ in range(60)], compression=codec)
    if not codec:
        assert len(batch) == HEADER_BYTES + 60 * RECORD_BYTES_MIN
    log = open_log(disk())
    assert put(log, memoryview(batch)) == 0
    many = memoryview(build_batch([Record(timestamp_ms=NOW, value=b"x")] * 20_000, compression="zstd"))
    put(log, many)
    assert log.log_end_offset == 20_060
