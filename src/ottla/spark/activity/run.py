"""Runs the pipeline: topics of web activity to the result tables, to a topic, and to a report page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.spark.activity.batches import Batches
from ottla.spark.activity.tables import Tables, WindowSettings
from ottla.spark.activity.totals import Totals, totals
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.running.checkpoints import Checkpoint
from ottla.spark.running.micro_batches import MicroBatchPipeline
from ottla.spark.running.run import RunOptions, broker_options, require_topics
from ottla.spark.running.topic_ids import require_same

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "activity"
TITLE = "Website activity"
DELAY_S = 10 * 60.0


@dataclass(frozen=True, slots=True)
class ActivityResult:
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
    settings: WindowSettings | None = None,
    delay_s: float = DELAY_S,
    output_topic: str | None = None,
    report: str | None = None,
    title: str = TITLE,
    batch_rows: int | None = None,
    allow_loss: bool = False,
    session: SparkSession | None = None,
) -> ActivityResult:
    """Run until stopped or (`options.once`) done, then write open windows and sessions, check the figures and draw the
    report.

    `delay_s`: how far an event may be before the latest one without being late. `allow_loss`: continue if the log has
    dropped records before they were read. Raises PipelineFailedError, also if the figures do not add up.
    """
    require_topics(options, [*topics, *([output_topic] if output_topic else [])])
    tables = Tables.make(table, settings or WindowSettings())
    require_same(options, topics, tables.root)
    pipeline = MicroBatchPipeline.into(tables.root, QUERY, options, topics, allow_loss=allow_loss)
    began = time.monotonic()
    with pipeline.session(session) as spark:
        checkpoint = pipeline.checkpoint(spark)
        publish = None if output_topic is None else publisher(options, output_topic, checkpoint)
        batches = Batches(tables, checkpoint.query, delay_s, publish, pipeline.reading)
        batches.begin()
        finished = pipeline.run(spark, batches, batch_rows=batch_rows)
        batches.finish(spark)
        found = totals(spark, tables)
        if report is not None:
            from ottla.spark.activity.report_page import report_page
            from ottla.spark.report import write_page

            write_page(report, report_page(tables, found, title))
    if found.problems:
        raise PipelineFailedError(f"{found} {' '.join(found.problems)}")
    return ActivityResult(finished.rows, time.monotonic() - began, finished.stopped, found)


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
