"""The loops of the encoder, compiled by numba: where each row goes, where batches end, and the bytes of records.

Knows murmur2 as Kafka's partitioner uses it, varints and the layout of a record (DefaultRecord.java, Utils.java
`murmur2`, BuiltInPartitioner.java). Knows nothing of topics' names, headers of batches, CRCs or compression:
`encode.py` does. Makes no Python object and allocates nothing: it reads and writes arrays by their addresses, which the
caller made large enough (arrays passed as such cost a count of references for each row).

A column of bytes is three addresses: `valid`, one byte a row, 0 when none is null; `ends`, n + 1 positions in the
bytes, 0 when there is no such column; the bytes. Headers are the `ends` of their lists, 0 without such a column, and
two columns of their elements; a null list looks like an empty one.
All numbers are int64; shifts to the right see no negative ones.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from numba import int32, int64, njit, types, void

from ottla.spark.kernels import bytes_at, compiled, copy, intrinsic

ROW, COUNT, BYTES, BASE_MS, MAX_MS, LANE = range(6)
"""Columns of a plan: the first row (in the order of lanes), records, bytes of the records, times, lane."""
PLAN_COLUMNS = 6
HEADER_BYTES = 61
OVERHEAD_BYTES = 12

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

_Address = int64
_Column = types.UniTuple(_Address, 3)
_Rows = types.Tuple((_Address, _Column, _Column, _Address, _Column, _Column))
"""Times in ms, keys, values, headers: ends, names, contents."""

Column = namedtuple("Column", "valid ends content present nullable")
Rows = namedtuple("Rows", "times keys values has_headers header_ends names contents")


def kept(signature: Any) -> Any:
    """Compile now, and keep the machine code for other processes; where nothing can be written, for this one alone."""

    def wrap(function: Any) -> Any:
        try:
            return njit(signature, cache=True, nogil=True)(function)
        except RuntimeError:  # numba found no directory for its cache
            return njit(signature, nogil=True)(function)

    return wrap


@intrinsic
def ints_at(typing: Any, address: Any) -> Any:
    """A number as the address of int32s."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(types.CPointer(int32)))

    return types.CPointer(int32)(int64), generate


@intrinsic
def longs_at(typing: Any, address: Any) -> Any:
    """A number as the address of int64s."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(types.CPointer(int64)))

    return types.CPointer(int64)(int64), generate


@compiled
def column_at(addresses: Any) -> Any:
    valid, ends, content = addresses
    return Column(bytes_at(valid), ints_at(ends), bytes_at(content), ends != 0, valid != 0)


@compiled
def rows_at(addresses: Any) -> Any:
    times, keys, values, ends, names, contents = addresses
    return Rows(
        longs_at(times),
        column_at(keys),
        column_at(values),
        ends != 0,
        ints_at(ends),
        column_at(names),
        column_at(contents),
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


@kept(int64(int64, int32[::1], types.UniTuple(_Address, 2), _Rows, types.UniTuple(int64[::1], 4), int64[:, ::1], int64))
def place(rows: int, lanes: Any, wanted: Any, addresses: Any, numbers: Any, sticky: Any, sticky_bytes: int) -> Any:
    """The lane of each row into `lanes`; -1, or the first row whose partition does not exist.

    A partition that is given wins, then the key's hash. Rows with neither stay with one partition for `sticky_bytes`
    and go on to the topic's next available one then; `sticky` keeps (turn, bytes) per topic. `lanes` comes with each
    row's topic. `numbers`: of each topic the first lane, how many partitions, where its available ones begin; and
    the available partitions.
    """
    bases, counts, available_ends, available = numbers
    given, given_valid = ints_at(wanted[0]), bytes_at(wanted[1])
    columns = rows_at(addresses)
    keys, value_ends = columns.keys, columns.values.ends
    for row in range(rows):
        topic = lanes[row]
        count = counts[topic]
        if wanted[0] and (wanted[1] == 0 or given_valid[row]):
            partition = int64(given[row])
            if partition < 0 or partition >= count:
                return row
        elif keys.present and (not keys.nullable or keys.valid[row]):
            partition = (murmur2(keys.content, int64(keys.ends[row]), int64(keys.ends[row + 1])) & 0x7FFFFFFF) % count
        else:
            first = available_ends[topic]
            partition = int64(available[first + sticky[topic, 0] % (available_ends[topic + 1] - first)])
            sticky[topic, 1] += value_ends[row + 1] - value_ends[row] + 16
            if sticky[topic, 1] >= sticky_bytes:
                sticky[topic, 0] += 1
                sticky[topic, 1] = 0
        lanes[row] = bases[topic] + partition
    return -1


@kept(void(int32[::1], int64[::1], int32[::1]))
def group(lanes: Any, starts: Any, order: Any) -> None:
    """Rows by lane, in their order within each: lane i has order[starts[i]:starts[i + 1]]. `starts` comes as zeros."""
    for row in range(len(lanes)):
        starts[lanes[row] + 1] += 1
    for lane in range(1, len(starts)):
        starts[lane] += starts[lane - 1]
    for row in range(len(lanes)):
        lane = lanes[row]
        order[starts[lane]] = row
        starts[lane] += 1
    for lane in range(len(starts) - 1, 0, -1):
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
    """What a record has besides its two deltas and its length: attributes, key, value, headers."""
    size = 1 + block_bytes(rows.keys, row) + block_bytes(rows.values, row)
    if not rows.has_headers:
        return size + 1
    first, end = int64(rows.header_ends[row]), int64(rows.header_ends[row + 1])
    size += varint_bytes(end - first)
    for i in range(first, end):
        size += block_bytes(rows.names, i) + block_bytes(rows.contents, i)
    return size


@kept(int64(_Rows, int32[::1], int64[::1], int64[::1], int64, int64[:, ::1]))
def cut(addresses: Any, order: Any, starts: Any, limits: Any, record_bytes_max: int, plan: Any) -> Any:
    """Where batches begin and end: rows of `plan`. How many, or -1 - row for a row that is too large.

    A batch of lane i ends before it would have more than limits[i] bytes; a record larger than that has its own.
    """
    rows = rows_at(addresses)
    times = rows.times
    made = int64(-1)
    for lane in range(len(starts) - 1):
        count = size = base = int64(0)
        for at in range(starts[lane], starts[lane + 1]):
            row = order[at]
            fixed = fixed_bytes(rows, row)
            time = times[row]
            body = fixed + varint_bytes(time - base) + varint_bytes(count)
            if count == 0 or size + body + varint_bytes(body) > limits[lane]:
                made += 1
                count, size, base = int64(0), int64(HEADER_BYTES), time
                plan[made, ROW], plan[made, LANE], plan[made, BASE_MS], plan[made, MAX_MS] = at, lane, time, time
                body = fixed + 2
            body += varint_bytes(body)
            if HEADER_BYTES + body > record_bytes_max:
                return -1 - row
            size += body
            count += 1
            plan[made, COUNT], plan[made, BYTES] = count, size - HEADER_BYTES
            plan[made, MAX_MS] = max(plan[made, MAX_MS], time)
    return made + 1


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


@kept(void(_Rows, int32[::1], int64[:, ::1], int64, _Address))
def write(addresses: Any, order: Any, plan: Any, count: int, target: int) -> None:
    """The records of `count` batches to `target`, one batch behind the other, each behind room for its header."""
    rows, out = rows_at(addresses), bytes_at(target)
    pos = int64(0)
    for batch in range(count):
        pos += HEADER_BYTES
        for delta in range(plan[batch, COUNT]):
            row = order[plan[batch, ROW] + delta]
            elapsed = rows.times[row] - plan[batch, BASE_MS]
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
