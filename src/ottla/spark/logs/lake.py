"""A Delta table of log lines or of counts that takes each record once.

Knows: Parquet files that executors have written, their footers, Delta's log. Does not know: what the rows mean.
A commit says in Delta's own terms (application transactions `ottla/offset/TOPIC/PARTITION`) up to where each partition
is in the table; who writes leaves out what lies before. So a batch that comes again after a kill, or a whole topic
after its checkpoint was lost, adds nothing twice, and two writers at once shut each other out.
Files that were never committed are in no table. Tables lie on a file system that driver and executors share.
Source: Delta's PROTOCOL.md, "Transaction Identifiers", "Add File and Remove File".
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from ottla.spark.archive.layout import sync_folder
from ottla.spark.failures import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[str, int]
"""(topic, partition)"""

CONFIGURATION = {"delta.checkpointInterval": "50"}


@dataclass(frozen=True, slots=True)
class Lake:
    """One table. `bounded`: columns whose least and greatest value stand with each file, by which readers leave files
    out."""

    path: Path
    schema: str
    bounded: tuple[str, ...]
    delta: DeltaTable
    arrow: pa.Schema

    @classmethod
    def make(cls, path: Path, schema: str, bounded: Sequence[str]) -> Lake:
        """The table at a path, made where there is none. Raises PipelineFailed where it can't be."""
        arrow = arrow_schema(schema)
        try:
            path.mkdir(parents=True, exist_ok=True)
            delta = DeltaTable.create(str(path), arrow, mode="ignore", configuration=CONFIGURATION)
        except (OSError, DeltaError) as error:
            raise PipelineFailed(f"The Delta table {path} can't be opened or made: {error}.") from None
        return cls(path, schema, tuple(bounded), delta, arrow)

    def next_offset(self, place: Place) -> int:
        """All records of the partition before this offset are in the table; 0 where none is."""
        return self.delta.transaction_version(f"ottla/offset/{place[0]}/{place[1]}") or 0

    def add(self, files: Iterable[Path], ends: Mapping[Place, int]) -> None:
        """Make the files part of the table, and `ends` (offsets) where its partitions end. Nothing is done for none."""
        actions: list[AddAction | RemoveAction] = [self._moved(file) for file in files]
        if not actions:
            return
        sync_folder(self.path)
        transactions = [Transaction(f"ottla/offset/{topic}/{number}", end) for (topic, number), end in ends.items()]
        properties = CommitProperties(app_transactions=transactions)
        try:
            self.delta.create_write_transaction(actions, "append", self.arrow, commit_properties=properties)
        except CommitFailedError as error:
            raise PipelineFailed(f"{self.path} is written by another pipeline at the same time: {error}.") from None
        self.delta.update_incremental()
        log = self.path / "_delta_log"
        with (log / f"{self.delta.version():020}.json").open("rb") as file:
            os.fsync(file.fileno())
        sync_folder(log)

    def add_rows(self, rows: Sequence[Mapping[str, Any]], ends: Mapping[Place, int]) -> None:
        """Add a few rows, written here."""
        if rows:
            file = self.path / f".{uuid.uuid4().hex}.part"
            pq.write_table(pa.Table.from_pylist(list(rows), self.arrow), file)
            self.add([file], ends)

    def _moved(self, file: Path) -> AddAction:
        footer = pq.read_metadata(file)
        name = f"part-{uuid.uuid4().hex}.parquet"
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
        file.replace(self.path / name)
        stats = {"numRecords": footer.num_rows, **bounds(footer, self.bounded)}
        size = (self.path / name).stat().st_size
        return AddAction(name, size, {}, int(time.time() * 1000), True, json.dumps(stats))

    def fold(self) -> None:
        """Put small files together."""
        self.delta.optimize.compact()

    def files(self) -> list[str]:
        return [str(self.path / name) for name in pa.table(self.delta.get_add_actions()).column("path").to_pylist()]

    def frame(self, session: SparkSession) -> DataFrame:
        """All rows of the table as it is now."""
        self.delta.update_incremental()
        files = self.files()
        return session.read.schema(self.schema).parquet(*files) if files else session.createDataFrame([], self.schema)


def bounds(footer: Any, columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Delta's minValues, maxValues and nullCount of these columns, by a Parquet file's footer."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in columns:
        place = footer.schema.names.index(name)
        found = [footer.row_group(each).column(place).statistics for each in range(footer.num_row_groups)]
        if not found or any(each is None or not each.has_null_count for each in found):
            continue
        nulls[name] = sum(each.null_count for each in found)
        # a file of nulls alone has no least value, which says that it holds none that is asked for
        mins, maxs = ([getattr(each, end) for each in found if each.has_min_max] for end in ("min", "max"))
        if mins:
            low[name], high[name] = text(min(mins)), text(max(maxs))
    return {"minValues": low, "maxValues": high, "nullCount": nulls}


def text(value: Any) -> Any:
    """As Delta's statistics have it."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


TYPES: Mapping[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema(ddl: str) -> pa.Schema:
    """A table's columns, given as Spark says them, as Arrow has them. Spark's own reading of DDL needs a session."""
    columns = [each.split() for each in ddl.split(", ")]
    return pa.schema([(name, TYPES[kind]) for name, kind in columns])
