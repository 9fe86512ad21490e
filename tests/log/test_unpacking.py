"""What a small batch may make the broker unpack is bounded, and a refusal says which error it is."""

import pytest

from ottla.log.answers import AppendRefused, Origin
from ottla.log.append import RECORDS_NAMED_MAX, prepare_batch
from ottla.log.config import LogConfig
from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.compression import UNPACKED_BYTES_MAX
from ottla.protocol.records.record import Record, build_batch

NOW = WallMillis(1_700_000_000_000)


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_a_batch_that_unpacks_to_too_much_is_too_large(compression: str) -> None:
    batch = build_batch([Record(-1, NOW, b"k", bytes(UNPACKED_BYTES_MAX))], compression=compression)
    assert len(batch) < 1 << 20
    config = LogConfig(cleanup_policy=frozenset({"compact"}))
    with pytest.raises(AppendRefused, match="unpack to more than") as refused:
        prepare_batch(memoryview(bytearray(batch)), config, NOW, Origin.CLIENT)
    assert refused.value.error_code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_large_batch_of_another_time_is_refused_by_its_header() -> None:
    batch = bytearray(build_batch([Record(-1, 5 * NOW, None, None)] * (RECORDS_NAMED_MAX + 1), compression="zstd"))
    with pytest.raises(AppendRefused, match="The batch's timestamp") as refused:
        prepare_batch(memoryview(batch), LogConfig(), NOW, Origin.CLIENT)
    assert refused.value.error_code is ErrorCode.INVALID_TIMESTAMP
