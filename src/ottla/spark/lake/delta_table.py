"""Keeps a Delta table that accepts each micro-batch, or each record of a topic, once.

A commit adds Parquet files, which are on the table's file system, and names what they are (Delta's application
transactions):

- the batch of a query (`ottla/query/ID`, batch number): a batch that is repeated after a kill is recognised;
- the next offset of each partition (`ottla/offset/TOPIC/PARTITION`): writers leave out the records before it, so that a
  topic which is read again after its checkpoint was lost adds nothing twice.

Delta refuses a commit if another one has named the same transaction since the table was last read. Two writers of one
partition therefore exclude each other, as long as `refresh` comes before the question what the table has, and not
between this question and the commit.

The table is written by `deltalake`, without JVM jars. deltalake does not wait for the disk, but this module does: Spark
must not forget a batch before its commit is on disk. Files that were never committed are in no table; `vacuum` removes
them.

Source: Delta's PROTOCOL.md, "Transaction Identifiers", "Add File and Remove File".
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from ottla.client import TopicPartition
from ottla.spark.lake.file_actions import move_in
from ottla.spark.lake.parquet_files import WrittenFiles, described, remove_files
from ottla.spark.platform.durable import sync_file, sync_folder
from ottla.spark.platform.failures import PipelineFailedError

CONFIGURATION = {"delta.checkpointInterval": "50"}
COMPACTED = deltalake.WriterProperties(compression="ZSTD", compression_level=1)


class CommitConflictError(PipelineFailedError):
    """Raised if another process has committed the same batch or the same partitions; nothing was added."""


class DeltaTable:
    """The table at `path`, as of the last `refresh` or own commit. `bounded`: columns whose least and greatest value is
    stored with each file, so that readers can skip files."""

    def __init__(
        self, path: Path, schema: pa.Schema, bounded: Sequence[str] = (), partition_by: Sequence[str] | None = None
    ) -> None:
        """Open the table, or create it. Raises PipelineFailedError if that is impossible."""
        self.path = path
        self.arrow = schema
        self.bounded = tuple(bounded)
        self._partition_by = None if partition_by is None else list(partition_by)
        try:
            self.delta = self._opened()
        except (OSError, DeltaError) as error:
            raise PipelineFailedError(f"The Delta table {path} can't be opened or made: {error}.") from None

    def _opened(self) -> deltalake.DeltaTable:
        try:
            return deltalake.DeltaTable(str(self.path))
        except TableNotFoundError:
            made = deltalake.DeltaTable.create(
                str(self.path), self.arrow, mode="ignore", partition_by=self._partition_by, configuration=CONFIGURATION
            )
            sync_log(made, self.path)
            return made

    def refresh(self) -> None:
        """Read what other processes have committed."""
        self.delta.update_incremental()

    # ---- what the table has ----------------------------------------------------------------------------------------

    def committed(self, query: str) -> int | None:
        """The number of the query's last batch in the table."""
        return self.delta.transaction_version(f"ottla/query/{query}")

    def next_offset(self, place: TopicPartition) -> int | None:
        """All records of the partition before this offset are in the table; None if it has nothing of the partition."""
        return self.delta.transaction_version(f"ottla/offset/{place[0]}/{place[1]}")

    def actions(self) -> pa.Table:
        """A row for each file, with its statistics and partition values as columns that exist if a file has them."""
        return pa.table(self.delta.get_add_actions(flatten=True))

    def files(self) -> dict[str, int]:
        """The files, and how many rows they have."""
        found = self.actions()
        if not len(found):
            return {}
        names = [str(self.path / name) for name in found["path"].to_pylist()]
        return dict(zip(names, found["num_records"].to_pylist(), strict=True))

    # ---- commits ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        files: Sequence[AddAction],
        *,
        batch: tuple[str, int] | None = None,
        ends: Mapping[TopicPartition, int] | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Add files durably, as this batch (query, number), and as the records of these partitions up to their ends.
        Raises CommitConflictError."""
        named = [] if batch is None else [deltalake.Transaction(f"ottla/query/{batch[0]}", batch[1])]
        for (topic, partition), end in (ends or {}).items():
            named.append(deltalake.Transaction(f"ottla/offset/{topic}/{partition}", end))
        properties = deltalake.CommitProperties(custom_metadata=metadata, app_transactions=named or None)
        try:
            self.delta.create_write_transaction(
                [*files], "append", self.arrow, self._partition_by, commit_properties=properties
            )
        except CommitFailedError as error:
            raise CommitConflictError(
                f"{self.path} is written by another pipeline at the same time: {error}."
            ) from error
        self.refresh()
        sync_log(self.delta, self.path)

    def add(
        self,
        written: WrittenFiles,
        *,
        batch: tuple[str, int] | None = None,
        ends: Mapping[TopicPartition, int] | None = None,
    ) -> bool:
        """Move files into the table and commit them. If the table has the batch already, remove them and return False.
        Does nothing without rows."""
        last = None if batch is None else self.committed(batch[0])
        if batch is not None and last is not None and last >= batch[1]:
            remove_files(written.files)
            return False
        if written.rows:
            prefix = "part" if batch is None else f"part-{batch[1]:08}"
            files = move_in(zip(written.files, written.statistics, strict=True), self.path, prefix)
            self.commit(files, batch=batch, ends=ends)
        return True

    def add_rows(self, rows: pa.Table, *, ends: Mapping[TopicPartition, int]) -> None:
        """Add a few rows, written here."""
        if len(rows):
            file = self.path / f".{uuid.uuid4().hex}.part"
            pq.write_table(rows.cast(self.arrow), file)
            self.add(described([file], self.bounded), ends=ends)

    def delete(self, condition: str) -> None:
        """Delete rows: an SQL condition."""
        self.refresh()
        if self.delta.count():
            self.delta.delete(condition)
            sync_log(self.delta, self.path)

    def compact(self, target_bytes: int | None = None) -> tuple[int, int]:
        """Merge small files; return (files removed, files made)."""
        done = self.delta.optimize.compact(
            target_size=target_bytes, max_concurrent_tasks=2, writer_properties=COMPACTED
        )
        sync_log(self.delta, self.path)
        return done["numFilesRemoved"], done["numFilesAdded"]

    def vacuum(self, retention_hours: float, *, dry_run: bool) -> list[str]:
        """Remove files that are not part of the table and older than this many hours; return their names."""
        return self.delta.vacuum(
            retention_hours=int(retention_hours), dry_run=dry_run, enforce_retention_duration=False, full=True
        )


def sync_log(table: deltalake.DeltaTable, path: Path) -> None:
    """Make the table's last commit durable."""
    log = path / "_delta_log"
    sync_file(log / f"{table.version():020}.json")
    sync_folder(log)
