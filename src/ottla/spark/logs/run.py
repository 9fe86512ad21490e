"""Runs the pipeline: reads topics of log lines, writes the tables, a topic and a report page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ottla.spark.logs.batches import UNPARSED, Batches, Counts, LineSettings, Tables
from ottla.spark.logs.parse import check_hints, check_zone
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.running.micro_batches import MicroBatchPipeline
from ottla.spark.running.run import RunOptions, broker_options, require_topics
from ottla.spark.running.topic_ids import require_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "logs"
TITLE = "Logs"


@dataclass(frozen=True, slots=True)
class LogsResult:
    """Result of a run: what it read, and how it ended. Its text is the final line of output."""

    counts: Counts
    seconds: float
    stopped: bool

    def __str__(self) -> str:
        found = self.counts
        known = [(name, rows) for name, rows in found.formats.most_common() if name != UNPARSED]
        parsed = sum(rows for _, rows in known)
        each = ", ".join(f"{name} {rows:,}" for name, rows in known)
        already = f", {found.already:,} in the table already" if found.already else ""
        return (
            f"{found.read:,} lines read: {parsed:,} parsed{f' ({each})' if each else ''},"
            f" {found.formats[UNPARSED]:,} unparsed{already}; {found.late:,} late, {found.timeless:,} without a time."
        )


def run(
    options: RunOptions,
    topics: Sequence[str],
    table: str,
    *,
    settings: LineSettings | None = None,
    output_topic: str | None = None,
    report: str | None = None,
    title: str = TITLE,
    batch_rows: int | None = None,
    allow_loss: bool = False,
    session: SparkSession | None = None,
) -> LogsResult:
    """Run until stopped or (`options.once`) done; then check the counts and draw the report. `allow_loss`: continue if
    the log has dropped lines before they were read. Raises PipelineFailedError, also if the counts do not add up to the
    source's."""
    settings = settings or LineSettings()
    check_hints(settings.hints)
    check_zone(settings.zone)
    require_topics(options, [*topics, *([output_topic] if output_topic else [])])
    tables = Tables.make(table)
    require_same(options, topics, tables.root)
    pipeline = MicroBatchPipeline.into(
        tables.root, QUERY, options, topics, allow_loss=allow_loss, includeHeaders="true"
    )
    with pipeline.session(session) as spark:
        publish = None if output_topic is None else publisher(options, output_topic)
        batches = Batches(tables, settings, pipeline.reading, publish)
        finished = pipeline.run(spark, batches, batch_rows=batch_rows)
        if report is not None:
            from ottla.spark.logs.report_page import report_page
            from ottla.spark.report import write_page

            write_page(report, report_page(spark, tables, title))
    outcome = LogsResult(total(batches.counts.values()), finished.seconds, finished.stopped)
    if not outcome.counts.adds_up:
        raise PipelineFailedError(f"The counts do not add up: {outcome.counts.written:,} lines are in files. {outcome}")
    return outcome


def total(each: Iterable[Counts]) -> Counts:
    """The counts of a run out of its batches'."""
    summed = Counts(formats=Counter())
    for counts in each:
        summed.read += counts.read
        summed.already += counts.already
        summed.written += counts.written
        summed.late += counts.late
        summed.timeless += counts.timeless
        summed.formats.update(counts.formats)
    return summed


def publisher(options: RunOptions, topic: str) -> Callable[[DataFrame, list[dict[str, Any]]], None]:
    """Writes rates to a topic as JSON, keyed by service and window: the last record of a key is the current state."""

    def publish(batch: DataFrame, rates: list[dict[str, Any]]) -> None:
        if not rates:
            return
        rows = pa.table(
            {
                "key": [f"{each['service']} {each['start']:%Y-%m-%dT%H:%M:%SZ}" for each in rates],
                "value": [json.dumps(each, default=told, ensure_ascii=False, separators=(",", ":")) for each in rates],
            }
        )
        writer = batch.sparkSession.createDataFrame(rows).coalesce(1).write.format("ottla").mode("append")
        writer = writer.options(**broker_options(options), topic=topic)
        writer.save()

    return publish


def told(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.000Z"
