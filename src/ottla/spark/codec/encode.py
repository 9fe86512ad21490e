"""Encodes Arrow columns as record batches, a run of batches for each topic and partition. No object per record.

This module chooses partitions like Kafka. The loops are in `encode_kernels.py`, loaded by `native.py`; compression and
CRC-32C are in `ottla.protocol.records`. The sender of a batch sets producer id and sequence (`writer/publishing.py`).
`writer/destinations.py` supplies the topics' partitions.

Invariants: rows for one partition keep their order; every record is in exactly one batch; a batch has its CRC.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ottla.protocol.records import batch as b
from ottla.protocol.records.compression import compress
from ottla.spark.codec import encode_layout as at
from ottla.spark.codec.native import loops

NOWHERE = (0, 0, 0)
"""The addresses of a missing column."""
NULL_TOPIC = (
    "The Kafka message data sent to the producer contains a null topic. Use the `topic` option for setting a default "
    "topic."
)
_MICROS = pa.timestamp("us", tz="UTC")


class WriteRefusedError(Exception):
    """Raised for rows that cannot be written, or not to their destination: one sentence that names the topic."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A topic: number of partitions, which of them are available now, maximum bytes of a batch."""

    topic: str
    partitions: int
    available: tuple[int, ...]
    batch_bytes_max: int


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How batches are made. `topic` wins over the column. `codec` and `level` as in `records.compression`."""

    topic: str | None
    batch_bytes: int
    record_bytes_max: int
    codec: int = 0
    level: int | None = None


class Encoded(NamedTuple):
    """One whole batch without producer id and sequence."""

    topic: str
    partition: int
    records: int
    content: memoryview


Place = tuple[Destination, int]


class Encoder:
    """Encodes tables of rows as batches; keeps the state that spreads rows without a key evenly."""

    def __init__(self, options: EncodeOptions, find: Callable[[str], Destination], first_turn: int = 0) -> None:
        self._options = options
        self._find = find
        self._first_turn = first_turn
        self._sticky: dict[str, tuple[int, int]] = {}
        self._loops = loops("encode_kernels")

    def encode(self, rows: pa.RecordBatch | pa.Table) -> list[Encoded]:
        """Raises WriteRefusedError for a null or unknown topic, a partition that does not exist, a record that is too
        large."""
        if rows.num_rows == 0:
            return []
        columns = {name: _chunk(rows.column(name)) for name in rows.schema.names}
        names, lanes = self._topics(columns.get("topic"), rows.num_rows)
        found = [self._find(name) for name in names]
        inputs = Inputs(columns, rows.num_rows)
        if inputs.times.min() < 0:
            name = names[lanes[inputs.times.argmin()]]
            raise WriteRefusedError(f"A row for topic {name} has a time before 1970, which Kafka can't store.")
        self._place(found, lanes, inputs)
        starts = np.zeros(sum(each.partitions for each in found) + 1, np.int64)
        order = np.empty(rows.num_rows, np.int32)
        self._loops["group"](address(lanes), len(lanes), address(starts), len(starts) - 1, address(order))
        where = [(each, partition) for each in found for partition in range(each.partitions)]
        plan, count = self._cut(where, lanes, inputs, order, starts)
        return list(self._batches(where, inputs, order, plan, count))

    def _topics(self, column: Any, rows: int) -> tuple[list[str], np.ndarray]:
        """The names, and each row's index among them."""
        if self._options.topic is not None:
            return [self._options.topic], np.zeros(rows, np.int32)
        if column is None or column.null_count:
            raise WriteRefusedError(NULL_TOPIC)
        coded = column.dictionary_encode()
        return coded.dictionary.to_pylist(), np.array(coded.indices, np.int32)

    def _place(self, found: list[Destination], lanes: np.ndarray, inputs: Inputs) -> None:
        """Turn `lanes` from each row's topic into its lane: partitions of all topics, counted through."""
        topics = np.empty((len(found), at.TOPIC_WIDTH), np.int64)
        available: list[int] = []
        lane = 0
        for line, each in zip(topics, found, strict=True):
            turn = self._sticky.get(each.topic, (self._first_turn, 0))
            line[:] = (lane, each.partitions, len(available), len(each.available), *turn)
            lane += each.partitions
            available += each.available
        choices = np.array(available, np.int64)
        lists = address(lanes), address(topics), address(choices)
        wrong = self._loops["place"](inputs.address, len(lanes), *lists, self._options.batch_bytes)
        if wrong >= 0:
            there = found[lanes[wrong]]
            raise WriteRefusedError(
                f"A row for topic {there.topic} names partition {inputs.partitions[wrong]}, but the topic has "
                f"partitions 0 to {there.partitions - 1}."
            )
        for each, line in zip(found, topics.tolist(), strict=True):
            self._sticky[each.topic] = (line[at.TURN], line[at.TURN_BYTES])

    def _cut(
        self, where: list[Place], lanes: np.ndarray, inputs: Inputs, order: np.ndarray, starts: np.ndarray
    ) -> tuple[np.ndarray, int]:
        """Return where batches begin and end, and their number."""
        limits = np.array([min(self._options.batch_bytes, each.batch_bytes_max) for each, _ in where], np.int64)
        plan = np.empty((len(order), at.PLAN_WIDTH), np.int64)
        most = self._options.record_bytes_max
        lists = address(order), address(starts), len(starts) - 1, address(limits)
        count = self._loops["cut"](inputs.address, *lists, most, address(plan))
        if count < 0:
            topic = where[lanes[-1 - count]][0].topic
            raise WriteRefusedError(
                f"A row for topic {topic} makes a record larger than the {most} bytes of option "
                "'kafka.max.request.size'. Set that option higher; the topic's max.message.bytes must allow it too."
            )
        return plan, count

    def _batches(
        self, places: list[Place], inputs: Inputs, order: np.ndarray, plan: np.ndarray, count: int
    ) -> Iterator[Encoded]:
        out = np.empty(int(plan[:count, at.BYTES].sum()) + count * b.HEADER_BYTES, np.uint8)
        self._loops["write"](inputs.address, address(order), address(plan), count, address(out))
        view, pos = memoryview(out.data), 0
        for _, records, size, base_ms, max_ms, lane in plan[:count].tolist():
            where, partition = places[lane]
            end = pos + b.HEADER_BYTES + size
            whole = self._close(view[pos:end], records, base_ms, max_ms)
            if len(whole) > where.batch_bytes_max:
                raise WriteRefusedError(
                    f"A row for topic {where.topic} makes a batch of {len(whole)} bytes, but the topic takes "
                    f"{where.batch_bytes_max}. Raise its max.message.bytes, or compress."
                )
            yield Encoded(where.topic, partition, records, whole)
            pos = end

    def _close(self, whole: memoryview, records: int, base_ms: int, max_ms: int) -> memoryview:
        """Compress the records, unless that makes them larger, write the header in front of them and the CRC."""
        codec = self._options.codec
        if codec:
            packed = compress(codec, whole[b.HEADER_BYTES :], self._options.level)
            if len(packed) < len(whole) - b.HEADER_BYTES:
                whole = memoryview(bytearray(b.HEADER_BYTES) + packed)
            else:
                codec = 0
        length = len(whole) - b.LOG_OVERHEAD_BYTES
        b.HEADER.pack_into(
            whole,
            0,
            0,
            length,
            b.NO_LEADER_EPOCH,
            b.MAGIC,
            0,
            codec,
            records - 1,
            base_ms,
            max_ms,
            b.NO_PRODUCER_ID,
            b.NO_PRODUCER_EPOCH,
            b.NO_SEQUENCE,
            records,
        )
        b.set_crc(whole)
        return whole


class Inputs:
    """The columns of one table as arrays, and the address of their addresses; keeps alive what they point to."""

    def __init__(self, columns: Mapping[str, Any], rows: int) -> None:
        self._kept: list[Any] = [columns]
        self.times = times_of(columns.get("timestamp"), rows)
        self.partitions = np.empty(0, np.int32)
        table = np.zeros(at.ROWS_WIDTH, np.int64)
        table[at.TIMES] = address(self.times)
        if (given := columns.get("partition")) is not None:
            self.partitions = np.array(given.fill_null(-1), np.int32)
            table[at.GIVEN : at.KEY] = address(self.partitions), self._valid(given)
        table[at.KEY : at.VALUE] = self._bytes(columns.get("key"))
        table[at.VALUE : at.HEADER_ENDS] = self._bytes(columns["value"])
        table[at.HEADER_ENDS :] = self._headers(columns.get("headers"))
        self._kept.append(table)
        self.address = address(table)

    def _bytes(self, column: Any) -> tuple[int, int, int]:
        """Validity, ends and bytes of a column of text or bytes, without a copy."""
        if column is None:
            return NOWHERE
        if column.type not in (pa.string(), pa.binary()):
            column = column.cast(pa.binary())
        if len(column) == 0:
            return NOWHERE
        self._kept.append(column)
        _, ends, content = column.buffers()
        return self._valid(column), ends.address + 4 * column.offset, 0 if content is None else content.address

    def _headers(self, column: Any) -> tuple[int, ...]:
        """The ends of the rows' lists, and the two columns of their elements. Raises WriteRefusedError for a null
        name."""
        if column is None:
            return 0, *NOWHERE, *NOWHERE
        ends = np.array(column.offsets, np.int32)
        self._kept.append(ends)
        used = column.values.slice(ends[0], ends[-1] - ends[0])
        names, contents = column.values.field(0), column.values.field(1)
        if used.null_count or names.slice(ends[0], ends[-1] - ends[0]).null_count:
            raise WriteRefusedError("A row has a header without a key, which Kafka can't store.")
        return address(ends), *self._bytes(names), *self._bytes(contents)

    def _valid(self, column: Any) -> int:
        """One byte a row, 0 for null; no address when there are no nulls."""
        if column.null_count == 0:
            return 0
        bits = np.frombuffer(column.buffers()[0], np.uint8)
        whole = np.unpackbits(bits, bitorder="little", count=column.offset + len(column))
        self._kept.append(whole)
        return address(whole) + column.offset


def times_of(column: Any, rows: int) -> np.ndarray:
    """Return milliseconds; the current time for null."""
    now_ms = time.time_ns() // 1_000_000
    if column is None:
        return np.full(rows, now_ms, np.int64)
    micros = column.cast(_MICROS).cast(pa.int64()).fill_null(now_ms * 1000)
    return np.floor_divide(np.array(micros, np.int64), 1000)


def address(array: np.ndarray) -> int:
    return array.ctypes.data


def _chunk(column: Any) -> Any:
    """One array; a column of a table may have several."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
