"""What the reader's tests share: topics filled by librdkafka, and rows as librdkafka and as the source read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import SourceOptions, batch_options
from ottla.spark.reader.plan import Range
from ottla.spark.reader.reading import read

Row = tuple[Any, ...]
"""(partition, offset, key, value, timestamp in ms, timestamp type, headers)"""


def produce(bootstrap: str, topic: str, records: Iterable[dict[str, Any]], **settings: Any) -> None:
    """Each record as the arguments of `Producer.produce`; all of them are acknowledged at the end."""
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **settings})
    for record in records:
        producer.produce(topic, on_delivery=lambda error, _: failures.append(error) if error else None, **record)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not failures


def rows_by_confluent(
    bootstrap: str, topic: str, partitions: int = 1, isolation: str = "read_uncommitted"
) -> list[Row]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "rows", "isolation.level": isolation})
    try:
        places = [TopicPartition(topic, i, OFFSET_BEGINNING) for i in range(partitions)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=10)[1] for place in places}
        consumer.assign(places)
        rows: list[Row] = []
        quiet = 0
        while quiet < 4 and any(
            position.offset < ends[position.partition] for position in consumer.position(places)
        ):  # position() stays "invalid" (below every end) where nothing was delivered
            message = consumer.poll(0.5)
            if message is None:
                quiet += 1
                continue
            assert message.error() is None
            kind, timestamp = message.timestamp()
            headers = message.headers() or []
            rows.append(
                (message.partition(), message.offset(), message.key(), message.value(), timestamp, kind - 1, headers)
            )
        return sorted(rows)
    finally:
        consumer.close()


def options_of(bootstrap: str, topic: str, **given: str) -> SourceOptions:
    needed = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    return batch_options(needed | {name.replace("__", "."): value for name, value in given.items()})


def rows_by_source(options: SourceOptions, ranges: Sequence[Range] | None = None) -> list[Row]:
    """What the source reads: planned as a batch where no ranges are given, read in this process."""
    if ranges is None:
        ranges = Cluster(options).batch_ranges()
    return sorted(row for batch in read(ranges, options) for row in rows_of(batch))


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    columns = batch.to_pydict()
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    headers = columns.get("headers") or [None] * batch.num_rows
    return [
        (partition, offset, key, value, time_us // 1000, kind, [(each["key"], each["value"]) for each in pairs or []])
        for partition, offset, key, value, time_us, kind, pairs in zip(
            columns["partition"],
            columns["offset"],
            columns["key"],
            columns["value"],
            times,
            columns["timestampType"],
            headers,
            strict=True,
        )
    ]
