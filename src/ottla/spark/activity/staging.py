"""Runs on the executors: fetches a micro-batch's records, parses them and writes them to Parquet files, by outcome.

The driver supplies the watermark, and its commit decides which files are published. A task may therefore run twice or
be killed at any moment: only files in a task's report count. If the source returns only ranges (`rangesOnly`), no
record passes through the JVM.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.spark.activity.event import EventReader
from ottla.spark.activity.parse import EVENTS, LATE, MALFORMED, RECORD_COLUMNS, Read, as_array, times_of
from ottla.spark.lake.schemas import arrow_schema
from ottla.spark.platform.workers import WorkerFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.spark.reader.options import SourceOptions

OUTCOMES = {
    name: arrow_schema(schema) for name, schema in (("events", EVENTS), ("late", LATE), ("malformed", MALFORMED))
}
REPORT_SCHEMA = "report string"
GROUP_ROWS = 131_072
GROUP_BYTES = 64 << 20
FILE_BYTES_MAX = 256 << 20


@dataclass(frozen=True, slots=True)
class Stage:
    """Writes a task's part of a micro-batch: for `mapInArrow`, yields one JSON report per task: {outcome: [names of
    files below `folder`]}.

    `source`: the rows are ranges of topics, read with these options; without it they are the records themselves."""

    folder: str
    watermark_us: int | None
    zone: str
    source: SourceOptions | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        files, reader = Files(Path(self.folder)), EventReader(self.zone)
        for batch in self.records(batches):
            for outcome, rows in sorted_out(Read.of(reader, batch), self.watermark_us):
                files.add(outcome, rows)
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(files.close())]})

    def records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self.source is None:
            return batches
        from ottla.spark.reader.plan import Range
        from ottla.spark.reader.reading import read

        return read([Range(**row) for batch in batches for row in batch.to_pylist()], self.source)


def stage(frame: DataFrame, task: Stage) -> dict[str, tuple[Path, ...]]:
    """Run the task on the executors, in one pass; return the files by outcome."""
    rows = frame if task.source is not None else frame.select(*RECORD_COLUMNS)
    Path(task.folder).mkdir(parents=True)
    reports = [json.loads(row.report) for row in rows.mapInArrow(WorkerFunction(task), REPORT_SCHEMA).collect()]
    folder = Path(task.folder)
    return {name: tuple(folder / file for each in reports for file in each.get(name, ())) for name in OUTCOMES}


def sorted_out(read: Read, watermark_us: int | None) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each outcome that the batch has."""
    reasons = pa.array(read.reasons, pa.string())
    good = pc.is_null(reasons)
    columns = read.columns()
    told = pa.table({field.name: as_array(columns[field.name], field.type) for field in OUTCOMES["events"]})
    edge = pa.scalar(watermark_us, pa.timestamp("us", tz="UTC"))
    late = pc.and_(good, pc.fill_null(pc.less(told["time"], edge), False))
    if read.reasons.count(None) < len(read.reasons):
        odd = {**columns, "reason": reasons, "value": read.batch["value"], "timestamp": times_of(read.batch)}
        kept = pa.table({field.name: as_array(odd[field.name], field.type) for field in OUTCOMES["malformed"]})
        yield "malformed", kept.filter(pc.invert(good))
    if pc.any(late).as_py():
        yield "late", told.append_column("watermark", pa.repeat(edge, len(told))).filter(late)
    in_time = told.filter(pc.and_(good, pc.invert(late)))
    if len(in_time):
        yield "events", in_time


@dataclass(slots=True)
class Files:
    """The Parquet files that one task writes, one open for each outcome."""

    folder: Path
    open: dict[str, OpenFile] = field(default_factory=dict)
    done: dict[str, list[str]] = field(default_factory=dict)

    def add(self, outcome: str, rows: pa.Table) -> None:
        file = self.open.get(outcome)
        if file is None:
            name = f"{outcome}-{uuid.uuid4().hex}.parquet"
            file = self.open[outcome] = OpenFile.create(self.folder / name, OUTCOMES[outcome])
            self.done.setdefault(outcome, []).append(name)
        file.add(rows)
        if file.size > FILE_BYTES_MAX:
            self.open.pop(outcome).close()

    def close(self) -> dict[str, list[str]]:
        """The names of all files, which are whole now."""
        for file in self.open.values():
            file.close()
        self.open.clear()
        return self.done


@dataclass(slots=True)
class OpenFile:
    """A Parquet file, and the rows held for its next row group."""

    path: Path
    writer: Any
    held: list[pa.Table] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0

    @classmethod
    def create(cls, path: Path, schema: pa.Schema) -> OpenFile:
        return cls(path, pq.ParquetWriter(path, schema, compression="zstd", compression_level=1))

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def add(self, rows: pa.Table) -> None:
        self.held.append(rows)
        self.held_rows += len(rows)
        self.held_bytes += rows.nbytes
        if self.held_rows >= GROUP_ROWS or self.held_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self.held:
            self.writer.write_table(pa.concat_tables(self.held), row_group_size=GROUP_ROWS * 2)
        self.held, self.held_rows, self.held_bytes = [], 0, 0

    def close(self) -> None:
        self.flush()
        self.writer.close()
