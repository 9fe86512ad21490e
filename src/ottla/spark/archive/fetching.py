"""Runs on the executors: fetches, decodes and writes the ranges of a micro-batch, all in one process.

The source returns only ranges (`rangesOnly`), planned and distributed as usual, so no record passes through the JVM.
`ottla.spark.reader.reading` fetches and `writing` writes the files.

Invariant: the ranges are those of the checkpointed micro-batch, so a repeated task or batch reads the same offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ottla.spark.archive.writing import WriteFiles, reports_of
from ottla.spark.reader.options import SourceOptions
from ottla.spark.reader.plan import Range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class FetchFiles:
    """Fetches ranges and writes their records: for `mapInArrow` over rows (topic, partition, first, until); yields what
    `WriteFiles` does.

    Raises what `ottla.spark.reader.reading.read` raises; Spark then repeats the task."""

    plan: WriteFiles
    options: SourceOptions

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from ottla.spark.reader.reading import read

        ranges = [Range(**row) for batch in batches for row in batch.to_pylist()]
        return self.plan(read(ranges, self.options))


def fetch_files(ranges: DataFrame, plan: WriteFiles, options: SourceOptions) -> list[dict[str, Any]]:
    """Run the archiving tasks of a micro-batch on the executors, each with its own ranges; return the tasks'
    reports."""
    return reports_of(ranges, FetchFiles(plan, options))
