"""Keeps a Delta table that accepts each batch of a query once.

The caller writes the Parquet files, on the same file system. A commit names the query and the batch (Delta's
application transactions), so a batch that was committed before a kill is skipped when it is repeated. Files of batches
that were never committed are in no table; `vacuum` removes them.

Tables are on a file system that driver and executors share, like the archive's.

Source: Delta's PROTOCOL.md, "Transaction Identifiers", "Add File and Remove File".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction

from ottla.spark.lake.commits import CONFIGURATION, append, arrow_schema, aware, move_in
from ottla.spark.lake.parquet_files import WrittenFiles, remove_files, uri

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MOMENT = pa.timestamp("us", tz="UTC")


class BatchTable:
    """One table. `by`: the timestamp column whose bounds per file are stored, so that `frame` can skip files."""

    def __init__(self, path: Path, schema: str, by: str | None) -> None:
        self.path = path
        self.schema = schema
        self.by = by
        self.arrow = arrow_schema(schema)
        self._delta = DeltaTable.create(str(path), self.arrow, mode="ignore", configuration=CONFIGURATION)

    def committed(self, query: str) -> int:
        """The query's last batch in the table, -1 before the first."""
        self._delta.update_incremental()
        found = self._delta.transaction_version(f"ottla/query/{query}")
        return -1 if found is None else found

    def add(self, written: WrittenFiles, query: str | None, batch: int) -> bool:
        """Add the files to the table, as this batch of the query (None: of no query). If it has that batch already,
        remove the files and return False. Does nothing without rows."""
        if query is not None and self.committed(query) >= batch:
            remove_files(written.files)
            return False
        if not written.rows:
            return True
        files = move_in(zip(written.files, written.statistics, strict=True), self.path, f"part-{batch:08}")
        known = [] if query is None else [Transaction(f"ottla/query/{query}", batch)]
        append(self._delta, self.path, files, self.arrow, CommitProperties(app_transactions=known or None))
        return True

    def take_back(self, condition: str) -> None:
        """Delete rows: an SQL condition."""
        self._delta.update_incremental()
        if self._delta.count():
            self._delta.delete(condition)

    def files(self, since: datetime | None = None) -> dict[str, int]:
        """The files that may have rows with `by` >= since, and how many rows they have."""
        self._delta.update_incremental()
        actions = pa.table(self._delta.get_add_actions(flatten=True))
        if not len(actions):
            return {}  # columns of statistics may then be missing
        found = [str(self.path / name) for name in actions["path"].to_pylist()]
        greatest, rows = f"max.{self.by}", actions["num_records"].to_pylist()
        if since is None or greatest not in actions.column_names:
            return dict(zip(found, rows, strict=True))
        each = zip(found, rows, actions[greatest].to_pylist(), strict=True)
        return {name: many for name, many, end in each if end is None or aware(end) >= since}

    def batches(
        self, names: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Columns of the table as it is now, one batch after the other; rows with since <= `by` < until."""
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

    def delta(self) -> DeltaTable:
        """The table as it is now."""
        self._delta.update_incremental()
        return self._delta

    def frame(self, session: SparkSession, since: datetime | None = None) -> DataFrame:
        """The rows of the table as it is now; from `since` on, by its time column."""
        from pyspark.sql import functions as F

        files = list(self.files(since))
        if not files:
            return session.createDataFrame([], self.schema)
        rows = session.read.schema(self.schema).parquet(*map(uri, files))
        return rows if since is None or self.by is None else rows.where(F.col(self.by) >= F.lit(since))
