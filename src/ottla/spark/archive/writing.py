"""Runs on the executors: writes Arrow batches of records to Parquet files, fsynced, with a report per task.

Records are grouped by topic and day, vectorised, in row groups, with the statistics that a commit needs. The driver's
commit decides which files are published. A task may therefore run twice or be killed at any moment.

Invariant, if `rising`: offsets of one partition come in rising order, otherwise the task fails
(`OffsetsNotRisingError`). A duplicate is detected before it is written, not after.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.client import TopicPartition
from ottla.spark.archive.layout import DAY_US, HEADERS_LISTED, IN_FILES, TableFile, day_text, folder
from ottla.spark.platform.durable import sync_folder
from ottla.spark.platform.workers import WorkerFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REPORT_SCHEMA = "report string"
SENT = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", HEADERS_LISTED)

GROUP_ROWS = 131_072
GROUP_BYTES = 64 << 20
HELD_BYTES_MAX = 256 << 20
"""Over all files a task has open; then the fullest are written out."""


class OffsetsNotRisingError(Exception):
    """Raised if a task got a partition's offsets twice or out of order."""


def write_files(frame: DataFrame, plan: WriteFiles) -> list[dict[str, Any]]:
    """Have the executors write the records of a DataFrame with the source's columns; the tasks' reports."""
    frame.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(GROUP_ROWS))
    return reports_of(frame.selectExpr(*SENT), plan)


def reports_of(frame: DataFrame, task: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """Return the report of each task; there is one task for each partition of the DataFrame."""
    return [json.loads(row.report) for row in frame.mapInArrow(WorkerFunction(task), REPORT_SCHEMA).collect()]


@dataclass(slots=True)
class Span:
    """The offsets that a task saw of one partition: the least, the greatest and how many."""

    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class WriteFiles:
    """Writes a task's records: for `mapInArrow`; below `root`, files named after `prefix`; yields one JSON report per
    task.

    Shape of the report: {"files": [TableFile], "spans": [[topic, partition, first, last, count]]}.
    """

    root: str
    prefix: str
    compression: str = "zstd"
    file_bytes_max: int = 256 << 20
    rising: bool = True
    """Whether offsets must rise within a task; not so where one may read several files."""
    called: Mapping[str, str] = field(default_factory=dict)
    """Names of topics in the table, where they differ from the topics' own names."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = Task(self)
        for batch in batches:
            if batch.num_rows:
                task.add(batch)
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(task.finish())]})


@dataclass(slots=True)
class Task:
    """The files one task has open."""

    plan: WriteFiles
    open: dict[TopicPartition, OpenFile] = field(default_factory=dict)
    done: list[TableFile] = field(default_factory=list)
    spans: dict[TopicPartition, Span] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        topics = batch.column("topic").dictionary_encode()
        names: list[str] = topics.dictionary.to_pylist()
        topic_ids = topics.indices.to_numpy()
        self.follow(names, topic_ids, batch)
        days = np.floor_divide(batch.column("timestamp").cast(pa.int64()).to_numpy(), DAY_US)
        rows = batch.set_column(batch.schema.get_field_index("headers"), "headers", given(batch.column("headers")))
        rows = rows.select(IN_FILES.names)
        for topic, day, part in grouped(names, topic_ids, days, rows):
            file = self.open.get((topic, day))
            if file is None:
                file = self.open[topic, day] = OpenFile.create(self.plan, topic, day)
            file.add(part)
            if file.size >= self.plan.file_bytes_max:
                self.close(topic, day)
        held = sum(file.held_bytes for file in self.open.values())
        if held > HELD_BYTES_MAX:
            max(self.open.values(), key=lambda file: file.held_bytes).flush()

    def follow(self, names: list[str], topic_ids: Any, batch: pa.RecordBatch) -> None:
        """Count the records of each partition, and check that no offset occurs twice. Raises OffsetsNotRisingError."""
        partitions = batch.column("partition").to_numpy()
        offsets = batch.column("offset").to_numpy()
        for topic_id, partition, rows in places(topic_ids, partitions):
            topic, found = names[topic_id], offsets[rows]
            span = self.spans.get((topic, partition))
            if self.plan.rising and ((span is not None and found[0] <= span.last) or (np.diff(found) <= 0).any()):
                raise OffsetsNotRisingError(f"{topic}-{partition}: offsets near {found[0]} came twice or out of order.")
            if span is None:
                self.spans[topic, partition] = Span(int(found[0]), int(found[-1]), len(found))
            else:
                span.last, span.count = int(found[-1]), span.count + len(found)

    def close(self, topic: str, day: int) -> None:
        self.done.append(self.open.pop((topic, day)).close())

    def finish(self) -> dict[str, Any]:
        for topic, day in list(self.open):
            self.close(topic, day)
        root = Path(self.plan.root)
        for path in sorted({(root / file.path).parent for file in self.done}):
            for each in (path, path.parent, root):
                sync_folder(each)
        spans = [[*place, span.first, span.last, span.count] for place, span in self.spans.items()]
        return {"files": [file.as_json() for file in self.done], "spans": spans}


@dataclass(slots=True)
class OpenFile:
    """A Parquet file being written, and the rows held for its next row group."""

    root: Path
    path: str
    topic: str
    day: int
    sink: Any
    writer: pq.ParquetWriter
    held: list[pa.RecordBatch] = field(default_factory=list)
    held_rows: int = 0
    held_bytes: int = 0
    rows: int = 0
    least: list[int] = field(default_factory=list)
    greatest: list[int] = field(default_factory=list)

    @classmethod
    def create(cls, plan: WriteFiles, topic: str, day: int) -> OpenFile:
        topic = plan.called.get(topic, topic)
        path = f"{folder(topic, day_text(day))}/{plan.prefix}-{uuid.uuid4().hex[:8]}.parquet"
        whole = Path(plan.root) / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        sink = whole.open("xb", buffering=0)
        writer = pq.ParquetWriter(
            sink,
            IN_FILES,
            compression=plan.compression,
            compression_level=1 if plan.compression == "zstd" else None,
            use_dictionary=["partition", "timestampType"],  # type: ignore[arg-type]  # lists of columns are taken
            write_statistics=["partition", "offset", "timestamp"],  # type: ignore[arg-type]
            write_page_checksum=True,
        )
        return cls(Path(plan.root), path, topic, day, sink, writer)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.sink.tell()

    def add(self, part: pa.RecordBatch) -> None:
        self.held.append(part)
        self.held_rows += part.num_rows
        self.held_bytes += part.nbytes
        if self.held_rows >= GROUP_ROWS or self.held_bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what is held as one row group."""
        if not self.held_rows:
            return
        table = pa.Table.from_batches(self.held).cast(IN_FILES)
        longs = [table.column(name).cast(pa.int64()).to_numpy() for name in ("partition", "offset", "timestamp")]
        least, greatest = [int(each.min()) for each in longs], [int(each.max()) for each in longs]
        self.least = [min(pair) for pair in zip(self.least or least, least, strict=True)]
        self.greatest = [max(pair) for pair in zip(self.greatest or greatest, greatest, strict=True)]
        self.writer.write_table(table, row_group_size=GROUP_ROWS * 2)
        self.rows += self.held_rows
        self.held, self.held_rows, self.held_bytes = [], 0, 0

    def close(self) -> TableFile:
        """Finish the file and make it durable."""
        self.flush()
        self.writer.close()
        os.fsync(self.sink.fileno())
        size = self.size
        self.sink.close()
        partitions, offsets, timestamps = zip(self.least, self.greatest, strict=True)
        day = day_text(self.day)
        return TableFile(self.path, self.topic, day, self.rows, size, partitions, offsets, timestamps)


def given(headers: pa.ListArray) -> pa.Array:
    """Null again where a record has no headers."""
    if not len(headers.flatten()):
        return pa.nulls(len(headers), headers.type)
    return pc.if_else(pc.equal(pc.list_value_length(headers), 0), None, headers)  # pyright: ignore[reportAttributeAccessIssue]


def grouped(
    names: list[str], topic_ids: Any, days: Any, rows: pa.RecordBatch
) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """(topic, day, its rows in their order) of a batch; without a copy when there is but one."""
    low, high = int(days.min()), int(days.max())
    if len(names) == 1 and low == high:
        yield names[0], low, rows
        return
    codes = (days - low) * len(names) + topic_ids
    found, inverse = np.unique(codes, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    for code, start, end in zip(found.tolist(), [0, *ends[:-1].tolist()], ends.tolist(), strict=True):
        picked = rows.take(pa.array(order[start:end]))
        yield names[code % len(names)], code // len(names) + low, picked


def places(topic_ids: Any, partitions: Any) -> Iterator[tuple[int, int, Any]]:
    """(topic id, partition, which rows) for each partition in a batch."""
    if (topic_ids == topic_ids[0]).all() and (partitions == partitions[0]).all():
        yield int(topic_ids[0]), int(partitions[0]), slice(None)
        return
    codes = topic_ids.astype(np.int64) << 32 | partitions
    for code in np.unique(codes).tolist():
        yield code >> 32, code & 0xFFFFFFFF, codes == code
