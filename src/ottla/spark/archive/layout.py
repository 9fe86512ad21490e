"""Defines the layout of an archive on disk: columns, directories, file names, and the files next to the data.

    TABLE/topic=clicks/date=2026-01-31/QUERY-BATCH-xxxx.parquet    the records (topic and date are in the path)
    TABLE/_delta_log/                                              Delta's own log (format delta)
    TABLE/_ottla/archive.json                                      format, isolation level
    TABLE/_ottla/topics/                                           the ids of the topics archived
    TABLE/_ottla/ranges/                                           which offset ranges each commit covered
    TABLE/_ottla/staging/                                          files of batches not yet published (format parquet)
    TABLE/_checkpoint/                                             Spark's checkpoint, unless given another directory

All readers of Parquet directories, and Delta's vacuum, skip names that begin with "_".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa

from ottla.spark.archive.ranges import Covered

OWN = "_ottla"
RANGES = f"{OWN}/ranges"
STAGING = f"{OWN}/staging"
TOPICS = f"{OWN}/topics"
SETTINGS = f"{OWN}/archive.json"
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
"""The folder of records whose timestamp is outside the years 1 to 9999: their date is null."""

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
IN_FILES = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)
"""Schema of the Parquet files."""

COLUMNS = pa.schema([*list(IN_FILES)[:2], ("topic", pa.string()), *list(IN_FILES)[2:], ("date", pa.date32())])
"""The table's columns: the source's, and `date` (of the timestamp, UTC)."""

PARTITIONED_BY = ["topic", "date"]

SPARK_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>, date date"
)

HEADERS_LISTED = "coalesce(headers, cast(array() AS array<struct<key: string, value: binary>>)) AS headers"
"""SQL expression for headers on the way from the JVM to Python: an empty list for a record without headers.

Spark computes the size of its Arrow batch after each row. For null lists, Arrow's ListVector.setValueCount then walks
back to the last list that is not null. With 10,000 rows to a batch, Spark's default, that takes ten times as long.
"""

DAY_US = 86_400_000_000
FIRST_DAY, LAST_DAY = date.min.toordinal() - 719_163, date.max.toordinal() - 719_163
"""Days since 1970 that a date can name."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A Parquet file of the table: `path` relative to the table, least and greatest values of three columns."""

    path: str
    topic: str
    date: str | None
    rows: int
    size: int
    partitions: tuple[int, int]
    offsets: tuple[int, int]
    timestamps_us: tuple[int, int]

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TableFile:
        pairs = {name: tuple(found[name]) for name in ("partitions", "offsets", "timestamps_us")}
        return cls(**{**found, **pairs})


@dataclass(frozen=True, slots=True)
class ArchiveBatch:
    """The content of one commit. `query` and `number` identify it: a table accepts each pair once."""

    query: str
    number: int
    covered: tuple[Covered, ...]
    files: tuple[TableFile, ...] = ()

    @property
    def rows(self) -> int:
        return sum(each.count for each in self.covered)


def day_text(day: int) -> str | None:
    """A number of days since 1970 as 2026-01-31; None where no calendar date is that far."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat() if FIRST_DAY <= day <= LAST_DAY else None


def folder(topic: str, day: str | None) -> str:
    """The folder of a topic's records of one day, relative to the table."""
    return f"topic={topic}/date={day or NO_DATE}"
