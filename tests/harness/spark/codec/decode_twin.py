"""What `ottla.spark.codec.decode` must do, record by record on ottla.protocol.records: slow and plain to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.protocol.records import BatchHeader, CorruptRecordsError, decode_records, has_valid_crc, iter_batches
from ottla.protocol.records.control import ABORT, control_type

MICROSECONDS_MAX = (2**63 - 1) // 1000 * 1000


def plain_decode(
    records: bytes,
    *,
    topic: str,
    partition: int,
    first: int,
    until: int,
    include_headers: bool = False,
    aborted: Sequence[tuple[int, int]] = (),
    check_crcs: bool = False,
) -> tuple[list[dict[str, Any]], int]:
    """(rows, next offset); a row's timestamp is in microseconds. Raises CorruptRecordsError."""
    rows: list[dict[str, Any]] = []
    end, next_offset = 0, first
    to_come, open_now = sorted(aborted, key=lambda one: one[1]), set[int]()
    for header, pos in iter_batches(records):
        range_is_right(header)
        if header.base_offset >= until:
            next_offset = max(first, until)
            break
        if header.base_offset < end:
            raise CorruptRecordsError("overlap")
        end = header.next_offset
        next_offset = max(first, min(end, until))
        if check_crcs and not has_valid_crc(records, pos, header):
            raise CorruptRecordsError("checksum")
        if aborted and header.has_producer_id:
            while to_come and to_come[0][1] <= header.last_offset:
                open_now.add(to_come.pop(0)[0])
            if header.is_control:
                if (markers := decode_records(records, pos)) and control_type(markers[0]) == ABORT:
                    open_now.discard(header.producer_id)
            elif header.is_transactional and header.producer_id in open_now:
                continue
        if header.is_control or header.last_offset < first:
            continue
        last = header.base_offset - 1
        for record in decode_records(records, pos):
            if not last < record.offset <= header.last_offset:
                raise CorruptRecordsError("offsets")
            last = record.offset
            if first <= record.offset < until:
                row = {
                    "key": record.key,
                    "value": record.value,
                    "topic": topic,
                    "partition": partition,
                    "offset": record.offset,
                    "timestamp": microseconds(record.timestamp_ms),
                    "timestampType": header.timestamp_type,
                }
                if include_headers:
                    row["headers"] = [{"key": text(k), "value": v} for k, v in record.headers] or None
                rows.append(row)
    return rows, next_offset


def range_is_right(header: BatchHeader) -> None:
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset >= 2**63 - 1:
        raise CorruptRecordsError("range")
    if not 0 <= header.record_count <= header.last_offset_delta + 1:
        raise CorruptRecordsError("count")


def microseconds(milliseconds: int) -> int:
    wrapped = (milliseconds + 2**63) % 2**64 - 2**63
    return max(-MICROSECONDS_MAX, min(MICROSECONDS_MAX, wrapped * 1000))


def text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")
