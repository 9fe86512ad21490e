"""Parses records of log topics into time, level, component and message: `parse`, DataFrame -> DataFrame.

Every record produces one row; if it matches no format, the row has a null `format` and its whole text in `raw`. Records
cross to Python in Arrow batches; `ottla.spark.logs.line` parses each line. For 44,000 lines of all formats, that is
five times as fast as the same regular expressions in Spark.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.lake.schemas import arrow_schema
from ottla.spark.logs.formats import NAMES
from ottla.spark.logs.line import Line, LineReader
from ottla.spark.platform.failures import OptionsRefusedError
from ottla.spark.platform.workers import WorkerFunction
from ottla.spark.text.zones import zone_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = (
    "service string, file string, host string, time timestamp, level string, level_text string, component string, "
    "message string, raw string, raw_bytes binary, format string, topic string, partition int, offset bigint, "
    "timestamp timestamp"
)
"""Schema of the output of `parse`. `level_text`: the level as it was written. `raw_bytes`: the record's bytes, only if
the text in `raw` cannot represent them. `timestamp`: the record's."""

ARROW = arrow_schema(SCHEMA)
RECORD_COLUMNS = ("value", "topic", "partition", "offset", "timestamp")
HEADERS = ("service", "file", "host")


def parse(records: DataFrame, *, zone: str = "UTC", hints: Mapping[str, str] | None = None) -> DataFrame:
    """Return rows of SCHEMA, one for each record (with the source's columns; `headers` may be absent). `zone`: for
    times without a zone. `hints`: the format of a service's lines, by name, tried before all others. Raises ValueError
    for a hint that is not a format."""
    check_hints(hints or {})
    headers = ["headers"] if "headers" in records.columns else []
    return records.select(*RECORD_COLUMNS, *headers).mapInArrow(WorkerFunction(Parse(zone, dict(hints or {}))), SCHEMA)


def check_zone(zone: str) -> None:
    """Raises PipelineFailedError for what is no time zone."""
    if zone_of(zone) is None:
        raise OptionsRefusedError(
            f"{zone!r} is no time zone: give UTC, an offset as +02:00, or a place as Europe/Berlin."
        )


def check_hints(hints: Mapping[str, str]) -> None:
    for service, name in hints.items():
        if name not in NAMES:
            raise ValueError(f"{service}: {name!r} is no format; known are {', '.join(NAMES)}")


@dataclass(frozen=True, slots=True)
class Parse:
    """Parses the records of a task: for `mapInArrow` over RECORD_COLUMNS, yields SCHEMA."""

    zone: str
    hints: Mapping[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = LineReader(self.zone, self.hints)
        return (lines_of(reader, batch) for batch in batches)


def lines_of(reader: LineReader, records: pa.RecordBatch) -> pa.RecordBatch:
    """Records (RECORD_COLUMNS, perhaps `headers`) as SCHEMA."""
    told = headers_of(records)
    topic = records["topic"].cast(pa.string())
    service = topic if told["service"] is None else pc.coalesce(told["service"], topic)
    raw, raw_bytes = texts(pc.fill_null(records["value"].cast(pa.binary()), b""))
    recorded = records["timestamp"].cast(pa.timestamp("us", tz="UTC"))
    every = zip(raw.to_pylist(), recorded.cast(pa.int64()).to_pylist(), service.to_pylist(), strict=True)
    read = reader.read
    lines = [read(*each) for each in every]
    columns: dict[str, Any] = dict(zip(Line._fields, zip(*lines, strict=True) if lines else ((),) * 6, strict=True))
    columns |= {**told, "service": service, "raw": raw, "raw_bytes": raw_bytes, "topic": topic, "timestamp": recorded}
    columns |= {name: records[name] for name in ("partition", "offset")}
    arrays = [as_array(columns[field.name], field.type, len(lines)) for field in ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW)


def as_array(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, kind)
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def texts(values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Bytes as text, and the bytes where text can't hold them; None where it always can."""
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        pass
    every = values.to_pylist()
    text = [None if each is None else each.decode("utf-8", "replace") for each in every]
    odd = [None if one is None or one.encode() == each else each for each, one in zip(every, text, strict=True)]
    return pa.array(text, pa.string()), pa.array(odd, pa.binary())


def headers_of(records: pa.RecordBatch) -> dict[str, pa.Array | None]:
    """The value of the first header of each name, as text; None where no record has it. An empty one is none."""
    found: dict[str, pa.Array | None] = dict.fromkeys(HEADERS)
    if "headers" not in records.schema.names or not len(records):
        return found
    column = records["headers"]
    rows, each = pc.list_parent_indices(column).to_numpy(), column.flatten()
    keys, values = pc.struct_field(each, 0), pc.struct_field(each, 1)
    for name in HEADERS:
        places = np.flatnonzero(pc.fill_null(pc.equal(keys, name), False).to_numpy(zero_copy_only=False))
        if len(places):
            first = np.full(len(records), -1)
            first[rows[places][::-1]] = places[::-1]
            text = texts(values.take(pa.array(first, mask=first < 0)).cast(pa.binary()))[0]
            found[name] = pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)
    return found
