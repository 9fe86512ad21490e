"""Runs the pipeline: topics of web activity to the result tables, to a topic, and to a report page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ottla.spark.activity.batches import Batches
from ottla.spark.activity.tables import Settings, Tables
from ottla.spark.activity.totals import Totals, totals
from ottla.spark.platform.failures import PipelineFailed
from ottla.spark.platform.paths import table_path
from ottla.spark.platform.session import pipeline_session
from ottla.spark.reader.losses import ALLOW_LOSS
from ottla.spark.reader.options import stream_options
from ottla.spark.running.checkpoints import Checkpoint
from ottla.spark.running.each_batch import each_batch
from ottla.spark.running.progress import BatchRows
from ottla.spark.running.run import (
    Finished,
    RunOptions,
    broker_options,
    read_stream,
    require_topics,
    run_queries,
    source_options,
)
from ottla.spark.running.topic_ids import require_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "activity"
TITLE = "Website activity"
DELAY_S = 10 * 60.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, and the contents of the tables after it. `rows`: read by this run."""

    rows: int
    seconds: float
    stopped: bool
    totals: Totals

    def __str__(self) -> str:
        return str(self.totals)


def run(
    options: RunOptions,
    topics: Sequence[str],
    table: str,
    *,
    settings: Settings | None = None,
    delay_s: float = DELAY_S,
    output_topic: str | None = None,
    report: str | None = None,
    title: str = TITLE,
    batch_rows: int | None = None,
    allow_loss: bool = False,
    session: SparkSession | None = None,
) -> Outcome:
    """Run until stopped or (`options.once`) done, then write open windows and sessions, check the figures and draw the
    report.

    `delay_s`: how far an event may be before the latest one without being late. `allow_loss`: continue if the log has
    dropped records before they were read. Raises PipelineFailed, also if the figures do not add up.
    """
    require_topics(options, [*topics, *([output_topic] if output_topic else [])])
    directory = options.checkpoint or str(table_path(table) / "_checkpoint")
    options = replace(options, checkpoint=directory, on_loss=ALLOW_LOSS)
    tables = Tables.make(table, settings or Settings())
    require_same(options, topics, tables.root)
    began = time.monotonic()
    spark = session or pipeline_session("ottla-activity", master=options.master, conf=options.conf)
    try:
        checkpoint = Checkpoint(spark, f"{directory.rstrip('/')}/{QUERY}")
        publish = None if output_topic is None else publisher(options, output_topic, checkpoint)
        source = stream_options(source_options(options, topics, failOnDataLoss=str(not allow_loss)))
        batches = Batches(tables, checkpoint.query, delay_s, publish, source)
        batches.begin()
        more = {} if batch_rows is None else {"maxOffsetsPerTrigger": batch_rows}
        frame = read_stream(spark, options, topics, rangesOnly=True, failOnDataLoss=not allow_loss, **more)
        finished = work_off(options, spark, frame, batches)
        batches.finish(spark)
        found = totals(spark, tables)
        if report is not None:
            from ottla.spark.activity.report_page import report_page
            from ottla.spark.report import write_page

            write_page(report, report_page(tables, found, title))
    finally:
        if session is None:
            spark.stop()
    if found.problems:
        raise PipelineFailed(f"{found} {' '.join(found.problems)}")
    return Outcome(finished.rows, time.monotonic() - began, finished.stopped, found)


def work_off(options: RunOptions, spark: SparkSession, frame: DataFrame, batches: Batches) -> Finished:
    writer = frame.writeStream.queryName(QUERY).foreachBatch(each_batch(batches))
    try:
        return run_queries(options, spark, [writer], {QUERY: lambda batch: batches.counts.pop(batch, BatchRows(0))})
    except PipelineFailed as failure:
        if batches.failure is not None and batches.failure is not failure:
            raise batches.failure from failure
        raise


def publisher(options: RunOptions, topic: str, checkpoint: Checkpoint) -> Callable[[str, DataFrame], None]:
    """Writes rows of a table to a topic as JSON, once for each name."""

    def publish(name: str, rows: DataFrame) -> None:
        from pyspark.sql import functions as F

        result = name.split("-")[0]
        who = ["visitor", "start"] if result == "sessions" else ["start", *(["page"] if result == "pages" else [])]
        key = F.concat_ws(" ", F.lit(result), *(F.coalesce(F.col(each).cast("string"), F.lit("-")) for each in who))
        value = F.to_json(F.struct(F.lit(result).alias("result"), *rows.columns))
        writer = rows.select(key.alias("key"), value.alias("value")).write.format("ottla").mode("append")
        writer = writer.options(**broker_options(options), topic=topic)
        writer = writer.option("exactlyOnce", "true").option("writeId", f"{checkpoint.query()}-{name}")
        writer.option("stagingLocation", f"{checkpoint.path}/output").save()

    return publish
