"""The compiled encoder against its plain twin on `ottla.protocol.records`, and against Kafka's own partitioner."""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from ottla.protocol.records import HEADER_BYTES, Record, build_batch, decode_records, has_valid_crc, iter_batches
from ottla.protocol.records.compression import CODECS
from ottla.protocol.records.record import write_record
from ottla.spark.codec.encode import Destination, EncodeOptions, Encoder, WriteRefusedError
from ottla.testing import EmbeddedBroker

TOPICS = {"a": Destination("a", 3, (0, 1, 2), 1_048_588), "b": Destination("b", 2, (1,), 700)}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Row(NamedTuple):
    """One row as the sink gets it."""

    topic: str = "a"
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    partition: int | None = None
    timestamp: int = 0  # microseconds


SCHEMA = {
    "topic": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="Etc/UTC"),
}


def table_of(rows: list[Row], kinds: dict[str, pa.DataType] | None = None) -> pa.Table:
    columns = {}
    for index, (name, kind) in enumerate(SCHEMA.items()):
        column = pa.array([row[index] for row in rows], kind)
        columns[name] = column.cast(kinds[name]) if kinds and name in kinds else column
    return pa.table(columns)


class Twin:
    """The encoder, one row at a time."""

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self.sticky: dict[str, list[int]] = {}

    def place(self, row: Row) -> int:
        there = TOPICS[row.topic]
        if row.partition is not None:
            return row.partition
        if row.key is not None:
            return (murmur2(row.key) & 0x7FFFFFFF) % there.partitions
        turn = self.sticky.setdefault(row.topic, [0, 0])
        partition = there.available[turn[0] % len(there.available)]
        turn[1] += len(row.value or b"") + 16
        if turn[1] >= self.batch_bytes:
            turn[:] = turn[0] + 1, 0
        return partition

    def encode(self, rows: list[Row]) -> dict[tuple[str, int], list[bytes]]:
        lanes: dict[tuple[str, int], list[list[Record]]] = {}
        for row in rows:
            where = (row.topic, self.place(row))
            record = Record(-1, row.timestamp // 1000, row.key, row.value, row.headers or ())
            batches = lanes.setdefault(where, [[]])
            if batches[-1] and self.size([*batches[-1], record]) > min(
                self.batch_bytes, TOPICS[row.topic].batch_bytes_max
            ):
                batches.append([])
            batches[-1].append(record)
        return {where: [bytes(build_batch(batch)) for batch in batches] for where, batches in lanes.items()}

    @staticmethod
    def size(records: list[Record]) -> int:
        out = bytearray()
        for delta, record in enumerate(records):
            write_record(out, record, record.timestamp_ms - records[0].timestamp_ms, delta)
        return HEADER_BYTES + len(out)


texts = st.binary(max_size=20) | st.integers(60, 300).map(lambda size: b"x" * size)
rows_of_any_kind = st.lists(
    st.builds(
        Row,
        topic=st.sampled_from(["a", "b"]),
        key=st.none() | texts,
        value=st.none() | texts,
        headers=st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=70)), max_size=3),
        partition=st.none() | st.integers(0, 1),
        timestamp=st.integers(0, 2**51),
    ),
    min_size=1,
    max_size=60,
)


def encoder(batch_bytes: int, **more: Any) -> Encoder:
    return Encoder(EncodeOptions(None, batch_bytes, 1 << 20, **more), TOPICS.__getitem__)


@settings(max_examples=150, deadline=None)
@given(rows=rows_of_any_kind, batch_bytes=st.sampled_from([80, 300, 5000]), cut=st.integers(0, 10))
def test_the_bytes_are_the_twins(rows: list[Row], batch_bytes: int, cut: int) -> None:
    mine, twin = encoder(batch_bytes), Twin(batch_bytes)
    for part in (rows[:cut], rows[cut:]):
        if not part:
            continue
        found: dict[tuple[str, int], list[bytes]] = {}
        sliced = table_of([Row(), *part, Row()]).slice(1, len(part))  # columns that begin inside their buffers
        for each in mine.encode(sliced):
            found.setdefault((each.topic, each.partition), []).append(bytes(each.content))
        assert found == twin.encode(part)


@pytest.mark.parametrize("codec", CODECS)
def test_compressed_batches_hold_the_same_records(codec: str) -> None:
    rows = [Row("a", b"k%d" % i, b"value %d" % i * 9, [("h", b"%d" % i)], i % 3, i * 1000) for i in range(500)]
    read: dict[int, list[Record]] = {}
    for each in encoder(4000, codec=CODECS[codec]).encode(table_of(rows)):
        ((header, at),) = iter_batches(each.content)
        assert has_valid_crc(each.content, at, header)
        assert header.compression == CODECS[codec]
        assert header.record_count == header.last_offset_delta + 1 == each.records
        read.setdefault(each.partition, []).extend(decode_records(each.content))
    for partition, records in read.items():
        expected = [row for row in rows if row.partition == partition]
        assert [(r.key, r.value, list(r.headers), r.timestamp_ms) for r in records] == [
            (row.key, row.value, row.headers, row.timestamp // 1000) for row in expected
        ]


def test_text_and_large_columns_are_taken_and_a_table_may_have_chunks() -> None:
    rows = [Row("a", b"k%d" % i, None if i % 3 else b"v%d" % i, None, 0, 5000) for i in range(20)]
    expected = Twin(5000).encode(rows)["a", 0]
    for kinds in ({"key": pa.string(), "value": pa.string()}, {"key": pa.large_binary(), "value": pa.large_string()}):
        table = table_of(rows, kinds)
        assert [bytes(each.content) for each in encoder(5000).encode(table)] == expected
        chunked = pa.concat_tables([table.slice(0, 7), table.slice(7)])
        assert chunked.column("value").num_chunks == 2
        assert [bytes(each.content) for each in encoder(5000).encode(chunked)] == expected


def test_a_column_that_is_not_there() -> None:
    rows = 10
    table = pa.table({"value": pa.array([b"v"] * rows)})
    (each,) = Encoder(EncodeOptions("a", 5000, 1000), TOPICS.__getitem__).encode(table)
    records = decode_records(each.content)
    assert [(r.key, r.value, r.headers) for r in records] == [(None, b"v", [])] * rows
    assert abs(records[0].timestamp_ms / 1000 - time.time()) < 60


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([Row("a"), Row("b", partition=2)], "topic b names partition 2, but the topic has partitions 0 to 1"),
        ([Row("a", partition=-1)], "topic a names partition -1"),
        ([Row("b"), Row("a", value=b"x" * (1 << 20))], "topic a makes a record larger than the 1048576 bytes"),
        ([Row("b", value=b"x" * 700)], "topic b makes a batch of 7.. bytes, but the topic takes 700"),
        ([Row("a"), Row("b", timestamp=-1)], "topic b has a time before 1970"),
    ],
)
def test_rows_that_are_refused_name_their_topic(rows: list[Row], sentence: str) -> None:
    with pytest.raises(WriteRefusedError, match=sentence):
        encoder(100_000).encode(table_of(rows))


def test_null_topics_and_header_names_are_refused() -> None:
    with pytest.raises(WriteRefusedError, match=r"contains a null topic\. Use the `topic` option"):
        encoder(1000).encode(table_of([Row(None)]))  # type: ignore[arg-type]
    with pytest.raises(WriteRefusedError, match="header without a key"):
        encoder(1000).encode(table_of([Row(headers=[(None, b"x")])]))  # type: ignore[list-item]


def test_rows_without_keys_are_spread_evenly_in_whole_batches() -> None:
    rows = [Row("a", None, b"v" * 84) for _ in range(30_000)]
    out = encoder(10_000).encode(table_of(rows))
    sizes = {partition: sum(e.records for e in out if e.partition == partition) for partition in range(3)}
    assert max(sizes.values()) - min(sizes.values()) <= 100
    assert sum(each.records for each in out) == len(rows)
    assert len(out) <= 330


def test_keys_go_where_kafkas_own_producer_puts_them(broker: EmbeddedBroker, topic: str) -> None:
    broker.create_topic(topic, partitions=7)
    rng = random.Random(5)
    keys = list({rng.randbytes(rng.randrange(0, 40)) for _ in range(800)})
    theirs: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=lambda _, m: theirs.__setitem__(m.key() or b"", m.partition()))
    assert producer.flush(30) == 0
    there = Destination(topic, 7, tuple(range(7)), 1_048_588)
    table = pa.table({"key": pa.array(keys), "value": pa.array([b""] * len(keys))})
    mine = {
        record.key: each.partition
        for each in Encoder(EncodeOptions(topic, 100_000, 1 << 20), lambda _: there).encode(table)
        for record in decode_records(each.content)
    }
    del mine[b""], theirs[b""]  # librdkafka takes an empty key for none
    assert mine == theirs
