"""Implements the loops of the encoder, in the subset of Python that numba compiles: the partition of each row, the
bounds of batches, and the bytes of records.

The loops use murmur2 like Kafka's partitioner, varints and the layout of a record (DefaultRecord.java, Utils.java
`murmur2`, BuiltInPartitioner.java). They make no Python objects and allocate nothing. They read and write arrays by
address; the caller made these large enough, and `encode_layout.py` defines their contents. `encode.py` adds topics'
names, batch headers, CRCs and compression. `native.py` compiles and loads this module.

All numbers are int64; right shifts never get negative numbers.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from numba import int64, void

from ottla.spark.codec import encode_layout as at
from ottla.spark.codec.decode_kernels import Bytes, Ints, Longs, bytes_at, compiled, copy, intrinsic, moved

SIGNATURES = {
    "place": int64(Longs, int64, Ints, Longs, Longs, int64),
    "group": void(Ints, int64, Longs, int64, Ints),
    "cut": int64(Longs, Ints, Longs, int64, Longs, int64, Longs),
    "write": void(Longs, Ints, Longs, int64, Bytes),
}

HEADER_BYTES = 61

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

Column = namedtuple("Column", "valid ends content present nullable")
Rows = namedtuple("Rows", "times keys values has_headers header_ends names contents")


@intrinsic
def ints_at(typing: Any, address: Any) -> Any:
    """A number as the address of int32s."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(Ints))

    return Ints(int64), generate


@intrinsic
def longs_at(typing: Any, address: Any) -> Any:
    """A number as the address of int64s."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(Longs))

    return Longs(int64), generate


@compiled
def column_at(rows: Any, slot: int) -> Any:
    valid, ends, content = rows[slot], rows[slot + 1], rows[slot + 2]
    return Column(bytes_at(valid), ints_at(ends), bytes_at(content), ends != 0, valid != 0)


@compiled
def rows_at(rows: Any) -> Any:
    return Rows(
        longs_at(rows[at.TIMES]),
        column_at(rows, at.KEY),
        column_at(rows, at.VALUE),
        rows[at.HEADER_ENDS] != 0,
        ints_at(rows[at.HEADER_ENDS]),
        column_at(rows, at.HEADER_KEY),
        column_at(rows, at.HEADER_VALUE),
    )


@compiled
def murmur2(data: Any, start: int, end: int) -> Any:
    """Kafka's hash of a key, 32 bits, as a number that is not negative."""
    h = (_SEED ^ (end - start)) & _MASK
    pos = start
    while end - pos >= 4:
        k = int64(data[pos]) | int64(data[pos + 1]) << 8 | int64(data[pos + 2]) << 16 | int64(data[pos + 3]) << 24
        k = (k * _M) & _MASK
        k ^= k >> 24
        h = ((h * _M) & _MASK) ^ ((k * _M) & _MASK)
        pos += 4
    if end - pos == 3:
        h ^= int64(data[pos + 2]) << 16
    if end - pos >= 2:
        h ^= int64(data[pos + 1]) << 8
    if end - pos >= 1:
        h = ((h ^ int64(data[pos])) * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def place(columns: Any, count: int, lanes: Any, topics: Any, available: Any, turn_bytes: int) -> Any:
    """Write the lane of each of `count` rows into `lanes`; return -1, or the first row whose partition does not exist.

    A given partition takes precedence, then the key's hash. Rows with neither stay with one partition for `turn_bytes`,
    then use the topic's next available one. On entry, `lanes` has each row's topic.
    """
    given, given_valid = ints_at(columns[at.GIVEN]), bytes_at(columns[at.GIVEN + 1])
    has_given, all_given = columns[at.GIVEN] != 0, columns[at.GIVEN + 1] == 0
    rows = rows_at(columns)
    keys, value_ends = rows.keys, rows.values.ends
    for row in range(count):
        topic = moved(topics, int64(lanes[row]) * at.TOPIC_WIDTH)
        partitions = topic[at.PARTITIONS]
        if has_given and (all_given or given_valid[row]):
            partition = int64(given[row])
            if partition < 0 or partition >= partitions:
                return row
        elif keys.present and (not keys.nullable or keys.valid[row]):
            key_hash = murmur2(keys.content, int64(keys.ends[row]), int64(keys.ends[row + 1]))
            partition = (key_hash & 0x7FFFFFFF) % partitions
        else:
            partition = available[topic[at.AVAILABLE] + topic[at.TURN] % topic[at.AVAILABLE_COUNT]]
            topic[at.TURN_BYTES] += int64(value_ends[row + 1]) - int64(value_ends[row]) + 16
            if topic[at.TURN_BYTES] >= turn_bytes:
                topic[at.TURN] += 1
                topic[at.TURN_BYTES] = 0
        lanes[row] = topic[at.FIRST_LANE] + partition
    return int64(-1)


def group(lanes: Any, count: int, starts: Any, lane_count: int, order: Any) -> None:
    """Order `count` rows by lane, keeping their order within each: lane i has order[starts[i]:starts[i + 1]]. On entry,
    `starts` has `lane_count` + 1 zeros."""
    for row in range(count):
        starts[lanes[row] + 1] += 1
    for lane in range(1, lane_count + 1):
        starts[lane] += starts[lane - 1]
    for row in range(count):
        lane = int64(lanes[row])
        order[starts[lane]] = row
        starts[lane] += 1
    for lane in range(lane_count, 0, -1):
        starts[lane] = starts[lane - 1]
    starts[0] = 0


@compiled
def zigzag(value: Any) -> Any:
    return (value << 1) ^ (value >> 63)


@compiled
def varint_bytes(value: Any) -> Any:
    """How long the zigzag varint of a number is; every number here has less than 63 bits."""
    left = zigzag(value)
    size = int64(1)
    while left > 0x7F:
        left >>= 7
        size += 1
    return size


@compiled
def block_bytes(column: Any, row: int) -> Any:
    if not column.present or (column.nullable and not column.valid[row]):
        return int64(1)
    length = int64(column.ends[row + 1]) - int64(column.ends[row])
    return varint_bytes(length) + length


@compiled
def fixed_bytes(rows: Any, row: int) -> Any:
    """Return the size of a record without its length and its two deltas: attributes, key, value, headers."""
    size = 1 + block_bytes(rows.keys, row) + block_bytes(rows.values, row)
    if not rows.has_headers:
        return size + 1
    first, end = int64(rows.header_ends[row]), int64(rows.header_ends[row + 1])
    size += varint_bytes(end - first)
    for i in range(first, end):
        size += block_bytes(rows.names, i) + block_bytes(rows.contents, i)
    return size


def cut(columns: Any, order: Any, starts: Any, lane_count: int, limits: Any, record_bytes_max: int, plan: Any) -> Any:
    """Compute where batches begin and end, one line of `plan` each. Return their number, or -1 - row for a row that is
    too large. A batch of lane i ends before it would have more than limits[i] bytes; a larger record has its own
    batch."""
    rows = rows_at(columns)
    times = rows.times
    made = int64(0)
    for lane in range(lane_count):
        count = size = base = int64(0)
        batch = plan
        for index in range(starts[lane], starts[lane + 1]):
            row = int64(order[index])
            fixed = fixed_bytes(rows, row)
            time = times[row]
            body = fixed + varint_bytes(time - base) + varint_bytes(count)
            if count == 0 or size + body + varint_bytes(body) > limits[lane]:
                batch = moved(plan, made * at.PLAN_WIDTH)
                made += 1
                count, size, base = int64(0), int64(HEADER_BYTES), time
                batch[at.ROW], batch[at.LANE], batch[at.BASE_MS], batch[at.MAX_MS] = index, lane, time, time
                body = fixed + 2
            body += varint_bytes(body)
            if HEADER_BYTES + body > record_bytes_max:
                return -1 - row
            size += body
            count += 1
            batch[at.COUNT], batch[at.BYTES] = count, size - HEADER_BYTES
            batch[at.MAX_MS] = max(batch[at.MAX_MS], time)
    return made


@compiled
def put_varint(out: Any, pos: int, value: int) -> Any:
    left = zigzag(value)
    while left > 0x7F:
        out[pos] = left & 0x7F | 0x80
        left >>= 7
        pos += 1
    out[pos] = left
    return pos + 1


@compiled
def put_block(out: Any, pos: int, column: Any, row: int) -> Any:
    if not column.present or (column.nullable and not column.valid[row]):
        out[pos] = 1
        return pos + 1
    start, end = int64(column.ends[row]), int64(column.ends[row + 1])
    pos = put_varint(out, pos, end - start)
    copy(out, pos, column.content, start, end - start)
    return pos + end - start


def write(columns: Any, order: Any, plan: Any, batches: int, out: Any) -> None:
    """Write the records of this number of batches, one batch after the other, each after space for its header."""
    rows = rows_at(columns)
    pos = int64(0)
    for number in range(batches):
        batch = moved(plan, number * at.PLAN_WIDTH)
        pos += HEADER_BYTES
        for delta in range(batch[at.COUNT]):
            row = int64(order[batch[at.ROW] + delta])
            elapsed = rows.times[row] - batch[at.BASE_MS]
            pos = put_varint(out, pos, fixed_bytes(rows, row) + varint_bytes(elapsed) + varint_bytes(delta))
            out[pos] = 0
            pos = put_varint(out, pos + 1, elapsed)
            pos = put_varint(out, pos, delta)
            pos = put_block(out, pos, rows.keys, row)
            pos = put_block(out, pos, rows.values, row)
            if not rows.has_headers:
                out[pos] = 0
                pos += 1
                continue
            first, end = int64(rows.header_ends[row]), int64(rows.header_ends[row + 1])
            pos = put_varint(out, pos, end - first)
            for i in range(first, end):
                pos = put_block(out, pos, rows.names, i)
                pos = put_block(out, pos, rows.contents, i)
