"""Writes each micro-batch to the tables: `Batches` is what `foreachBatch` calls.

The watermark of a batch is the latest event time of all earlier batches, minus `delay_s`. The first batch has none. An
event before the watermark is late: it goes to `late` only, together with the watermark it missed. Spark's own watermark
is not used, because its aggregations drop late events silently, each operator by its own rule.

A window is written, finally, in the batch after which the watermark has reached its end. A session is written when its
last event lies more than the gap before the watermark. From then on, only late events could belong to it.

Steps of each batch:

1. One pass over the records writes the parsed rows to files, by outcome.
2. Sessions that were open are merged with the session pieces of the batch.
3. The files of step 1 are committed to `events`, `late` and `malformed`; finished sessions are committed to their
   tables.
4. Windows that have ended are counted from `events` and committed.
5. The file of open sessions and then the ledger are replaced.

Every commit carries the number of the batch, which makes the tables exactly-once. If the process is killed before step
5 has replaced the ledger, Spark repeats the batch over the same offsets. The repeated batch skips what was committed
and makes the rest again from the same rows.

Spark always does step 1. For the other steps, this process handles up to `local_rows_max` rows, because that takes less
time than starting a Spark job. Spark handles larger batches.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.activity.aggregator import Aggregator, Span
from ottla.spark.activity.local import LocalAggregator, goals_of
from ottla.spark.activity.local_sessions import Goals
from ottla.spark.activity.spark import SparkAggregator
from ottla.spark.activity.staging import Stage, stage
from ottla.spark.activity.tables import RECORD_TABLES, Entry, Tables, micros, moment, replace
from ottla.spark.lake.parquet_files import WrittenFiles, described, files_in, put_in_place, remove_folder, uri
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.running.progress import BatchRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ottla.spark.reader.options import SourceOptions

LOCAL_ROWS_MAX = 1 << 20
LOCAL_BYTES_MAX = 512 << 20
"""Compressed size of the files with these rows."""


@dataclass(slots=True)
class Batches:
    """Writes micro-batches to `tables`. `query`: the query's id (of its checkpoint). `publish`: called with a name and
    the new rows of every table. `source`: micro-batches are ranges to be read with these options; without it, records.
    `counts`: records by batch, for batches whose count has not been requested yet."""

    tables: Tables
    query: Callable[[], str]
    delay_s: float
    publish: Callable[[str, DataFrame], None] | None = None
    source: SourceOptions | None = None
    local_rows_max: int = LOCAL_ROWS_MAX
    counts: dict[int, BatchRows] = field(default_factory=dict)
    _goals: Goals | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        self.tables.refresh()
        before = self.tables.entry()
        query = self.query()
        if before.query and before.query != query:
            raise PipelineFailedError(
                f"The tables in {self.tables.root} were filled from another checkpoint, up to its batch {before.batch}:"
                " what they have would come again. Give that checkpoint, or another table directory."
            )
        if before.batch >= number:
            return
        session = frame.sparkSession
        folder = self.tables.staging()
        remove_folder(folder)
        try:
            self.work(session, frame, number, replace(before, query=query, batch=number), folder)
        finally:
            remove_folder(folder)
        remove_folder(self.tables.open_sessions(before.batch))

    def counted(self, number: int) -> BatchRows:
        return self.counts.pop(number, BatchRows(0))

    def work(self, session: SparkSession, frame: DataFrame, number: int, entry: Entry, folder: Path) -> None:
        staged = self.stage(frame, entry.watermark_us, folder / "parsed")
        events, late, malformed = (staged[name] for name in RECORD_TABLES)
        seen = [each for each in (moment(entry.latest_us), events.greatest("time")) if each is not None]
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
        over = self.merge_sessions(session, events, entry, folder)
        for name in RECORD_TABLES:
            self.tables.by_name[name].add(staged[name], batch=(entry.query, number))
        self.commit("sessions", over, entry)
        entry = replace(entry, sessions=entry.sessions + over.rows)
        entry = self.close_windows(session, entry, folder)
        put_in_place(folder / "open", self.tables.open_sessions(number))
        self.tables.keep(entry)
        self.counts[number] = BatchRows(events.rows + late.rows + malformed.rows, late.rows)

    def stage(self, frame: DataFrame, watermark_us: int | None, folder: Path) -> dict[str, WrittenFiles]:
        """Write the batch in one pass into files, by the outcome of each record."""
        zone = frame.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
        files = stage(frame, Stage(str(folder), watermark_us, zone, self.source))
        return {name: described(files[name], self.tables.by_name[name].bounded) for name in RECORD_TABLES}

    def merge_sessions(self, session: SparkSession, new: WrittenFiles, entry: Entry, folder: Path) -> WrittenFiles:
        """Merge the open sessions with the batch's events; write those that are over, and the others below
        folder/open."""
        last, watermark_us = self.tables.entry().batch, entry.watermark_us
        pending = self.pending(last)
        if not new.rows and not pending.rows:
            (folder / "open").mkdir()
            return pending
        until_us = None if watermark_us is None else watermark_us - round(self.tables.settings.gap_s * 1e6)
        aggregator = self.aggregator(session, new.rows + pending.rows, [*new.files, *pending.files])
        return aggregator.merge_sessions(pending.files, new.files, until_us, folder)

    def pending(self, batch: int) -> WrittenFiles:
        """The sessions that were open after a batch, as pieces."""
        return files_in(self.tables.open_sessions(batch))

    def aggregator(self, session: SparkSession, rows: int, files: Iterable[Path]) -> Aggregator:
        """Return the aggregator for this number of rows in these files."""
        if rows > self.local_rows_max or sum(file.stat().st_size for file in files) > LOCAL_BYTES_MAX:
            return SparkAggregator(session, self.tables)
        if self._goals is None:
            self._goals = goals_of(session, self.tables.settings.conversion)
        return LocalAggregator(self.tables, self._goals)

    def aggregator_of(self, session: SparkSession, name: str, span: Span) -> Aggregator:
        """Return the aggregator for the rows of a table."""
        files = self.tables.by_name[name].files(span[0])
        return self.aggregator(session, sum(files.values()), map(Path, files))

    def close_windows(self, session: SparkSession, entry: Entry, folder: Path) -> Entry:
        """Count the windows that are over now, of events and of sessions."""
        if entry.watermark_us is None:
            return entry
        window_us, gap_us = self.tables.settings.window_s * 1_000_000, round(self.tables.settings.gap_s * 1e6)
        watermark_us = entry.watermark_us
        until = watermark_us // window_us * window_us
        if entry.windows_until_us is None or until > entry.windows_until_us:
            span = moment(entry.windows_until_us), moment(until)
            made = self.aggregator_of(session, "events", span).windows(span, folder, final=True)
            for name, rows in made.items():
                self.commit(name, rows, entry)
            entry = replace(entry, windows_until_us=until)
        until = (watermark_us - gap_us) // window_us * window_us
        if entry.conversions_until_us is None or until > entry.conversions_until_us:
            span = moment(entry.conversions_until_us), moment(until)
            made = self.aggregator_of(session, "sessions", span).conversions(span, folder, final=True)
            self.commit("conversions", made, entry)
            entry = replace(entry, conversions_until_us=until)
        return entry

    def commit(self, name: str, rows: WrittenFiles, entry: Entry, *, run: str = "") -> None:
        """Add rows to a table and publish them to the topic. `run`: of rows that the next run removes."""
        table = self.tables.by_name[name]
        if self.publish is not None and rows.rows:
            from pyspark.sql import SparkSession

            session = SparkSession.getActiveSession()
            assert session is not None
            frame = session.read.schema(table.ddl).parquet(*map(uri, rows.files))
            self.publish(f"{name}-{run or entry.batch}", frame)
        table.add(rows, batch=None if run else (entry.query, entry.batch))

    # ---- the beginning and the end of a run ------------------------------------------------------------------------

    def begin(self) -> None:
        """Remove rows that were not final when the last run ended."""
        for name in ("windows", "pages", "sessions", "conversions"):
            self.tables.by_name[name].delete("final = false")

    def finish(self, session: SparkSession) -> None:
        """Write the windows and sessions that are still open, with `final` false."""
        entry, folder, run = self.tables.entry(), self.tables.staging(), uuid.uuid4().hex
        if entry.batch < 0:
            return
        remove_folder(folder)
        try:
            pending = self.pending(entry.batch)
            growing = self.aggregator(session, pending.rows, pending.files).open_sessions(pending.files, folder)
            self.commit("sessions", growing, entry, run=run)
            span = moment(entry.windows_until_us), None
            made = self.aggregator_of(session, "events", span).windows(span, folder, final=False)
            span = moment(entry.conversions_until_us), None
            made["conversions"] = self.aggregator_of(session, "sessions", span).conversions(span, folder, final=False)
            for name, rows in made.items():
                self.commit(name, rows, entry, run=run)
        finally:
            remove_folder(folder)
