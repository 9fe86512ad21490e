"""Keeps an archive as a Delta table.

A commit names the batch and each partition's next offset, as `ottla.spark.lake.delta_table` describes. The offsets also
replace a lost checkpoint. Offset ranges are stored next to the table; they are written before the commit and count only
after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake.transaction import AddAction

from ottla.client import TopicPartition
from ottla.spark.archive.journal import Journal
from ottla.spark.archive.layout import COLUMNS, PARTITIONED_BY, RANGES, ArchiveBatch, TableFile
from ottla.spark.archive.ranges import Covered
from ottla.spark.archive.table import ArchiveSettings, Table, TableChangedError
from ottla.spark.lake.delta_table import CommitConflictError, DeltaTable
from ottla.spark.lake.file_actions import add_action

ANY = (-(1 << 63), (1 << 63) - 1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeltaLake(Table):
    """A Delta table at `path`."""

    def __init__(self, path: Path, settings: ArchiveSettings) -> None:
        super().__init__(path, settings)
        self._journal = Journal(path / RANGES, self.committed)
        self._delta = DeltaTable(path, COLUMNS, partition_by=PARTITIONED_BY)

    @property
    def writes_to(self) -> Path:
        return self.path

    def refresh(self) -> None:
        self._delta.refresh()

    def committed(self, query: str) -> int | None:
        return self._delta.committed(query)

    def next_offset(self, place: TopicPartition) -> int | None:
        return self._delta.next_offset(place)

    def publish(self, batch: ArchiveBatch) -> None:
        self._journal.write(batch)
        ranges = [[each.topic, each.partition, each.first, each.until, each.count] for each in batch.covered]
        try:
            self._delta.commit(
                [added(file) for file in batch.files],
                batch=(batch.query, batch.number),
                ends={each.place: each.until for each in batch.covered},
                metadata={"ottla.ranges": json.dumps(ranges)},
            )
        except CommitConflictError as conflict:
            raise TableChangedError(
                f"Batch {batch.number} can't be added to {self.path}: {conflict.__cause__} Another archive writes the "
                "same topics."
            ) from conflict
        self._journal.fold(batch.query)

    def covered(self) -> list[Covered]:
        return self._journal.covered()

    def files(self) -> list[TableFile]:
        return list(files_of(self._delta.actions()))

    def seen(self) -> list[str]:
        return [file.path for file in self.files()]

    def compact(self, target_bytes: int) -> tuple[int, int]:
        return self._delta.compact(target_bytes)

    def vacuum(self, retention_hours: float, *, dry_run: bool) -> list[str]:
        return self._delta.vacuum(retention_hours, dry_run=dry_run)


def added(file: TableFile) -> AddAction:
    """A file as Delta's log has it."""
    names = ("partition", "offset")
    least: dict[str, Any] = dict(zip(names, (file.partitions[0], file.offsets[0]), strict=True))
    greatest: dict[str, Any] = dict(zip(names, (file.partitions[1], file.offsets[1]), strict=True))
    early, late = (moment(each) for each in file.timestamps_us)
    if early is not None and late is not None:
        least["timestamp"], greatest["timestamp"] = early, late
    stats = {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": {"partition": 0, "offset": 0, "timestamp": 0},
    }
    return add_action(file.path, file.size, {"topic": file.topic, "date": file.date}, stats)


def moment(micros: int) -> datetime | None:
    """A timestamp; None where it lies outside the years 1 to 9999."""
    try:
        return EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def files_of(actions: pa.Table) -> Iterator[TableFile]:
    """Yield the files in Delta's list of add actions. A missing statistic becomes the widest possible range."""
    bounds = {
        name: list(zip(longs(actions, f"min.{name}"), longs(actions, f"max.{name}"), strict=True))
        for name in ("partition", "offset", "timestamp")
    }
    columns = [
        actions.column(name).to_pylist()
        for name in ("path", "partition.topic", "partition.date", "num_records", "size_bytes")
    ]
    for index, (path, topic, date, rows, size) in enumerate(zip(*columns, strict=True)):
        partitions, offsets, timestamps = (
            (ANY[0] if low is None else low, ANY[1] if high is None else high)
            for low, high in (bounds[name][index] for name in ("partition", "offset", "timestamp"))
        )
        day = None if date is None else str(date)
        yield TableFile(path, topic, day, rows, size, partitions, offsets, timestamps)


def longs(actions: pa.Table, name: str) -> list[int | None]:
    if name not in actions.column_names:
        return [None] * len(actions)
    column = actions.column(name)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
    return column.to_pylist()
