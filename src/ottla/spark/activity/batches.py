"""What becomes of a micro-batch: `Batches` is what `foreachBatch` calls, with the rows of `parse`.

Knows: the order of things that makes the tables exactly once, and the watermark. Does not know: Kafka, the CLI.

The watermark of a batch is the latest event of all batches before it, less `delay_s`: none for the first batch. An
event before it is late: it goes to `late`, with the watermark it missed, and into nothing else. Spark's own watermark
is not used, because its aggregations drop what is late without a word, and by a rule of each operator's own. A window
is written, for good, in the batch after which the watermark has reached its end, a session when its last event lies
more than the gap before the watermark: nothing that is not late can belong to either any more.

For each batch: (1) one pass over the records writes the parsed rows to files, by outcome; (2) these are committed to
`events`, `late`, `malformed`; (3) sessions that were open are merged with the batch's pieces; those that are over are
committed, the others written beside; (4) windows that are over are counted from `events` and committed; (5) the ledger
is replaced. Every commit carries the batch's number. Killed anywhere before 5, the batch is done again over the same
offsets: what was committed is passed over, the rest is made again, from the same rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.activity import lake
from ottla.spark.activity.lake import Lake, Written
from ottla.spark.activity.parse import EVENT_COLUMNS
from ottla.spark.activity.sessions import PIECE_SCHEMA, conversions, merge, pieces, sessions
from ottla.spark.activity.tables import COME, EVENTS, SCHEMAS, Entry, Tables, micros, moment, replace
from ottla.spark.activity.windows import top_pages, windowed
from ottla.spark.failures import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(slots=True)
class Batches:
    """`query`: who the query is (its checkpoint's id). `publish`: given every table's rows that are new, by name."""

    tables: Tables
    query: Callable[[], str]
    delay_s: float
    publish: Callable[[str, DataFrame], None] | None = None
    failure: PipelineFailed | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        try:
            self.take(frame, number)
        except PipelineFailed as failure:
            self.failure = failure
            raise

    def take(self, frame: DataFrame, number: int) -> None:
        before = self.tables.entry()
        query = self.query()
        if before.query and before.query != query:
            raise PipelineFailed(
                f"The tables in {self.tables.root} were filled from another checkpoint, up to its batch {before.batch}:"
                " what they have would come again. Give that checkpoint, or another table directory."
            )
        if before.batch >= number:
            return
        session = frame.sparkSession
        folder = self.tables.staging()
        lake.clear(folder)
        try:
            self.work(session, frame, number, replace(before, query=query, batch=number), folder)
        finally:
            lake.clear(folder)
        lake.clear(self.tables.open_sessions(before.batch))

    def work(self, session: SparkSession, frame: DataFrame, number: int, entry: Entry, folder: Path) -> None:
        staged = self.stage(frame, entry.watermark_us, folder / "parsed")
        events, late, malformed = (staged[name] for name in COME)
        seen = [each for each in (moment(entry.latest_us), events.greatest) if each is not None]
        latest = micros(max(seen)) if seen else None
        watermark = None if latest is None else latest - round(self.delay_s * 1e6)
        entry = replace(
            entry,
            latest_us=latest,
            watermark_us=watermark,
            events=entry.events + events.rows,
            late=entry.late + late.rows,
            malformed=entry.malformed + malformed.rows,
        )
        new = session.read.schema(EVENTS).parquet(*map(lake.uri, events.files)) if events.rows else None
        over, pending = self.grow(session, new, entry, folder)
        for name in COME:
            self.tables.lakes[name].add(staged[name], entry.query, number)
        self.commit("sessions", over, entry)
        entry = replace(entry, sessions=entry.sessions + over.rows)
        entry = self.close_windows(session, entry, folder)
        lake.keep(pending, self.tables.open_sessions(number))
        self.tables.keep(entry)

    def stage(self, frame: DataFrame, watermark_us: int | None, folder: Path) -> dict[str, Written]:
        """Write the batch in one pass into files, by what became of each record."""
        from pyspark.sql import functions as F

        session = frame.sparkSession
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        session.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(len(COME)))
        watermark = F.timestamp_micros(F.lit(watermark_us).cast("long"))
        bad = F.col("reason").isNotNull()
        late = F.coalesce(F.col("time") < watermark, F.lit(False))
        rows = frame.select(
            *EVENT_COLUMNS,
            F.when(late, watermark).alias("watermark"),
            "reason",
            F.when(bad, F.col("value")).alias("value"),
            F.when(bad, F.col("timestamp")).alias("timestamp"),
            F.when(bad, "malformed").when(late, "late").otherwise("events").alias("outcome"),
        )
        rows.write.partitionBy("outcome").option("compression", "zstd").parquet(lake.uri(folder))
        return {name: lake.gathered(folder / f"outcome={name}", SCHEMAS[name][1]) for name in COME}

    def grow(self, session: SparkSession, new: DataFrame | None, entry: Entry, folder: Path) -> tuple[Written, Path]:
        """Merge the open sessions with the batch's events: those that are over now, and the folder of the others."""
        from pyspark.sql import functions as F

        settings = self.tables.settings
        last = self.tables.entry().batch
        if new is None and not any(self.tables.open_sessions(last).glob("*.parquet")):
            nothing = folder / "sessions"
            nothing.mkdir(parents=True)
            return Written((), 0), nothing
        parts = self.pending(session, last)
        if new is not None:
            parts = parts.unionByName(pieces(new, conversion=settings.conversion))
        quiet_since = F.unix_micros("end") + round(settings.gap_s * 1e6)
        over = F.coalesce(quiet_since < F.lit(entry.watermark_us).cast("long"), F.lit(False))
        merged = merge(parts, gap_s=settings.gap_s).withColumn("over", over)
        merged.write.partitionBy("over").option("compression", "zstd").parquet(lake.uri(folder / "sessions"))
        pending, done = folder / "sessions" / "over=false", folder / "sessions" / "over=true"
        pending.mkdir(exist_ok=True)
        if not done.exists():
            return Written((), 0), pending
        ended = sessions(session.read.schema(PIECE_SCHEMA).parquet(lake.uri(done)), conversion=settings.conversion)
        return lake.write(ended.withColumn("final", F.lit(True)), folder / "over", "end"), pending

    def pending(self, session: SparkSession, batch: int) -> DataFrame:
        """The sessions that were open after a batch, as pieces."""
        files = sorted(lake.uri(file) for file in self.tables.open_sessions(batch).glob("*.parquet"))
        if not files:
            return session.createDataFrame([], PIECE_SCHEMA)
        return session.read.schema(PIECE_SCHEMA).parquet(*files)

    def close_windows(self, session: SparkSession, entry: Entry, folder: Path) -> Entry:
        """Count the windows that are over now, of events and of sessions."""
        if entry.watermark_us is None:
            return entry
        window_us, gap_us = self.tables.settings.window_s * 1_000_000, round(self.tables.settings.gap_s * 1e6)
        watermark_us = entry.watermark_us
        until = watermark_us // window_us * window_us
        if entry.windows_until_us is None or until > entry.windows_until_us:
            events = self.of("events", session, entry.windows_until_us, until)
            for name, rows in self.counts(events).items():
                self.commit(name, self.written(rows, name, folder, final=True), entry)
            entry = replace(entry, windows_until_us=until)
        until = (watermark_us - gap_us) // window_us * window_us
        if entry.conversions_until_us is None or until > entry.conversions_until_us:
            rows = conversions(
                self.of("sessions", session, entry.conversions_until_us, until), window_s=self.tables.settings.window_s
            )
            self.commit("conversions", self.written(rows, "conversions", folder, final=True), entry)
            entry = replace(entry, conversions_until_us=until)
        return entry

    def of(self, name: str, session: SparkSession, since_us: int | None, until_us: int | None) -> DataFrame:
        """The rows of a table by its time column: since <= time < until."""
        from pyspark.sql import functions as F

        table = self.tables.lakes[name]
        rows = table.frame(session, moment(since_us))
        return rows if until_us is None else rows.where(F.col(str(table.by)) < F.lit(moment(until_us)))

    def counts(self, events: DataFrame) -> dict[str, DataFrame]:
        settings = self.tables.settings
        return {
            "windows": windowed(events, window_s=settings.window_s),
            "pages": top_pages(events, window_s=settings.window_s, top=settings.top),
        }

    def written(self, rows: DataFrame, name: str, folder: Path, *, final: bool) -> Written:
        from pyspark.sql import functions as F

        where = folder / f"{name}-{uuid.uuid4().hex[:8]}"
        return lake.write(rows.withColumn("final", F.lit(final)), where, SCHEMAS[name][1])

    def commit(self, name: str, rows: Written, entry: Entry, *, run: str = "") -> None:
        """Add rows to a table and tell the topic of them. `run`: of rows that the next run takes back."""
        table: Lake = self.tables.lakes[name]
        if self.publish is not None and rows.rows:
            from pyspark.sql import SparkSession

            session = SparkSession.getActiveSession()
            assert session is not None
            frame = session.read.schema(table.schema).parquet(*map(lake.uri, rows.files))
            self.publish(f"{name}-{run or entry.batch}", frame)
        table.add(rows, None if run else entry.query, entry.batch)

    # The beginning and the end of a run

    def begin(self) -> None:
        """Take back what was not final when the last run ended."""
        for name in ("windows", "pages", "sessions", "conversions"):
            self.tables.lakes[name].take_back("final = false")

    def finish(self, session: SparkSession) -> None:
        """Write the windows and sessions that are still open, as they are, with `final` false."""
        session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        entry, folder, run = self.tables.entry(), self.tables.staging(), uuid.uuid4().hex
        if entry.batch < 0:
            return
        settings = self.tables.settings
        lake.clear(folder)
        try:
            growing = sessions(self.pending(session, entry.batch), conversion=settings.conversion)
            self.commit("sessions", self.written(growing, "sessions", folder, final=False), entry, run=run)
            rows = self.counts(self.of("events", session, entry.windows_until_us, None))
            visits = self.of("sessions", session, entry.conversions_until_us, None)
            rows["conversions"] = conversions(visits, window_s=settings.window_s)
            for name, frame in rows.items():
                self.commit(name, self.written(frame, name, folder, final=False), entry, run=run)
        finally:
            lake.clear(folder)
