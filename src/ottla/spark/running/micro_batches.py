"""Runs a pipeline of one query, which writes topics to the tables of a directory, a micro-batch at a time.

The rows of a micro-batch are ranges of offsets. Tasks on the executors fetch the ranges themselves, so no record passes
through the JVM. The writer of the batches commits what they made, and recognises a batch that Spark repeats.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.platform.session import pipeline_session, require_workers
from ottla.spark.reader.losses import ALLOW_LOSS
from ottla.spark.reader.options import SourceOptions, stream_options
from ottla.spark.running.checkpoints import Checkpoint
from ottla.spark.running.each_batch import each_batch
from ottla.spark.running.progress import BatchRows
from ottla.spark.running.run import Finished, RunOptions, read_stream, run_queries, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class BatchWriter(Protocol):
    """Writes micro-batches to tables, each once."""

    def __call__(self, frame: DataFrame, number: int, /) -> None:
        """Write a batch, unless the tables have it. Raises PipelineFailedError."""
        ...

    def counted(self, number: int, /) -> BatchRows:
        """Return the records of a batch that was written; called once for each batch."""
        ...


@dataclass(frozen=True, slots=True)
class MicroBatchPipeline:
    """A pipeline and how it reads. `name`: of the query, and of its checkpoint's directory. `source`: options of
    format("ottla"), for the stream and for its tasks."""

    name: str
    options: RunOptions
    topics: Sequence[str] | re.Pattern[str]
    source: Mapping[str, str]

    @classmethod
    def into(
        cls,
        table: Path,
        name: str,
        options: RunOptions,
        topics: Sequence[str] | re.Pattern[str],
        *,
        allow_loss: bool,
        **source: str,
    ) -> MicroBatchPipeline:
        """A pipeline whose checkpoint is below the table, unless the options name another. `allow_loss`: continue if
        the log has dropped records before they were read."""
        directory = options.checkpoint or str(table / "_checkpoint")
        options = replace(options, checkpoint=directory, on_loss=ALLOW_LOSS)
        return cls(name, options, topics, {**source, "failOnDataLoss": str(not allow_loss).lower()})

    @property
    def reading(self) -> SourceOptions:
        """How tasks read their ranges."""
        return stream_options(source_options(self.options, self.topics, **self.source))

    def checkpoint(self, session: SparkSession) -> Checkpoint:
        return Checkpoint(session, f"{str(self.options.checkpoint).rstrip('/')}/{self.name}")

    @contextmanager
    def session(self, existing: SparkSession | None) -> Iterator[SparkSession]:
        """Yield the existing session, or a new one, which is stopped at the end."""
        options = self.options
        session = existing or pipeline_session(f"ottla-{self.name}", master=options.master, conf=options.conf)
        try:
            require_workers(session)
            yield session
        finally:
            if existing is None:
                session.stop()

    def run(
        self, session: SparkSession, writer: BatchWriter, *, batch_rows: int | None = None, starting: str = "earliest"
    ) -> Finished:
        """Run the query as `run_queries` does. `starting`: where a query without a checkpoint begins. Raises the
        writer's own failure in place of Spark's account of it."""
        failures: list[PipelineFailedError] = []

        def take(frame: DataFrame, number: int) -> None:
            failures.clear()
            try:
                writer(frame, number)
            except PipelineFailedError as failure:
                failures.append(failure)
                raise

        more = {} if batch_rows is None else {"maxOffsetsPerTrigger": batch_rows}
        ranges = read_stream(
            session, self.options, self.topics, rangesOnly=True, startingOffsets=starting, **self.source, **more
        )
        query = ranges.writeStream.queryName(self.name).foreachBatch(each_batch(take))
        try:
            return run_queries(self.options, session, [query], {self.name: writer.counted})
        except PipelineFailedError as failure:
            if failures:
                raise failures[0] from failure
            raise
