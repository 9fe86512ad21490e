"""A Delta table that takes each batch of a query once, committed by `deltalake`.

Knows: Parquet files that somebody has written on the same file system, their footers, Delta's log. Does not know: what
the rows mean.
A commit names the query and the batch (Delta's application transactions): a batch that was committed before a kill is
passed over when it comes again. Files of batches that were never committed are in no table; `vacuum` removes them.
Tables lie on a file system that driver and executors share, as the archive's do.
Source: Delta's PROTOCOL.md, "Transaction Identifiers", "Add File and Remove File".
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction

from ottla.spark.lake.commits import CONFIGURATION, append, arrow_schema, aware, move_in, statistics
from ottla.spark.platform.durable import sync_file, sync_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MOMENT = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Written:
    """Files that no table has yet; `greatest` is of the table's time column, where it has one."""

    files: tuple[Path, ...]
    rows: int
    greatest: datetime | None = None


class Lake:
    """One table. `by`: the timestamp column whose bounds per file are kept, by which `frame` leaves files out."""

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

    def add(self, written: Written, query: str | None, batch: int) -> bool:
        """Make the files part of the table, as this batch of the query (None: of no query). False, and the files are
        removed, when it has that batch already. Nothing is committed for no rows."""
        if query is not None and self.committed(query) >= batch:
            remove(written.files)
            return False
        if not written.rows:
            return True
        files = move_in(written.files, self.path, f"part-{batch:08}", columns(self.by))
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


def write(frame: DataFrame, folder: Path, by: str | None) -> Written:
    """Have the executors write the rows to Parquet files below `folder`, which must not exist."""
    frame.write.option("compression", "zstd").parquet(uri(folder))
    return gathered(folder, by)


def uri(path: Path | str) -> str:
    """A local path as Spark must be told of it, whatever its default file system is."""
    return f"file://{path}"


def gathered(folder: Path, by: str | None) -> Written:
    """The Parquet files of one folder; no files where it is none."""
    return written(sorted(folder.glob("*.parquet")), by)


def put(rows: pa.Table, folder: Path, lake: Lake) -> Written:
    """Write rows that are at hand to a file below `folder`, with the table's columns in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{uuid.uuid4().hex}.parquet"
    write_table(rows.select(lake.arrow.names).cast(lake.arrow), file)
    return written([file], lake.by)


def write_table(rows: pa.Table, file: Path) -> None:
    pq.write_table(rows, file, compression="zstd", row_group_size=1 << 18)


def written(files: Sequence[Path], by: str | None) -> Written:
    """What the footers of some files say."""
    found = [statistics(file, columns(by)) for file in files]
    ends = [aware(end) for each in found for end in each["maxValues"].values()]
    return Written(tuple(files), sum(each["numRecords"] for each in found), max(ends, default=None))


def columns(by: str | None) -> tuple[str, ...]:
    return () if by is None else (by,)


def remove(files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def keep(folder: Path, place: Path) -> None:
    """Move a folder of Spark's files to its place, durably; what lies there is replaced."""
    for file in folder.glob("*.parquet"):
        sync_file(file)
    clear(place)
    place.parent.mkdir(exist_ok=True)
    folder.replace(place)
    sync_folder(place)
    sync_folder(place.parent)


def clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
