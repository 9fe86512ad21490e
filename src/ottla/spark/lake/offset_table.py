"""Keeps a Delta table that accepts each record of a topic once.

Executors write the Parquet files; their footers describe them. A commit stores each partition's next offset in Delta's
application transactions (`ottla/offset/TOPIC/PARTITION`). Writers leave out records below that offset. A batch repeated
after a kill, or a whole topic read again after its checkpoint was lost, adds nothing twice. Two concurrent writers
exclude each other.

Files that were never committed are in no table. Tables are on a file system that driver and executors share.

Source: Delta's PROTOCOL.md, "Transaction Identifiers", "Add File and Remove File".
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from ottla.client import TopicPartition
from ottla.spark.lake.commits import CONFIGURATION, append, arrow_schema, move_in, statistics
from ottla.spark.platform.failures import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """One table. `bounded`: columns whose minimum and maximum are stored with each file, so that readers can skip
    files."""

    path: Path
    schema: str
    bounded: tuple[str, ...]
    delta: DeltaTable
    arrow: pa.Schema

    @classmethod
    def make(cls, path: Path, schema: str, bounded: Sequence[str]) -> OffsetTable:
        """Return the table at a path, creating it if it does not exist. Raises PipelineFailed if that is impossible."""
        arrow = arrow_schema(schema)
        try:
            path.mkdir(parents=True, exist_ok=True)
            delta = DeltaTable.create(str(path), arrow, mode="ignore", configuration=CONFIGURATION)
        except (OSError, DeltaError) as error:
            raise PipelineFailed(f"The Delta table {path} can't be opened or made: {error}.") from None
        return cls(path, schema, tuple(bounded), delta, arrow)

    def next_offset(self, place: TopicPartition) -> int:
        """All records of the partition before this offset are in the table; 0 where none is."""
        return self.delta.transaction_version(f"ottla/offset/{place[0]}/{place[1]}") or 0

    def add(self, files: Sequence[Path], ends: Mapping[TopicPartition, int]) -> None:
        """Add the files to the table, and `ends`, the end offsets of its partitions. Does nothing without files."""
        if not files:
            return
        actions = move_in(((file, statistics(file, self.bounded)) for file in files), self.path, "part")
        transactions = [Transaction(f"ottla/offset/{topic}/{number}", end) for (topic, number), end in ends.items()]
        properties = CommitProperties(app_transactions=transactions)
        try:
            append(self.delta, self.path, actions, self.arrow, properties)
        except CommitFailedError as error:
            raise PipelineFailed(f"{self.path} is written by another pipeline at the same time: {error}.") from None

    def add_rows(self, rows: pa.Table, ends: Mapping[TopicPartition, int]) -> None:
        """Add a few rows, written here."""
        if len(rows):
            file = self.path / f".{uuid.uuid4().hex}.part"
            pq.write_table(rows.cast(self.arrow), file)
            self.add([file], ends)

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
