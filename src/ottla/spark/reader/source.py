"""Defines the readers of `spark.read.format("ottla")` and `spark.readStream.format("ottla")`, as Spark calls them.

Spark makes these objects in Python processes of its own: one that plans a batch, one that lives as long as a streaming
query, and workers that read. Readers hold only options, so that they can be sent between these processes. Columns and
options are those of Spark's own Kafka source; see `docs/pipelines/source.md`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.spark.platform.client_properties import WrongOptionError
from ottla.spark.platform.cores import local_cores
from ottla.spark.platform.workers import SentToWorkers, spare_collections
from ottla.spark.reader.offsets import Cluster
from ottla.spark.reader.options import (
    Offsets,
    SourceOptions,
    batch_options,
    offsets_as_dict,
    offsets_from,
    stream_options,
)
from ottla.spark.reader.plan import Range, TaskRanges, limited, task_ranges

if TYPE_CHECKING:
    from pyarrow import RecordBatch

SMALL_BATCH = 2_000
"""Offsets of a micro-batch that one task reads: a second one costs more than it saves."""

COLUMNS = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
)
HEADER = StructType().add("key", StringType()).add("value", BinaryType())
COLUMNS_WITH_HEADERS = StructType([*COLUMNS.fields, StructField("headers", ArrayType(HEADER))])
RANGES = (
    StructType()
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("first", LongType())
    .add("until", LongType())
)
"""With `rangesOnly`: a row for each range, in the task that would have read it."""


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of `spark.read`. Raises WrongOptionError."""
    return BatchReader(_with_columns(batch_options(options), schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader of `spark.readStream`. Raises WrongOptionError."""
    return StreamReader(_with_columns(stream_options(options), schema))


def columns_of(options: SourceOptions) -> StructType:
    """The source's columns, those of Spark's Kafka source, or those of ranges."""
    if options.ranges_only:
        return RANGES
    return COLUMNS_WITH_HEADERS if options.include_headers else COLUMNS


def _with_columns(options: SourceOptions, schema: StructType) -> SourceOptions:
    if schema.simpleString() != columns_of(options).simpleString():
        raise WrongOptionError("The columns of this source are fixed: do not give it a schema of your own.")
    return options


class BatchReader(SentToWorkers, DataSourceReader):
    """Plans and reads a batch query; its offsets are fixed when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        cluster = Cluster(self.options)
        try:
            planned = _task_ranges(cluster.batch_ranges(), self.options)
        finally:
            cluster.close()
        return planned or [TaskRanges([])]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _read(partition, self.options)


class StreamReader(SentToWorkers, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads micro-batches; offsets are {"topic": {"0": 123}}, as those of Spark's Kafka source."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.cluster = Cluster(options)
        threading.Thread(target=_prepare_decoder, name="ottla-decoder", daemon=True).start()
        self._initial: Offsets | None = None
        self._latest: Offsets | None = None
        self._freezes = False
        self._frozen: Offsets | None = None
        self._last_batch_s = -math.inf

    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset. Spark calls this twice for a first batch, some time apart, and needs the same
        answer: "latest" must not advance."""
        if self._initial is None:
            self._initial = self.cluster.resolve(self.options.starting, "startingOffsets")
        return offsets_as_dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        if options.min_offsets_per_trigger is not None:
            return ReadMinRows(options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._freezes = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begun = offsets_from(start)
        latest = self._latest = self._frozen if self._frozen is not None else self.cluster.latest(begun)
        if self._freezes:
            self._frozen = latest
        if isinstance(limit, ReadAllAvailable):
            return offsets_as_dict(latest)
        if self._waits(begun, latest):
            return start
        if self.options.max_offsets_per_trigger is None:
            return offsets_as_dict(latest)
        begins = self.cluster.earliest(latest.keys() - begun.keys())
        return offsets_as_dict(limited(self.options.max_offsets_per_trigger, begun, latest, begins))

    def _waits(self, begun: Offsets, latest: Offsets) -> bool:
        """Whether to wait because there are too few records for a batch. AvailableNow does not wait: it would take the
        wait for the end."""
        least, now_s = self.options.min_offsets_per_trigger, time.monotonic()
        if least is None or self._freezes:
            return False
        there = sum(max(offset - begun.get(place, 0), 0) for place, offset in latest.items())
        if there < least and now_s - self._last_batch_s < self.options.max_trigger_delay_ms / 1000:
            return True
        self._last_batch_s = now_s
        return False

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._latest is None else offsets_as_dict(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begun, ends = offsets_from(start), offsets_from(end)
        if begun == self._initial:  # a first batch planned by a run before this one, whose "latest" was earlier
            begun = {place: min(offset, ends.get(place, offset)) for place, offset in begun.items()}
        ranges = self.cluster.stream_ranges(begun, ends)
        return _task_ranges(ranges, self.options, small=SMALL_BATCH)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return _read(partition, self.options)

    def stop(self) -> None:
        self.cluster.close()


def _prepare_decoder() -> None:
    """Compile the loops now if they never were, not in the first micro-batch. Otherwise this costs 0.06 s, while Spark
    plans; a worker that needs them meanwhile waits for the same file."""
    from ottla.spark.codec.native import loops

    loops("decode_kernels")


def _task_ranges(ranges: Sequence[Range], options: SourceOptions, small: int = 0) -> list[TaskRanges]:
    """`small`: up to this many offsets in all are one task, unless the options set the number of tasks."""
    tasks = options.reader_tasks or (1 if sum(each.size for each in ranges) <= small else local_cores())
    return task_ranges(
        ranges,
        tasks=tasks or len(ranges),
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[RecordBatch]:
    assert isinstance(partition, TaskRanges)
    if options.ranges_only:
        return _ranges(partition)
    from ottla.spark.reader.reading import read

    spare_collections()
    return read(partition.ranges, options)


def _ranges(share: TaskRanges) -> Iterator[RecordBatch]:
    import pyarrow as pa

    columns = [(each.topic, each.partition, each.first, each.until) for each in share.ranges]
    types = (pa.string(), pa.int32(), pa.int64(), pa.int64())
    if columns:
        arrays = [pa.array(column, type) for column, type in zip(zip(*columns, strict=True), types, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, RANGES.names)
