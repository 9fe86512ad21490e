"""Defines the writers of `df.write.format("ottla")` and `df.writeStream.format("ottla")`, as Spark calls them.

Spark makes a writer in a Python process on the driver and sends it to the workers, which call `write`. It makes another
writer in the driver's process for each `commit`. Writers therefore hold only options. Columns are those of Spark's own
Kafka sink, and `timestamp`; options and guarantees are in docs/pipelines/sink.md.

By default, delivery is at least once: `write` sends to the brokers itself. With `exactlyOnce`, it stages batches, and
`commit` sends them (`staging.py`), with `transactional` as one transaction (`transaction.py`). The task's local
properties tell a worker the micro-batch and the query.

Source: KafkaWriter.scala, KafkaRowWriter (Spark 4.2) for columns, rules and the words of refusals.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.client import TopicPartition
from ottla.spark.platform.client_properties import WrongOptionError
from ottla.spark.platform.workers import SentToWorkers
from ottla.spark.writer.options import SinkOptions, sink_options
from ottla.spark.writer.publishing import Batch, PartitionQueue, Publisher, PublishFailedError
from ottla.spark.writer.staging import StagedFile, Staging
from ottla.spark.writer.transaction import Transactions

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from ottla.spark.codec.encode import Encoded

HEADERS = "array<struct<key:string,value:binary>>"
COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (HEADERS,),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Other columns are left out, as Spark's Kafka sink does."""

GATHERED_BYTES, GATHERED_ROWS = 16 << 20, 200_000
"""Size that is encoded at once: Spark's own Arrow batches are small, and full record batches are better."""
WAITING_BYTES = 16 << 20
"""Encoded bytes that may wait to be sent."""
BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
"""Spark's names: MicroBatchExecution.BATCH_ID_KEY, StreamExecution.QUERY_ID_KEY."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of `df.write`. Raises WrongOptionError."""
    if overwrite:
        raise WrongOptionError("Save mode overwrite is not allowed for Kafka topics: they can only be appended to.")
    wanted = sink_options(options)
    return BatchWriter(wanted, columns_of(schema, wanted.topic))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """The writer of `df.writeStream`, in every output mode: `complete` appends all rows of its result each time, as
    with Spark's Kafka sink. Raises WrongOptionError."""
    wanted = sink_options(options)
    if wanted.write_id is not None:
        raise WrongOptionError("Option 'writeId' is for batch writes; a stream is known by its query and micro-batch.")
    return StreamWriter(wanted, columns_of(schema, wanted.topic))


def columns_of(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns that are written. Raises WrongOptionError, in the words of Spark's Kafka sink."""
    given = {field.name: field for field in schema.fields if field.name in COLUMNS}
    for name, types in COLUMNS.items():
        if name in given and type_name(given[name].dataType) not in types:
            found = given[name].dataType.simpleString()
            raise WrongOptionError(
                f"{name} attribute unsupported type {found}. {name} must be a(n) {' or '.join(types)}"
            )
    if topic is None and "topic" not in given:
        raise WrongOptionError(
            "topic option required when no 'topic' attribute is present. Use the topic option for setting a topic."
        )
    if "value" not in given:
        raise WrongOptionError("Required attribute 'value' not found")
    return tuple(name for name in COLUMNS if name in given and (name != "topic" or topic is None))


def type_name(kind: DataType) -> str:
    """The type as `COLUMNS` has it, whatever may be null in it."""
    match kind:
        case StringType():
            return "string"
        case BinaryType():
            return "binary"
        case IntegerType():
            return "int"
        case TimestampType():
            return "timestamp"
        case ArrayType(elementType=StructType(fields=[StructField() as key, StructField() as value])):
            named = (key.name, type_name(key.dataType), value.name, type_name(value.dataType))
            return HEADERS if named == ("key", "string", "value", "binary") else kind.simpleString()
        case _:
            return kind.simpleString()


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """A task's report to the driver; with `exactlyOnce`, the query and the batches staged for it."""

    owner: str | None = None
    staged: StagedFile | None = None


class Writer(SentToWorkers):
    """Writes a task's rows, in the worker, for both kinds of query."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self.options = options
        self.columns = tuple(columns)

    def send(self, batches: Iterator[RecordBatch]) -> Written:
        """Produce straight from the task."""
        producer = producer_of(self.options)
        try:
            producer.send(self.encoded(batches, lambda: producer.publisher.client))
        except BaseException:
            forget_producer(self.options)
            raise
        return Written()

    def stage(self, staging: Staging, batch_id: int, owner: str, batches: Iterator[RecordBatch]) -> Written:
        """Stage the task's batches for the driver."""
        with self.options.client.connect() as client:
            encoded = (each for run in self.encoded(batches, lambda: client) for each in run)
            return Written(owner, staging.stage(batch_id, task_of(), encoded))

    def encoded(self, batches: Iterator[RecordBatch], client: Any) -> Iterator[list[Encoded]]:
        from ottla.spark.codec.encode import EncodeOptions, Encoder
        from ottla.spark.writer.destinations import Destinations

        options = self.options
        wanted = EncodeOptions(
            options.topic, options.batch_bytes, options.record_bytes_max, options.codec, options.level
        )
        destinations = Destinations(client, options.max_block_ms, options.delivery_timeout_ms)
        encoder = Encoder(wanted, destinations.find, first_turn=random.randrange(1 << 16))
        for rows in gathered(batches, self.columns):
            yield encoder.encode(rows)


class BatchWriter(Writer, DataSourceArrowWriter):
    """Writes what `df.write` is given. With `exactlyOnce` rows reach the topics in `commit`, so that a retried task
    adds nothing."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        super().__init__(options, columns)
        self.name = f"write-{options.write_id}" if options.write_id else f"job-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        if not self.options.exactly_once:
            return self.send(iterator)
        return self.stage(self._staging(), 0, self.name, iterator)

    def commit(self, messages: list[Written | None]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.options.exactly_once:
            publish(self.options, self._staging(), 0, messages, self.name)
            if self.options.write_id is None:
                self._staging().remove()

    def abort(self, messages: list[Written | None]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not self.options.exactly_once:
            return
        if self.options.write_id is None:
            self._staging().remove()
        else:
            self._staging().abort(0, staged_in(messages))

    def _staging(self) -> Staging:
        assert self.options.staging is not None
        return Staging(os.path.join(self.options.staging, self.name))


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """Writes what `df.writeStream` is given."""

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        if not self.options.exactly_once:
            return self.send(iterator)
        batch_id, query = micro_batch()
        return self.stage(self._staging(), batch_id, query, iterator)

    def commit(self, messages: list[Written | None], batchId: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.options.exactly_once:
            owner = next((message.owner for message in messages if message and message.owner), None)
            if owner is not None:
                publish(self.options, self._staging(), batchId, messages, owner)

    def abort(self, messages: list[Written | None], batchId: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.options.exactly_once:
            self._staging().abort(batchId, staged_in(messages))

    def _staging(self) -> Staging:
        assert self.options.staging is not None
        return Staging(self.options.staging)


def gathered(batches: Iterator[RecordBatch], columns: Sequence[str]) -> Iterator[Any]:
    """Tables of the wanted columns, each of many small Arrow batches."""
    import pyarrow as pa

    kept: list[RecordBatch] = []
    size = rows = 0
    for batch in batches:
        kept.append(batch.select(columns))
        size, rows = size + kept[-1].nbytes, rows + batch.num_rows
        if size >= GATHERED_BYTES or rows >= GATHERED_ROWS:
            yield pa.Table.from_batches(kept)
            kept, size, rows = [], 0, 0
    if rows:
        yield pa.Table.from_batches(kept)


# ---- in the worker -------------------------------------------------------------------------------------------------


class Producer:
    """A worker's own producer: one producer id, a queue for each partition it has written to, kept between tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.publisher = publisher_of(options)
        self.numbers: tuple[int, int] | None = None
        self.queues: dict[TopicPartition, PartitionQueue] = {}

    def send(self, runs: Iterator[list[Encoded]]) -> None:
        """Send all, and return when all were acknowledged. Raises PublishFailedError."""
        for run in runs:
            for each in run:
                queue = self._queue(each.topic, each.partition)
                queue.add(Batch(each.records, len(each.content), lambda each=each: each.content))
            self.publisher.send(list(self.queues.values()), WAITING_BYTES)
        self.publisher.send(list(self.queues.values()))

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        if (topic, partition) not in self.queues:
            if self.numbers is None:
                self.numbers = self.publisher.new_producer() if self.options.idempotent else (-1, -1)
            self.queues[topic, partition] = PartitionQueue(topic, partition, *self.numbers)
        return self.queues[topic, partition]


_producers: dict[SinkOptions, Producer] = {}
"""Python workers live longer than tasks: a connection and a producer id for each sink."""


def producer_of(options: SinkOptions) -> Producer:
    if options not in _producers:
        _producers[options] = Producer(options)
    return _producers[options]


def forget_producer(options: SinkOptions) -> None:
    """Close the producer after a failure: it is unknown which sequences were used."""
    producer = _producers.pop(options, None)
    if producer is not None:
        producer.publisher.close()


def task_of() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def micro_batch() -> tuple[int, str]:
    """The micro-batch and the query that this task belongs to. Raises PublishFailedError outside of any."""
    from pyspark import TaskContext

    context = TaskContext.get()
    batch_id = context.getLocalProperty(BATCH_ID) if context else None
    query = context.getLocalProperty(QUERY_ID) if context else None
    if batch_id is None or query is None:
        raise PublishFailedError("Option 'exactlyOnce' needs a query in micro-batches; this task belongs to none.")
    return int(batch_id), query


# ---- in the driver -------------------------------------------------------------------------------------------------


def publish(
    options: SinkOptions, staging: Staging, batch_id: int, messages: Sequence[Written | None], owner: str
) -> int:
    """Send what tasks staged, once. How many records were sent."""
    publisher = publisher_of(options)
    transactions = Transactions(publisher, owner, options.transaction_timeout_ms) if options.transactional else None
    try:
        return staging.commit(batch_id, owner, staged_in(messages), publisher, transactions)
    finally:
        publisher.close()


def staged_in(messages: Sequence[Written | None]) -> list[StagedFile]:
    return [message.staged for message in messages if message is not None and message.staged is not None]


def publisher_of(options: SinkOptions) -> Publisher:
    return Publisher(
        options.client.connect,
        acks=options.acks,
        request_bytes=options.request_bytes,
        in_flight_max=options.in_flight_max,
        delivery_timeout_ms=options.delivery_timeout_ms,
        request_timeout_ms=options.client.request_timeout_ms,
    )
