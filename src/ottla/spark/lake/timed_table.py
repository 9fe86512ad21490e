"""Reads spans of time from a Delta table: files that have no row of a span are skipped by their statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds

from ottla.spark.lake.delta_table import DeltaTable
from ottla.spark.lake.file_actions import aware
from ottla.spark.lake.parquet_files import uri
from ottla.spark.lake.schemas import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOMENT = pa.timestamp("us", tz="UTC")


class TimedTable(DeltaTable):
    """A table with the columns `ddl`. `by`: the timestamp column of the spans; a table without one is read as a
    whole."""

    def __init__(self, path: Path, ddl: str, by: str | None) -> None:
        super().__init__(path, arrow_schema(ddl), () if by is None else (by,))
        self.ddl = ddl
        self.by = by

    def files(self, since: datetime | None = None) -> dict[str, int]:
        """The files that may have rows with `by` >= since, and how many rows they have."""
        actions, found = self.actions(), super().files()
        greatest = f"max.{self.by}"
        if since is None or greatest not in actions.column_names:
            return found
        each = zip(found.items(), actions[greatest].to_pylist(), strict=True)
        return {name: rows for (name, rows), end in each if end is None or aware(end) >= since}

    def batches(
        self, names: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Columns of the table, one batch after the other; rows with since <= `by` < until."""
        files = list(self.files(since))
        where = None
        if self.by is not None and since is not None:
            where = ds.field(self.by) >= pa.scalar(since, MOMENT)
        if self.by is not None and until is not None:
            before = ds.field(self.by) < pa.scalar(until, MOMENT)
            where = before if where is None else where & before
        if files:
            yield from ds.dataset(files, schema=self.arrow).to_batches(columns=list(names), filter=where)

    def rows(self, names: Sequence[str], since: datetime | None = None, until: datetime | None = None) -> pa.Table:
        """The same as one Arrow table."""
        schema = pa.schema([self.arrow.field(name) for name in names])
        return pa.Table.from_batches(self.batches(names, since, until), schema)

    def frame(self, session: SparkSession, since: datetime | None = None) -> DataFrame:
        """The rows of the table; from `since` on, by its time column."""
        from pyspark.sql import functions as F

        files = list(self.files(since))
        if not files:
            return session.createDataFrame([], self.ddl)
        rows = session.read.schema(self.ddl).parquet(*map(uri, files))
        return rows if since is None or self.by is None else rows.where(F.col(self.by) >= F.lit(since))
