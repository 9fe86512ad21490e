"""Record batches against Kafka's own bytes, kafka-python and aiokafka; damaged ones; bounds on memory."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from ottla.protocol.records import (
    CorruptRecordsError,
    Record,
    TooManyBytesError,
    UnsupportedMagicError,
    build_batch,
    crc_of,
    decode_records,
    has_valid_crc,
    iter_batches,
    magic_of,
    peek,
    set_crc,
    stamp,
    stamp_log_append_time,
)
from ottla.protocol.records.batch import LOG_APPEND_TIME, NO_TIMESTAMP
from ottla.protocol.records.compression import CODECS, NAMES, compress, decompress
from ottla.protocol.records.control import (
    EndTransactionMarker,
    build_marker_batch,
    control_type,
    decode_marker,
    usual_marker,
)

GOLDEN = {
    line.split()[0]: bytes.fromhex(line.split()[1])
    for line in (Path(__file__).parent / "golden" / "record_batches.txt").read_text().splitlines()
    if not line.startswith("#")
}
START = 1700000000000


def five_records(append_time: int | None = None) -> list[Record]:
    """The records in the golden batches."""
    return [
        Record(
            100 + i,
            append_time or START + i * 1000 - (9999 if i == 4 else 0),
            None if i == 1 else f"key-{i}".encode(),
            None if i == 2 else f"value-{i}".encode() * 30,
            [("h1", b"x"), ("héader", None)] if i == 3 else [],
        )
        for i in range(5)
    ]


class TestKafkasOwnBytes:
    @pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith(("plain", "transactional"))])
    def test_are_read(self, name: str) -> None:
        batch = GOLDEN[name]
        header = peek(batch)
        assert has_valid_crc(batch, 0, header)
        assert header.compression == CODECS[name.split("-")[0]]
        assert header.size_in_bytes == len(batch)
        assert (header.base_offset, header.last_offset, header.next_offset, header.record_count) == (100, 104, 105, 5)
        assert decode_records(memoryview(batch)) == five_records()
        if name.endswith("transactional"):
            assert header.is_transactional
            assert not header.is_control
            assert (header.producer_id, header.producer_epoch, header.partition_leader_epoch) == (4242, 7, 3)
            assert (header.base_sequence, header.last_sequence) == (2147483646, 2)
        else:
            assert not header.has_producer_id
            assert header.last_sequence == -1

    @pytest.mark.parametrize("name", [name for name in GOLDEN if name.endswith("large")])
    def test_are_read_when_they_span_blocks(self, name: str) -> None:
        (record,) = decode_records(GOLDEN[name])
        assert record.value == b"large " * 15000

    def test_are_written_plain(self) -> None:
        assert build_batch(five_records(), base_offset=100) == GOLDEN["none-plain"]

    def test_are_written_transactional(self) -> None:
        written = build_batch(
            five_records(),
            base_offset=100,
            producer_id=4242,
            producer_epoch=7,
            base_sequence=2147483646,
            transactional=True,
            partition_leader_epoch=3,
        )
        assert written == GOLDEN["none-transactional"]

    def test_log_append_time_is_every_records_time(self) -> None:
        batch = GOLDEN["none-append-time"]
        assert peek(batch).timestamp_type == LOG_APPEND_TIME
        assert decode_records(batch) == five_records(append_time=1800000000000)
        stamped = bytearray(GOLDEN["none-plain"])
        stamp_log_append_time(stamped, 0, 1800000000000)
        assert stamped == batch

    @pytest.mark.parametrize("committed", [True, False])
    def test_markers(self, committed: bool) -> None:
        batch = GOLDEN["marker-commit" if committed else "marker-abort"]
        marker = EndTransactionMarker(committed, 9)
        written = build_marker_batch(
            marker,
            producer_id=4242,
            producer_epoch=7,
            timestamp_ms=1700000000123,
            base_offset=50,
            partition_leader_epoch=3,
        )
        assert written == batch
        assert peek(batch).is_control
        (record,) = decode_records(batch)
        assert decode_marker(record) == marker
        assert usual_marker(batch) == marker

    def test_a_marker_of_another_shape_is_left_to_who_reads_records(self) -> None:
        batch = GOLDEN["marker-commit"]
        assert usual_marker(batch + b"\0") is None
        for at in (*range(61, 73), 77):  # all but the type's lower byte and the epoch
            strange = bytearray(batch)
            strange[at] ^= 1
            assert (usual_marker(strange) is None) == (at != 69), at

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_recognised_and_refused(self, magic: int) -> None:
        message_set = GOLDEN[f"magic-{magic}"]
        assert magic_of(message_set) == magic
        with pytest.raises(UnsupportedMagicError) as caught:
            list(iter_batches(message_set))
        assert caught.value.magic == magic
        with pytest.raises(UnsupportedMagicError):
            decode_records(message_set)


records_of = st.lists(
    st.builds(
        Record,
        timestamp_ms=st.integers(0, 2**45),
        key=st.none() | st.binary(max_size=200),
        value=st.none() | st.binary(max_size=200),
        headers=st.lists(
            st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.none() | st.binary(max_size=5)), max_size=2
        ),
    ),
    min_size=1,
    max_size=5,
)


def with_offsets(records: list[Record], base_offset: int) -> list[Record]:
    return [Record(base_offset + n, r.timestamp_ms, r.key, r.value, list(r.headers)) for n, r in enumerate(records)]


@settings(max_examples=30, deadline=None)
@given(records_of, st.sampled_from(NAMES), st.integers(0, 2**50))
def test_what_is_written_is_read_by_us_and_by_aiokafka(records: list[Record], codec: str, base_offset: int) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    assert decode_records(memoryview(b"before" + batch + b"behind"), 6) == with_offsets(records, base_offset)
    assert has_valid_crc(batch, 0, peek(batch))
    theirs = AiokafkaBatch(bytes(batch))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        (r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in with_offsets(records, base_offset)
    ]


@settings(max_examples=30, deadline=None)
@given(records_of, st.sampled_from(NAMES))
def test_what_aiokafka_writes_is_read(records: list[Record], codec: str) -> None:
    builder = AiokafkaBuilder(
        magic=2,
        compression_type=CODECS[codec],
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for n, r in enumerate(records):
        builder.append(n, timestamp=r.timestamp_ms, key=r.key, value=r.value, headers=list(r.headers))
    batch = bytes(builder.build())
    assert has_valid_crc(batch, 0, peek(batch))
    assert decode_records(batch) == with_offsets(records, 0)


@settings(max_examples=30, deadline=None)
@given(records_of, st.sampled_from(["none", "gzip"]))
def test_kafka_python_agrees_both_ways(records: list[Record], codec: str) -> None:
    batch = build_batch(records, compression=codec, producer_id=9, producer_epoch=1, base_sequence=5)
    theirs = KafkaPythonBatch(bytes(batch))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        (r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in with_offsets(records, 0)
    ]
    builder = KafkaPythonBuilder(2, CODECS[codec], False, 9, 1, 5, 1 << 20)
    for n, r in enumerate(records):
        builder.append(n, r.timestamp_ms, r.key, r.value, list(r.headers))
    written = bytes(builder.build())
    assert decode_records(written) == with_offsets(records, 0)
    if codec == "none":
        assert written[16:] == batch[16:]  # it writes 0 for the leader epoch, which is the broker's to fill in


class TestHeaders:
    def test_stamping_leaves_the_crc_valid(self) -> None:
        batch = bytearray(b"xx") + build_batch(five_records(), base_offset=100)
        stamp(batch, 2, 123456789012, 77)
        header = peek(batch, 2)
        assert (header.base_offset, header.partition_leader_epoch) == (123456789012, 77)
        assert has_valid_crc(batch, 2, header)
        assert decode_records(batch, 2)[0].offset == 123456789012

    def test_one_changed_byte_is_seen_by_the_crc(self) -> None:
        batch = build_batch(five_records(), base_offset=100)
        for at in range(21, len(batch)):
            batch[at] ^= 1
            assert not has_valid_crc(batch, 0, peek(batch))
            batch[at] ^= 1
        set_crc(batch)
        assert batch == GOLDEN["none-plain"]

    def test_crc_takes_any_buffer_and_keeps_none(self) -> None:
        data = bytearray(b"xx123456789yy")
        assert crc_of(data, 2, 11) == crc_of(bytes(data), 2, 11) == crc_of(memoryview(data), 2, 11) == 0xE3069283
        data += b"may still grow"

    def test_walking_stops_at_a_partial_tail(self) -> None:
        batch = bytes(build_batch(five_records(), base_offset=100))
        run = batch * 3
        assert [pos for _, pos in iter_batches(run)] == [0, len(batch), 2 * len(batch)]
        assert [pos for _, pos in iter_batches(run, len(batch))] == [len(batch), 2 * len(batch)]
        for cut in range(1, len(batch)):
            assert [pos for _, pos in iter_batches(memoryview(run)[:-cut])] == [0, len(batch)]
        assert list(iter_batches(b"")) == []

    @pytest.mark.parametrize("length", [-1, 0, 48])
    def test_walking_refuses_a_length_no_batch_has(self, length: int) -> None:
        batch = bytearray(GOLDEN["none-plain"])
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        with pytest.raises(CorruptRecordsError):
            list(iter_batches(batch))

    def test_holes_and_a_kept_end_survive_compaction(self) -> None:
        kept = [r for r in five_records() if r.offset in (101, 103)]
        batch = build_batch(kept, base_offset=100, last_offset_delta=4, delete_horizon_ms=START - 5)
        header = peek(batch)
        assert (header.last_offset, header.record_count, header.delete_horizon_ms) == (104, 2, START - 5)
        assert decode_records(batch) == kept

    def test_a_batch_may_have_lost_all_its_records(self) -> None:
        batch = build_batch([], base_offset=100, last_offset_delta=4, producer_id=1, base_sequence=0, compression="lz4")
        header = peek(batch)
        assert (header.last_offset, header.max_timestamp, header.last_sequence) == (104, NO_TIMESTAMP, 4)
        assert has_valid_crc(batch, 0, header)
        assert decode_records(batch) == []
        batch[22] = CODECS["gzip"]
        assert decode_records(batch) == []

    def test_offsets_must_rise(self) -> None:
        with pytest.raises(ValueError, match="does not follow"):
            build_batch([Record(5), Record(5)], base_offset=5)


class TestDamage:
    @pytest.mark.parametrize("name", sorted(GOLDEN))
    def test_damaged_batches_are_read_or_corrupt(self, name: str) -> None:
        dice = random.Random(name)
        good = GOLDEN[name]
        for _ in range(150):
            data = bytearray(good)
            for _ in range(dice.randint(1, 3)):
                data[dice.randrange(len(data))] = dice.choice([0, 1, 127, 128, 255, dice.randrange(256)])
            cut = data[: dice.randrange(len(data))] if dice.random() < 0.2 else data
            for read in (decode_records, lambda view: list(iter_batches(view))):
                with suppress(CorruptRecordsError):
                    read(memoryview(cut))

    @pytest.mark.parametrize("codec", range(1, 8))
    def test_garbage_in_a_codec_is_corrupt(self, codec: int) -> None:
        dice = random.Random(codec)
        for size in (0, 1, 4, 20, 300):
            for junk in (dice.randbytes(size), b"\x82SNAPPY\0" + dice.randbytes(size), b"\xff" * size):
                with pytest.raises(CorruptRecordsError):
                    decompress(codec, junk, 1 << 20)

    @pytest.mark.parametrize(
        ("records", "count"),
        [
            (b"", 1),
            (b"\x0c\0\0\0\1\1\0", 2),  # fewer records than claimed
            (b"\x0c\0\0\0\1\1\0" + b"\x0c\0\0\0\1\1\0", 1),  # more than claimed
            (b"\x0e\0\0\0\1\1\0", 1),  # a record longer than the batch
            (b"\x0b\0\0\0\1\1\0", 1),  # a negative length
            (b"\x0c\0\0\0\x7e\1\0", 1),  # a key longer than the record
            (b"\x0c\0\0\0\1\1\x7e", 1),  # more headers than fit
            (b"\x0c\0\0\0\1\1\1", 1),  # a negative count of headers
            (b"\x10\0\0\0\1\1\2\1\1", 1),  # a header without a key
            (b"\x0c\0\0" + b"\xff" * 11 + b"\1\1\0", 1),  # a varint of eleven bytes
            (b"\x0e\0\0\0\1\1\0\0", 1),  # a record that ends before its length
        ],
    )
    def test_lying_records_are_corrupt(self, records: bytes, count: int) -> None:
        batch = build_batch([Record(-1, 0)])
        data = batch[:61] + records
        data[8:12] = (49 + len(records)).to_bytes(4, "big")
        data[57:61] = count.to_bytes(4, "big")
        with pytest.raises(CorruptRecordsError):
            decode_records(data)

    def test_a_claimed_count_costs_nothing(self) -> None:
        data = bytearray(GOLDEN["none-plain"])
        data[57:61] = b"\x7f\xff\xff\xff"

        def read() -> None:
            with pytest.raises(CorruptRecordsError):
                decode_records(data)

        assert peak_bytes(read) < 100_000

    def test_a_header_key_that_is_no_text_stays_as_it_is(self) -> None:
        records = [Record(0, 5, None, None, [(b"\xff\xfe", b"x")])]
        batch = build_batch(records)
        assert decode_records(batch) == records
        assert build_batch(decode_records(batch)) == batch


def peak_bytes(act: Any) -> int:
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class TestCompression:
    @pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
    def test_unpacking_stops_at_the_bound(self, codec: str) -> None:
        bomb = compress(CODECS[codec], bytes(32 << 20))
        bound = 1 << 20

        def unpack() -> None:
            with pytest.raises(TooManyBytesError):
                decompress(CODECS[codec], bomb, bound)

        assert peak_bytes(unpack) < 4 * bound

    @pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
    @pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 300_000])
    def test_the_bound_itself_may_be_filled(self, codec: str, size: int) -> None:
        plain = random.Random(size).randbytes(size // 2) + bytes(size - size // 2)
        packed = compress(CODECS[codec], plain)
        assert decompress(CODECS[codec], packed, size) == plain
        if size and codec != "none":
            with pytest.raises(TooManyBytesError):
                decompress(CODECS[codec], packed, size - 1)

    def test_snappy_may_not_claim_more_than_the_bound(self) -> None:
        claim = b"\xff\xff\xff\xff\x0f" + bytes(10)  # 4 GiB, raw
        for block in (claim, b"\x82SNAPPY\0" + bytes(7) + b"\x01" + len(claim).to_bytes(4, "big") + claim):
            with pytest.raises(TooManyBytesError):
                decompress(CODECS["snappy"], block, 1 << 20)

    def test_lz4_blocks_are_independent(self) -> None:
        """Kafka's Java reader refuses linked ones, whatever other readers do."""
        plain = random.Random(1).randbytes(100_000) + bytes(100_000)
        for level in (None, 9):
            packed = compress(CODECS["lz4"], plain, level)
            assert packed[:7] == GOLDEN["lz4-plain"][61:68]
            assert decompress(CODECS["lz4"], packed) == plain

    def test_raw_snappy_is_read(self) -> None:
        plain = b"some text " * 100
        assert decompress(CODECS["snappy"], bytes(cramjam.snappy.compress_raw(plain))) == plain


class TestControl:
    @pytest.mark.parametrize(
        "record", [Record(), Record(key=b"\0\0\0"), Record(key=b"\xff\xff\0\1"), Record(key=b"\0\0\0\1", value=b"\0\0")]
    )
    def test_broken_markers_are_corrupt(self, record: Record) -> None:
        with pytest.raises(CorruptRecordsError):
            decode_marker(record)

    def test_other_control_records_are_no_marker(self) -> None:
        assert control_type(Record(key=b"\0\0\0\2")) == 2
        assert decode_marker(Record(key=b"\0\0\0\2", value=b"")) is None

    def test_a_later_version_may_append(self) -> None:
        record = Record(key=b"\0\1\0\1more", value=b"\0\1\0\0\0\5more")
        assert decode_marker(record) == EndTransactionMarker(True, 5)
