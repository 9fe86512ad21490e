"""What becomes of a micro-batch: `Batches` is what `foreachBatch` calls.

Knows: the order of things that takes each record once. For each batch: (1) one pass writes the lines that their table
does not have to files; (2) these are counted, per service, window, level and format; (3) the lines are committed;
(4) the counts are published and committed. Killed anywhere before the end, the batch is done again: each table leaves
out the records that it has, by their offsets. Does not know: Kafka, the command line.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from ottla.spark.durable import write_json
from ottla.spark.failures import PipelineFailed
from ottla.spark.logs import parse as parsing
from ottla.spark.logs import windows
from ottla.spark.logs.lake import Lake, Place

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LINES = f"{parsing.SCHEMA}, late boolean"
FOLD_EVERY = 200
UNPARSED = "unparsed"
PLACES = "_places.json"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Settings:
    """How lines are read and counted. `zone`: of times that name none. `hints`: service to format."""

    window_s: int = 300
    delay_s: float = 600.0
    zone: str = "UTC"
    hints: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Counts:
    """What a run read. `formats` has UNPARSED too; read == sum of formats + already."""

    read: int = 0
    already: int = 0
    late: int = 0
    timeless: int = 0
    passes: int = 1
    """How often the source was read for it."""
    formats: Counter[str] = field(default_factory=Counter)

    @property
    def adds_up(self) -> bool:
        return self.read == self.already + self.formats.total()


@dataclass(slots=True)
class Tables:
    """The two tables of the pipeline under one directory."""

    root: Path
    lines: Lake
    windows: Lake

    @classmethod
    def make(cls, path: str) -> Tables:
        root = Path(path).absolute()
        return cls(
            root,
            Lake.make(root / "lines", LINES, ("service", "time", "timestamp")),
            Lake.make(root / "windows", windows.SCHEMA, ("service", "start")),
        )

    def places(self) -> set[Place]:
        """Every partition of which the tables may hold something."""
        try:
            return {(topic, number) for topic, number in json.loads((self.root / PLACES).read_bytes())}
        except FileNotFoundError:
            return set()

    def learn(self, places: Iterable[Place]) -> None:
        """Note partitions before anything of them is committed."""
        known = self.places()
        if not known.issuperset(places):
            write_json(self.root / PLACES, sorted(known.union(places)))

    def has(self, table: Lake) -> Column:
        """Whether a table has a record of the source."""
        from pyspark.sql import functions as F

        there = F.lit(False)
        for topic, partition in sorted(self.places()):
            end = table.next_offset((topic, partition))
            if end:
                there |= (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") < end)
        return there

    def together(self) -> bool:
        """Whether both tables hold the same records."""
        return all(self.lines.next_offset(place) == self.windows.next_offset(place) for place in self.places())

    def latest(self) -> dict[str, datetime]:
        """Per service the latest time that moves its watermark."""
        found: dict[str, datetime] = {}
        for file in self.windows.files():
            read = pq.read_table(file, columns=["service", "latest"]).group_by("service").aggregate([("latest", "max")])
            for row in read.to_pylist():
                note(found, row["service"], row["latest_max"])
        return found


class Batches:
    """Takes rows of `parse`, which is given the whole stream, so that no batch has to plan it.

    `publish`: given rates (rows of `windows.rates`) and the batch's number, before they count as published."""

    def __init__(
        self, tables: Tables, settings: Settings, publish: Callable[[DataFrame, int], None] | None = None
    ) -> None:
        self._tables = tables
        self._settings = settings
        self._publish = publish
        self._latest = tables.latest()
        self._done = 0
        self.counts: dict[int, Counts] = {}
        """By batch; a batch that is done again after an outage counts as it did when its lines were committed."""
        self.failure: PipelineFailed | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        try:
            self._take(frame, number)
        except PipelineFailed as failure:
            self.failure = failure
            raise

    def _take(self, frame: DataFrame, number: int) -> None:
        session = frame.sparkSession
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # INT96 has no statistics
        tables = self._tables
        folder = tables.root / "_staging" / uuid.uuid4().hex
        for table in (tables.lines, tables.windows):
            table.delta.update_incremental()
        try:
            files, counts = self._write(frame, folder / "lines", tables.lines)
            staged = read(session, files)
            ends = ends_of(staged)
            tables.learn(ends)
            added = [] if staged is None else self._counted(staged)
            sum_up(counts, added)
            if not tables.together():  # a kill came between the two commits of this batch
                missing = read(session, self._write(frame, folder / "missing", tables.windows)[0])
                added, ends = [] if missing is None else self._counted(missing), ends_of(missing)
                counts.passes = 2
            tables.lines.add(files, ends_of(staged))
            self.counts.setdefault(number, counts).passes = counts.passes
            self._add_counts(session, added, ends, number)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, frame: DataFrame, folder: Path, table: Lake) -> tuple[list[Path], Counts]:
        """Write what a table does not have, a file for each service and task."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        there = self._tables.has(table)
        observed = frame.observe(
            seen, F.count(F.lit(1)).alias("read"), F.coalesce(F.sum(there.cast("int")), F.lit(0)).alias("already")
        )
        lines = self._mark(observed.where(~there))
        lines = lines.withColumn("_service", F.md5("service")).sortWithinPartitions("_service", "time")
        lines.write.partitionBy("_service").option("compression", "zstd").parquet(str(folder))
        files = sorted(folder.glob("*/*.parquet"))
        found = seen.get
        return files, Counts(read=found["read"], already=found["already"])

    def _mark(self, lines: DataFrame) -> DataFrame:
        delay = timedelta(seconds=self._settings.delay_s)
        marks = {service: micros(latest - delay) for service, latest in self._latest.items()}
        return windows.marked(lines, marks, self._settings.window_s)

    def _counted(self, lines: DataFrame) -> list[dict[str, Any]]:
        """Rows of `windows.counts`, their times in UTC."""
        from pyspark.sql import functions as F

        counted = windows.counts(lines, self._settings.window_s)
        times = ("start", "end", "latest")
        rows = [row.asDict() for row in counted.withColumns({each: F.unix_micros(each) for each in times}).collect()]
        return [{**row, **{each: moment(row[each]) for each in times}} for row in rows]

    def _add_counts(
        self, session: SparkSession, rows: Sequence[Mapping[str, Any]], ends: Mapping[Place, int], number: int
    ) -> None:
        if not rows:
            return
        if self._publish is not None:
            self._publish(self._rates(session, rows), number)
        self._tables.windows.add_rows(rows, ends)
        for row in rows:
            note(self._latest, row["service"], row["latest"])
        self._done += 1
        if self._done % FOLD_EVERY == 0:
            self._tables.windows.fold()

    def _rates(self, session: SparkSession, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        """What is true now of the windows that these rows add to."""
        from pyspark.sql import functions as F

        new = session.createDataFrame([tuple(row.values()) for row in rows], windows.SCHEMA)
        touched = new.select("service", "start").distinct()
        old = self._tables.windows.frame(session).join(F.broadcast(touched), ["service", "start"])
        return windows.rates(old.select(*new.columns).unionByName(new))


def read(session: SparkSession, files: Sequence[Path]) -> DataFrame | None:
    return session.read.schema(LINES).parquet(*map(str, files)) if files else None


def ends_of(frame: DataFrame | None) -> dict[Place, int]:
    """Where each partition ends in a batch."""
    from pyspark.sql import functions as F

    if frame is None:
        return {}
    found = frame.groupBy("topic", "partition").agg(F.max("offset").alias("last")).collect()
    return {(row["topic"], row["partition"]): row["last"] + 1 for row in found}


def sum_up(counts: Counts, added: Sequence[Mapping[str, Any]]) -> None:
    for row in added:
        counts.formats[row["format"] or UNPARSED] += row["rows"]
        counts.late += row["rows"] if row["late"] else 0
        counts.timeless += row["rows"] if row["start"] is None else 0


def note(latest: dict[str, datetime], service: str, moment: datetime | None) -> None:
    if moment is not None and (service not in latest or moment > latest[service]):
        latest[service] = moment


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def moment(micros: int | None) -> datetime | None:
    return None if micros is None else EPOCH + timedelta(microseconds=micros)
