"""Parses records into rows: `parse`, then `events` and `malformed`.

Records cross to Python in Arrow batches; `ottla.spark.activity.event` reads each value. Per record that costs about an
eighth of what the same expressions cost in the JVM, where they were too large to be compiled. It costs a third of
Arrow's own `extract_regex`.

Invariant: every record produces exactly one row. If it is not an event, the row has a `reason`, the text and the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.spark.activity.event import Event, EventReader
from ottla.spark.lake.schemas import arrow_schema
from ottla.spark.platform.workers import WorkerFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORD_COLUMNS = ("value", "timestamp", "topic", "partition", "offset")
EVENTS = (
    "time timestamp, visitor string, kind string, method string, page string, query string, status int, bytes bigint,"
    " referrer string, agent string, bot boolean, asset boolean, raw string, topic string, partition int, offset bigint"
)
MALFORMED = "reason string, raw string, value binary, timestamp timestamp, topic string, partition int, offset bigint"
LATE = f"{EVENTS}, watermark timestamp"
PARSED = f"{EVENTS}, reason string, value binary, timestamp timestamp"
EVENT_COLUMNS, MALFORMED_COLUMNS = (
    tuple(each.split()[0] for each in schema.split(", ")) for schema in (EVENTS, MALFORMED)
)


def parse(records: DataFrame) -> DataFrame:
    """Turn rows of the source (`value`, `timestamp`, `topic`, `partition`, `offset`) into EVENT_COLUMNS and `reason`,
    `value`, `timestamp`. `reason` is null exactly for events; all other rows have null in EVENT_COLUMNS' event fields.
    Works on batches and streams."""
    zone = records.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    return records.select(*RECORD_COLUMNS).mapInArrow(WorkerFunction(Parse(zone)), PARSED)


def events(parsed: DataFrame) -> DataFrame:
    """Select the rows of `parse` that are events: EVENT_COLUMNS."""
    from pyspark.sql import functions as F

    return parsed.where(F.col("reason").isNull()).select(*EVENT_COLUMNS)


def malformed(parsed: DataFrame) -> DataFrame:
    """Select the rows of `parse` that are not events, with the reason: MALFORMED_COLUMNS. `value` has the original
    bytes."""
    from pyspark.sql import functions as F

    return parsed.where(F.col("reason").isNotNull()).select(*MALFORMED_COLUMNS)


@dataclass(frozen=True, slots=True)
class Parse:
    """Parses the records of a task: for `mapInArrow` over RECORD_COLUMNS, yields PARSED. `zone`: for times without a
    zone."""

    zone: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader, schema = EventReader(self.zone), arrow_schema(PARSED)
        for batch in batches:
            read = Read.of(reader, batch)
            columns = {**read.columns(), "reason": read.reasons, "value": batch["value"], "timestamp": times_of(batch)}
            arrays = [as_array(columns[field.name], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(slots=True)
class Read:
    """A parsed batch of records. `events` and `reasons`: for each record one of the two, and None for the other."""

    batch: pa.RecordBatch
    raws: list[str | None]
    events: list[Event | None]
    reasons: list[str | None]

    @classmethod
    def of(cls, reader: EventReader, batch: pa.RecordBatch) -> Read:
        """RECORD_COLUMNS, read."""
        found = cls(batch, [], [], [])
        values, times = batch["value"].to_pylist(), times_of(batch).cast(pa.int64()).to_pylist()
        for value, time, topic in zip(values, times, batch["topic"].to_pylist(), strict=True):
            raw, event = reader.read(value, time, topic or "")
            found.raws.append(raw)
            found.events.append(None if isinstance(event, str) else event)
            found.reasons.append(event if isinstance(event, str) else None)
        return found

    def columns(self) -> dict[str, Any]:
        """EVENT_COLUMNS of all records."""
        width = len(Event._fields)
        rows = [(None,) * width if event is None else event for event in self.events]
        told = dict(zip(Event._fields, zip(*rows, strict=True) if rows else ((),) * width, strict=True))
        return {**told, "raw": self.raws, **{name: self.batch[name] for name in ("topic", "partition", "offset")}}


def times_of(batch: pa.RecordBatch) -> pa.Array:
    return batch["timestamp"].cast(pa.timestamp("us", tz="UTC"))


def as_array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)
