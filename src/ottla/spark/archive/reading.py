"""Reads an archive as a DataFrame, without JVM jars: Spark reads the Parquet files that the table's log names.

Partition values and statistics decide which files a time range or some topics need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.client import TopicPartition
from ottla.spark.archive.layout import SPARK_SCHEMA, TableFile
from ottla.spark.archive.opening import open_table
from ottla.spark.archive.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(
    session: SparkSession,
    table: str | Table,
    *,
    topics: Collection[str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> DataFrame:
    """Return the archive's records: the source's columns and `date`, of [since_ms, until_ms) by their timestamps. Only
    files that can have such records are opened. Raises PipelineFailedError if there is no archive."""
    lake = open_table(table) if isinstance(table, str) else table
    found = chosen(lake.files(), topics, since_ms, until_ms)
    return between(frame_of(session, lake.path, (each.path for each in found)), since_ms, until_ms)


def chosen(
    files: Iterable[TableFile],
    topics: Collection[str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    places: Collection[TopicPartition] | None = None,
) -> list[TableFile]:
    """The files that may hold records of these topics, or of these partitions, and of this time."""
    least = None if since_ms is None else since_ms * 1000
    end = None if until_ms is None else until_ms * 1000
    return [
        each
        for each in files
        if (topics is None or each.topic in topics)
        and (least is None or each.timestamps_us[1] >= least)
        and (end is None or each.timestamps_us[0] < end)
        and (places is None or any(holds(each, place) for place in places))
    ]


def holds(file: TableFile, place: TopicPartition) -> bool:
    return file.topic == place[0] and file.partitions[0] <= place[1] <= file.partitions[1]


def frame_of(session: SparkSession, root: Path, paths: Iterable[str]) -> DataFrame:
    """The records in some of the table's files."""
    whole = [str(root / path) for path in paths]
    if not whole:
        return session.createDataFrame([], SPARK_SCHEMA)
    return session.read.schema(SPARK_SCHEMA).option("basePath", str(root)).parquet(*whole)


def between(frame: DataFrame, since_ms: int | None, until_ms: int | None) -> DataFrame:
    """The records of [since_ms, until_ms)."""
    from pyspark.sql import functions as F

    if since_ms is not None:
        frame = frame.where(F.col("timestamp") >= F.timestamp_millis(F.lit(since_ms)))
    if until_ms is not None:
        frame = frame.where(F.col("timestamp") < F.timestamp_millis(F.lit(until_ms)))
    return frame
