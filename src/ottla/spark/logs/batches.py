"""Writes each micro-batch of log lines to the tables: `Batches` is what `foreachBatch` calls, with ranges of offsets.

Steps of each batch, whose order makes it exactly-once:

1. One pass, Spark's only job, writes the lines that their table lacks to files. It counts them by service, window,
   level and format.
2. The lines are committed.
3. The counts are published and committed.

After a kill before the end, Spark repeats the batch: each table leaves out the records that it has, by their offsets.
"""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ottla.client import TopicPartition
from ottla.spark.lake.delta_table import DeltaTable
from ottla.spark.lake.parquet_files import described
from ottla.spark.lake.schemas import arrow_schema
from ottla.spark.logs import counting, windows
from ottla.spark.logs import parse as parsing
from ottla.spark.logs.staging import LineSettings, Stage, Staged, stage
from ottla.spark.platform.durable import write_json
from ottla.spark.running.progress import BatchRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.spark.reader.options import SourceOptions

LINES = f"{parsing.SCHEMA}, late boolean"
FOLD_EVERY = 200
UNPARSED = "unparsed"
PLACES = "_places.json"
STAGING = "_staging"
LEFT_OVER_S = 86_400

__all__ = ["LINES", "UNPARSED", "Batches", "Counts", "LineSettings", "Tables"]


@dataclass(slots=True)
class Counts:
    """Counts of a run's lines. `formats` includes UNPARSED; read == already + sum of formats == already + written."""

    read: int = 0
    already: int = 0
    late: int = 0
    timeless: int = 0
    written: int = 0
    """Lines in the files that became part of the table, by their footers."""
    formats: Counter[str] = field(default_factory=Counter)

    @property
    def adds_up(self) -> bool:
        return self.read == self.already + self.formats.total() == self.already + self.written


@dataclass(slots=True)
class Tables:
    """The two tables of the pipeline under one directory."""

    root: Path
    lines: DeltaTable
    windows: DeltaTable

    @classmethod
    def make(cls, path: str) -> Tables:
        root = Path(path).absolute()
        return cls(
            root,
            DeltaTable(root / "lines", arrow_schema(LINES), ("service", "time", "timestamp")),
            DeltaTable(root / "windows", arrow_schema(windows.SCHEMA), ("service", "start")),
        )

    def partitions(self) -> set[TopicPartition]:
        """Every partition that the tables may have records of."""
        try:
            return {(topic, number) for topic, number in json.loads((self.root / PLACES).read_bytes())}
        except FileNotFoundError:
            return set()

    def note_partitions(self, places: Iterable[TopicPartition]) -> None:
        """Note partitions before anything of them is committed."""
        known = self.partitions()
        if not known.issuperset(places):
            write_json(self.root / PLACES, sorted(known.union(places)))

    def ends(self, table: DeltaTable) -> dict[TopicPartition, int]:
        """Return each partition's end offset in a table."""
        return {place: end for place in self.partitions() if (end := table.next_offset(place))}

    def agree(self) -> bool:
        """Whether both tables hold the same records."""
        return all(self.lines.next_offset(place) == self.windows.next_offset(place) for place in self.partitions())

    def latest(self) -> dict[str, int]:
        """Per service the latest time that moves its watermark, in microseconds."""
        found: dict[str, int] = {}
        for file in self.windows.files():
            note(found, counting.latest_of(pq.read_table(file, columns=["service", "latest"])))
        return found

    def rates(self, new: pa.Table) -> list[dict[str, Any]]:
        """Return the figures of the windows that these rows add to, with these rows included."""
        touched = new.select(["service", "start"]).group_by(["service", "start"]).aggregate([])
        if files := list(self.windows.files()):
            services, starts = (touched[name].combine_chunks() for name in ("service", "start"))
            within = ds.field("service").isin(services) & ds.field("start").isin(starts)
            near = ds.dataset(files, schema=new.schema, format="parquet").to_table(filter=within)
            old = near.join(touched, ["service", "start"], join_type="left semi")
            new = pa.concat_tables([new, old.select(new.column_names)])
        return counting.rates(new)


class Batches:
    """Writes micro-batches to the tables. The rows are ranges, to be read with `source`.

    `publish`: called with the rates of the windows that a batch added to, before they count as published.
    """

    def __init__(
        self,
        tables: Tables,
        settings: LineSettings,
        source: SourceOptions,
        publish: Callable[[DataFrame, list[dict[str, Any]]], None] | None = None,
    ) -> None:
        clear_left_over(tables.root / STAGING)
        self._tables = tables
        self._settings = settings
        self._source = source
        self._publish = publish
        self._latest = tables.latest()
        self._done = 0
        self.counts: dict[int, Counts] = {}
        """By batch; a batch that is repeated after an outage counts as it did when its lines were committed."""

    def counted(self, number: int) -> BatchRows:
        found = self.counts.get(number, Counts())
        return BatchRows(found.read, found.late)

    def __call__(self, frame: DataFrame, number: int) -> None:
        tables = self._tables
        folder = tables.root / STAGING / uuid.uuid4().hex
        for table in (tables.lines, tables.windows):
            table.refresh()
        try:
            staged = added = self._stage(frame, tables.lines, folder)
            tables.note_partitions(staged.ends)
            if not tables.agree():  # the process was killed between the two commits of this batch
                added = self._stage(frame, tables.windows, None)
            counts = summary(staged)
            tables.lines.add(described(staged.files, tables.lines.bounded), ends=staged.ends)
            self.counts.setdefault(number, counts)
            self._add_counts(frame, added)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _stage(self, frame: DataFrame, table: DeltaTable, folder: Path | None) -> Staged:
        """Count the lines that a table lacks, and write them to files in a folder."""
        delay_us = round(self._settings.delay_s * 1e6)
        marks = {service: latest - delay_us for service, latest in self._latest.items()}
        ends = self._tables.ends(table)
        return stage(frame, Stage(None if folder is None else str(folder), self._source, self._settings, marks, ends))

    def _add_counts(self, frame: DataFrame, added: Staged) -> None:
        if not len(added.counts):
            return
        if self._publish is not None:
            self._publish(frame, self._tables.rates(added.counts))
        self._tables.windows.add_rows(added.counts, ends=added.ends)
        note(self._latest, counting.latest_of(added.counts))
        self._done += 1
        if self._done % FOLD_EVERY == 0:
            self._tables.windows.compact()


def clear_left_over(staging: Path) -> None:
    """Remove files of killed runs; the folder of a run that is still writing is younger than a day."""
    for folder in staging.glob("*"):
        with suppress(FileNotFoundError):
            if time.time() - folder.stat().st_mtime > LEFT_OVER_S:
                shutil.rmtree(folder, ignore_errors=True)


def summary(staged: Staged) -> Counts:
    counts = Counts(staged.read, staged.already)
    counts.written = sum(pq.read_metadata(file).num_rows for file in staged.files)
    for row in staged.counts.to_pylist():
        counts.formats[row["format"] or UNPARSED] += row["rows"]
        counts.late += row["rows"] if row["late"] else 0
        counts.timeless += row["rows"] if row["start"] is None else 0
    return counts


def note(latest: dict[str, int], found: Mapping[str, int]) -> None:
    for service, moment in found.items():
        latest[service] = max(moment, latest.get(service, moment))
