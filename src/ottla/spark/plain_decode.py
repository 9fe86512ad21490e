"""Fetched record batches to Arrow, record by record: the plain twin of `decode`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from ottla.protocol.records import BatchHeader, CorruptRecords, Record, decode_records, has_valid_crc, iter_batches
from ottla.protocol.wire import Buffer

ROWS_MAX = 65_536
COLUMNS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
HEADERS = ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


@dataclass(frozen=True, slots=True)
class Decoded:
    """`next_offset`: where to fetch next."""

    batches: list[pa.RecordBatch]
    next_offset: int
    records: int


def decode(
    records: Buffer,
    *,
    topic: str,
    partition: int,
    first: int,
    until: int,
    include_headers: bool = False,
    aborted: Sequence[tuple[int, int]] = (),
    check_crcs: bool = False,
) -> Decoded:
    """The records with offsets in [first, until)."""
    view, at, rows = memoryview(records), first, []
    waiting, gone = sorted(aborted, key=lambda each: each[1]), set()
    for header, pos in iter_batches(view):
        if check_crcs and not has_valid_crc(view, pos, header):
            raise CorruptRecords(f"{topic}-{partition} at {header.base_offset}: the checksum does not match")
        at = max(at, header.next_offset)
        while waiting and waiting[0][1] <= header.last_offset:
            gone.add(waiting.pop(0)[0])
        if header.is_control:
            gone.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in gone):
            rows += [(header, each) for each in decode_records(view, pos) if first <= each.offset < until]
    names = [*COLUMNS, HEADERS] if include_headers else COLUMNS
    schema = pa.schema(names)
    batches = []
    for start in range(0, len(rows), ROWS_MAX):
        columns = zip(
            *(_row(topic, partition, header, each) for header, each in rows[start : start + ROWS_MAX]), strict=True
        )
        arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, names, strict=False)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return Decoded(batches, at, len(rows))


def _row(topic: str, partition: int, header: BatchHeader, each: Record) -> tuple[object, ...]:
    headers = [{"key": key, "value": value} for key, value in each.headers]
    time_us = each.timestamp_ms * 1000
    return each.key, each.value, topic, partition, each.offset, time_us, header.timestamp_type, headers
