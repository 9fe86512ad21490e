"""Implements the two loops of the decoder, in the subset of Python that numba compiles: over batch headers and over
records.

The loops parse format 2 of record batches (DefaultRecordBatch.java, DefaultRecord.java) and fill Arrow's layout: end
positions of binary values, validity bits from the lowest. They make no objects, allocate nothing and keep no state.
They read bytes at an address and write arrays that the caller made large enough. `decode.py` makes these arrays,
`native.py` compiles and loads this module.

Invariants: no byte outside `size` is read, whatever the bytes are: every varint, length and count is checked against
the remaining bytes. A body yields at most as many rows as its batch's count. It yields at most as many bytes of keys,
values and headers as it has itself. Arrays of these sizes therefore suffice; headers are counted against
`header_capacity`.

All numbers are int64 (uint64 and int64 mixed would be floats), so right shifts that must not extend the sign are
masked. Errors are the codes below; a negative position is an error.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from llvmlite import ir
from numba import int32, int64, njit, types, uint8
from numba.core import cgutils
from numba.extending import intrinsic as make_intrinsic

from ottla.spark.codec import decode_layout as at

Bytes = types.CPointer(uint8)
Ints = types.CPointer(int32)
Longs = types.CPointer(int64)

SIGNATURES = {
    "scan": int64(int64, int64, int64, int64, Longs, Longs),
    "fill": int64(
        *(Longs, int64, int64, int64),  # batches
        int64,  # room for headers, -1 without them
        *(Longs, Longs, Ints),  # offset, timestamp, timestampType
        *(Ints, Bytes, Bytes),  # key: ends, bytes, validity
        *(Ints, Bytes, Bytes),  # value
        *(Ints, Bytes),  # headers: ends of the lists, validity
        *(Ints, Bytes, Bytes),  # key of a header
        *(Ints, Bytes, Bytes),  # value of a header
        Longs,
    ),
}

_MAX = 0x7FFFFFFFFFFFFFFF
_MS_MAX = _MAX // 1000

Blocks = namedtuple("Blocks", "ends bytes valid")
"""A binary column: `ends[0]` is 0, `ends[i + 1]` where value i ends, `valid` one bit a value."""
Headers = namedtuple("Headers", "capacity ends valid keys values")
"""The lists' ends and validity, and the two columns of their elements. `capacity` -1: headers are not wanted."""

compiled = njit(error_model="numpy", nogil=True)
intrinsic: Any = make_intrinsic
"""Called without its first argument, which type checkers cannot know."""


@intrinsic
def bytes_at(typing: Any, address: Any) -> Any:
    """A number as the address of bytes."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.inttoptr(given[0], context.get_value_type(Bytes))

    return Bytes(int64), generate


@intrinsic
def moved(typing: Any, pointer: Any, count: Any) -> Any:
    """The pointer, `count` int64 further."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.gep(given[0], [given[1]], source_etype=ir.IntType(64))

    return pointer(pointer, int64), generate


@intrinsic
def copy(typing: Any, to: Any, to_at: Any, source: Any, source_at: Any, length: Any) -> Any:
    """memcpy: a loop over bytes would be vectorised behind a check whether the two overlap."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        target = builder.gep(given[0], [given[1]], source_etype=ir.IntType(8))
        origin = builder.gep(given[2], [given[3]], source_etype=ir.IntType(8))
        cgutils.raw_memcpy(builder, target, origin, given[4], 1)
        return context.get_dummy_value()

    return types.void(to, to_at, source, source_at, length), generate


@compiled
def big_endian(source: Any, pos: int, length: int) -> Any:
    """A signed number of `length` bytes."""
    value = int64(source[pos])
    if value > 127:
        value -= 256
    for i in range(pos + 1, pos + length):
        value = (value << 8) | int64(source[i])
    return value


@compiled
def varint(source: Any, pos: int, end: int) -> Any:
    """The 64 bits of a varint, still zigzag, and the position behind it."""
    if pos >= end:
        return int64(0), int64(-at.CUT_SHORT)
    byte = int64(source[pos])
    pos += 1
    if byte < 128:
        return byte, pos
    value = byte & 0x7F
    shift = int64(7)
    while pos < end:
        byte = int64(source[pos])
        pos += 1
        if shift == 63 and byte > 1:
            return int64(0), int64(-at.LONG_VARINT)
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, pos
        shift += 7
    return int64(0), int64(-at.CUT_SHORT)


@compiled
def half(value: int) -> Any:
    """The 63 bits above the lowest: a length whose zigzag was even."""
    return (value >> 1) & _MAX


@compiled
def signed(value: int) -> Any:
    return ((value >> 1) & _MAX) ^ -(value & 1)


@compiled
def put(column: Any, row: int, used: int, source: Any, pos: int, end: int) -> Any:
    """A block, or a null, into row `row`: bytes used after it, position behind it."""
    length, pos = varint(source, pos, end)
    if pos < 0:
        return used, pos
    if not row & 7:
        column.valid[row >> 3] = 0
    if not length & 1:
        length = half(length)
        if length > end - pos:
            return used, int64(-at.LONG_BLOCK)
        copy(column.bytes, used, source, pos, length)
        column.valid[row >> 3] |= uint8(1 << (row & 7))
        used += length
        pos += length
    column.ends[row + 1] = used
    return used, pos


@compiled
def put_headers(headers: Any, row: int, source: Any, pos: int, end: int, state: Any) -> Any:
    """The headers of row `row`: position behind them."""
    count, pos = varint(source, pos, end)
    if pos < 0:
        return pos
    filled, key_used, value_used = state[at.HEADERS], state[at.HEADER_KEY_BYTES], state[at.HEADER_VALUE_BYTES]
    if count & 1 or half(count) > (end - pos) >> 1:  # a header takes two bytes at least
        return int64(-at.MANY_HEADERS)
    count = half(count)
    if count > headers.capacity - filled:
        return int64(-at.HEADERS_FULL)
    for _ in range(count):
        if pos < end and source[pos] & 1:  # the lowest bit of a zigzag is the sign
            return int64(-at.NULL_HEADER_KEY)
        key_used, pos = put(headers.keys, filled, key_used, source, pos, end)
        if pos < 0:
            return pos
        value_used, pos = put(headers.values, filled, value_used, source, pos, end)
        if pos < 0:
            return pos
        filled += 1
    if not row & 7:
        headers.valid[row >> 3] = 0
    if count:
        headers.valid[row >> 3] |= uint8(1 << (row & 7))
    headers.ends[row + 1] = filled
    state[at.HEADERS], state[at.HEADER_KEY_BYTES], state[at.HEADER_VALUE_BYTES] = filled, key_used, value_used
    return pos


@compiled
def micros(milliseconds: int) -> Any:
    """Convert a time; one outside the column's range becomes the nearest possible time, because it must not stop a
    pipeline."""
    return min(max(milliseconds, -_MS_MAX), _MS_MAX) * 1000


@compiled
def fill_body(batch: Any, first: int, until: int, fixed: Any, keys: Any, values: Any, headers: Any, state: Any) -> Any:
    """The records of one batch. 0 or an error; `until` in the middle of it ends it."""
    source, size = bytes_at(batch[at.BODY]), batch[at.BODY_BYTES]
    base, last, time = batch[at.BASE_OFFSET], batch[at.LAST_OFFSET], batch[at.BASE_TIMESTAMP]
    append_time = (batch[at.ATTRIBUTES] >> 3) & 1
    offsets, timestamps, kinds = fixed
    row, key_used, value_used = state[at.ROWS], state[at.KEY_BYTES], state[at.VALUE_BYTES]
    offset = base - 1
    pos: Any = int64(0)
    for _ in range(batch[at.RECORDS]):
        length, pos = varint(source, pos, size)
        if pos < 0:
            return -pos
        end = pos + half(length)
        if length & 1 or half(length) > size - pos or pos == end:
            return int64(at.LONG_RECORD)
        elapsed, pos = varint(source, pos + 1, end)  # before it the record's attributes, of which none are in use
        if pos < 0:
            return -pos
        delta, pos = varint(source, pos, end)
        if pos < 0:
            return -pos
        delta = signed(delta)
        if delta <= offset - base or delta > last - base:
            return int64(at.WRONG_OFFSET)
        offset = base + delta
        if offset >= until:
            break
        if offset >= first:
            key_used, pos = put(keys, row, key_used, source, pos, end)
            if pos < 0:
                return -pos
            value_used, pos = put(values, row, value_used, source, pos, end)
            if pos < 0:
                return -pos
            if headers.capacity >= 0:
                pos = put_headers(headers, row, source, pos, end, state)
                if pos < 0:
                    return -pos
                if pos != end:
                    return int64(at.LONG_RECORD)
            offsets[row] = offset
            timestamps[row] = micros(batch[at.MAX_TIMESTAMP] if append_time else time + signed(elapsed))
            kinds[row] = append_time
            row += 1
        pos = end
    if offset < until and pos != size:
        return int64(at.BYTES_BEHIND)
    state[at.ROWS], state[at.KEY_BYTES], state[at.VALUE_BYTES] = row, key_used, value_used
    return int64(at.FINE)


def fill(
    batches: Any,
    count: int,
    first: int,
    until: int,
    header_capacity: int,
    offsets: Any,
    timestamps: Any,
    kinds: Any,
    key_ends: Any,
    key_bytes: Any,
    key_valid: Any,
    value_ends: Any,
    value_bytes: Any,
    value_valid: Any,
    list_ends: Any,
    list_valid: Any,
    header_key_ends: Any,
    header_key_bytes: Any,
    header_key_valid: Any,
    header_value_ends: Any,
    header_value_bytes: Any,
    header_value_valid: Any,
    state: Any,
) -> Any:
    """The records of `count` batches with offsets in [first, until), in columns. 0 or an error, its batch in state."""
    keys = Blocks(key_ends, key_bytes, key_valid)
    values = Blocks(value_ends, value_bytes, value_valid)
    header_keys = Blocks(header_key_ends, header_key_bytes, header_key_valid)
    header_values = Blocks(header_value_ends, header_value_bytes, header_value_valid)
    headers = Headers(header_capacity, list_ends, list_valid, header_keys, header_values)
    fixed = (offsets, timestamps, kinds)
    key_ends[0] = 0
    value_ends[0] = 0
    if header_capacity >= 0:
        list_ends[0] = 0
        header_key_ends[0] = 0
        header_value_ends[0] = 0
    for i in range(count):
        state[at.BATCH] = i
        error = fill_body(moved(batches, i * at.BATCH_WIDTH), first, until, fixed, keys, values, headers, state)
        if error:
            return error
    return int64(at.FINE)


@compiled
def read_header(source: Any, pos: int, length: int, batch: Any) -> None:
    """One row of the table from the header at `pos`, which is all there."""
    batch[at.POSITION] = pos
    batch[at.END] = pos + 12 + length
    batch[at.BODY_BYTES] = length - 49
    batch[at.BASE_OFFSET] = big_endian(source, pos, 8)
    batch[at.ATTRIBUTES] = big_endian(source, pos + 21, 2)
    batch[at.LAST_OFFSET] = batch[at.BASE_OFFSET] + big_endian(source, pos + 23, 4)
    batch[at.BASE_TIMESTAMP] = big_endian(source, pos + 27, 8)
    batch[at.MAX_TIMESTAMP] = big_endian(source, pos + 35, 8)
    batch[at.PRODUCER_ID] = big_endian(source, pos + 43, 8)
    batch[at.RECORDS] = big_endian(source, pos + 57, 4)


def scan(address: int, size: int, until: int, capacity: int, batches: Any, state: Any) -> Any:
    """Scan up to `capacity` whole batches from state[NEXT_POSITION] on into the table; return their number, or minus an
    error. Batches from `until` on, and a last one that is cut short, end the scan. After an error, state[OFFSET] is
    that of the faulty batch."""
    source = bytes_at(address)
    count = int64(0)
    while count < capacity:
        pos = state[at.NEXT_POSITION]
        batch = moved(batches, count * at.BATCH_WIDTH)
        if size - pos < 17:
            state[at.AT_END] = 1
            break
        state[at.OFFSET] = big_endian(source, pos, 8)
        length = big_endian(source, pos + 8, 4)
        if source[pos + 16] != 2:
            state[at.MAGIC] = source[pos + 16]
            return int64(-at.WRONG_MAGIC)
        if length < 49:
            return int64(-at.SHORT_BATCH)
        if length > size - pos - 12:
            state[at.AT_END] = 1
            break
        read_header(source, pos, length, batch)
        batch[at.BODY] = address + pos + 61
        base, last = batch[at.BASE_OFFSET], batch[at.LAST_OFFSET]
        if base < 0 or last < base or last == _MAX or batch[at.RECORDS] < 0 or batch[at.RECORDS] - 1 > last - base:
            return int64(-at.WRONG_RANGE)
        if base >= until:
            state[at.NEXT_OFFSET] = until
            state[at.AT_END] = 1
            break
        if base < state[at.NEXT_OFFSET]:
            return int64(-at.OVERLAP)
        state[at.NEXT_POSITION] = batch[at.END]
        state[at.NEXT_OFFSET] = last + 1
        count += 1
    return count
