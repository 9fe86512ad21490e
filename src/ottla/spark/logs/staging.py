"""Runs on the executors: fetches the lines of a micro-batch, parses them, writes them to files and counts them.

The files are Parquet files below one folder. The driver's commit decides which become part of a table. A task may
therefore run twice or be killed at any moment: only files in a task's report count. No record passes through the JVM.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions when it is imported

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.client import TopicPartition
from ottla.spark.logs import counting
from ottla.spark.logs.line import LineReader
from ottla.spark.logs.parse import lines_of
from ottla.spark.platform.workers import WorkerFunction
from ottla.spark.reader.options import SourceOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.spark.reader.plan import Range

REPORT_SCHEMA = "report string, counts binary"
HELD_BYTES = 128 << 20
"""Bytes of a task's lines that are written to files together."""
OWN_FILE_ROWS = 256
"""A service with fewer lines shares a file with others."""
GROUP_ROWS = 1 << 17
REPEATED = ["service", "file", "host", "level", "level_text", "component", "format", "topic", "partition"]
BOUNDED = ["service", "time", "timestamp", "level", "late", "partition", "offset"]
FILES: Mapping[str, Any] = {"compression": "zstd", "use_dictionary": REPEATED, "write_statistics": BOUNDED}


@dataclass(frozen=True, slots=True)
class LineSettings:
    """How lines are read and counted. `zone`: of times that name none. `hints`: service to format."""

    window_s: int = 300
    delay_s: float = 600.0
    zone: str = "UTC"
    hints: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stage:
    """Writes and counts a task's part of a micro-batch: for `mapInArrow` over rows of ranges; yields a row of
    REPORT_SCHEMA. `folder`: for the files; None: lines are only counted. `watermarks`: per service, microseconds.
    `ends`: each partition's end offset in the table."""

    folder: str | None
    source: SourceOptions
    settings: LineSettings
    watermarks: Mapping[str, int]
    ends: Mapping[TopicPartition, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from ottla.spark.reader.plan import Range
        from ottla.spark.reader.reading import read

        work = TaskLines(self)
        ranges = [Range(**row) for batch in batches for row in batch.to_pylist()]
        known = ends_within(ranges, self.ends)
        for batch in read(ranges, self.source):
            work.take(batch, known)
        report, counts = work.close()
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)], "counts": [counts]})


@dataclass(slots=True)
class Staged:
    """Result of a micro-batch. `ends`: each partition's end offset in the batch, of lines that were not `already` in
    the table. `counts`: rows of `windows.SCHEMA`."""

    read: int
    already: int
    files: list[Path]
    ends: dict[TopicPartition, int]
    counts: pa.Table


def stage(frame: DataFrame, task: Stage) -> Staged:
    """Run the task on the executors, in one job."""
    if task.folder is not None:
        Path(task.folder).mkdir(parents=True)
    rows = frame.mapInArrow(WorkerFunction(task), REPORT_SCHEMA).collect()
    reports = [json.loads(row.report) for row in rows]
    ends: dict[TopicPartition, int] = {}
    for topic, partition, end in (each for report in reports for each in report["ends"]):
        ends[topic, partition] = max(end, ends.get((topic, partition), 0))
    return Staged(
        sum(report["read"] for report in reports),
        sum(report["already"] for report in reports),
        [Path(task.folder or "") / name for report in reports for name in report["files"]],
        ends,
        counting.summed([pa.ipc.open_stream(bytes(row.counts)).read_all() for row in rows], task.settings.window_s),
    )


def ends_within(ranges: Sequence[Range], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Those of the ends that lie behind the beginning of a range."""
    begins = (((each.topic, each.partition), each.first) for each in ranges)
    return {place: ends[place] for place, first in begins if first < ends.get(place, 0)}


class TaskLines:
    """The lines of one task."""

    def __init__(self, task: Stage) -> None:
        self._task = task
        self._reader = LineReader(task.settings.zone, task.settings.hints)
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._counts: list[pa.Table] = []
        self._files: list[str] = []
        self._ends: dict[TopicPartition, int] = {}
        self._read = self._already = 0

    def take(self, records: pa.RecordBatch, known: Mapping[TopicPartition, int]) -> None:
        """Process records; the table has those before `known` already."""
        self._read += len(records)
        new = records if not known else unknown(records, known)
        self._already += len(records) - len(new)
        if not len(new):
            return
        task, lines = self._task, lines_of(self._reader, new)
        table, counts = counting.marked(lines, task.watermarks, task.settings.window_s)
        self._counts.append(counts)
        last = table.group_by(["topic", "partition"]).aggregate([("offset", "max")])
        for row in last.to_pylist():
            place = (row["topic"], row["partition"])
            self._ends[place] = max(self._ends.get(place, 0), row["offset_max"] + 1)
        if task.folder is not None:
            self._held.append(table)
            self._held_bytes += table.nbytes
            if self._held_bytes > HELD_BYTES:
                self._write(Path(task.folder))

    def close(self) -> tuple[dict[str, Any], bytes]:
        """The report, and the counts as an Arrow stream."""
        if self._held and self._task.folder is not None:
            self._write(Path(self._task.folder))
        counts = counting.summed(self._counts, self._task.settings.window_s)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, counts.schema) as stream:
            stream.write_table(counts)
        report = {
            "read": self._read,
            "already": self._already,
            "files": self._files,
            "ends": [[topic, partition, end] for (topic, partition), end in self._ends.items()],
        }
        return report, out.getvalue().to_pybytes()

    def _write(self, folder: Path) -> None:
        """Write the collected lines: a file for each service with many lines, one for all others; each ordered by
        time."""
        held = pa.concat_tables(self._held).combine_chunks()
        self._held, self._held_bytes = [], 0
        codes = held["service"].combine_chunks().dictionary_encode().indices
        order = pc.sort_indices(
            pa.table({"service": codes, "time": held["time"]}),
            sort_keys=[("service", "ascending"), ("time", "ascending")],
        )
        held = held.take(order)
        few: list[pa.Table] = []
        at = 0
        for rows in np.bincount(codes.to_numpy()).tolist():
            part = held.slice(at, rows)
            at += rows
            if rows < OWN_FILE_ROWS:
                few.append(part)
            else:
                self._write_file(folder, part)
        if few:
            self._write_file(folder, pa.concat_tables(few))

    def _write_file(self, folder: Path, lines: pa.Table) -> None:
        name = f"{uuid.uuid4().hex}.parquet"
        pq.write_table(lines, folder / name, row_group_size=GROUP_ROWS, **FILES)
        self._files.append(name)


def unknown(records: pa.RecordBatch, known: Mapping[TopicPartition, int]) -> pa.RecordBatch:
    """The records that do not lie before `known`."""
    places = zip(records["topic"].to_pylist(), records["partition"].to_pylist(), strict=True)
    pairs = zip(places, records["offset"].to_pylist(), strict=True)
    return records.filter(pa.array([offset >= known.get(place, 0) for place, offset in pairs], pa.bool_()))
