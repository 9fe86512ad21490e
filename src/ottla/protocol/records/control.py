"""Reads and writes control records: the markers that end a transaction in a partition.

It handles the key (version, type) and the value of an end-transaction marker. Consumers never see them.

Source: ControlRecordType.java, EndTransactionMarker.java, KIP-98.
"""

from __future__ import annotations

from struct import Struct as Format

from ottla.protocol.records import batch as b
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import Record
from ottla.protocol.wire import Buffer

ABORT = 0
COMMIT = 1

_unpack_key = Format(">hh").unpack_from
_unpack_marker = Format(">hi").unpack_from
_USUAL = Format(">5B2hBhiB")
"""A marker's record as all Kafka versions write it: length, attributes, timestamp delta, offset delta, length of the
key; version and type; length of the value; version and coordinator epoch; count of headers."""
_USUAL_BYTES = b.HEADER_BYTES + _USUAL.size
_LENGTHS = (32, 0, 0, 0, 8)
_VALUE_LENGTH = 12


class EndTransactionMarker:
    """One marker: it commits or aborts the transaction of the batch's producer in this partition."""

    __slots__ = ("committed", "coordinator_epoch")

    def __init__(self, committed: bool, coordinator_epoch: int) -> None:
        self.committed = committed
        self.coordinator_epoch = coordinator_epoch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EndTransactionMarker):
            return NotImplemented
        return (self.committed, self.coordinator_epoch) == (other.committed, other.coordinator_epoch)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"EndTransactionMarker({'commit' if self.committed else 'abort'}, {self.coordinator_epoch})"


def build_marker_batch(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytearray:
    """The batch of one marker, as a transaction coordinator has it written."""
    out = bytearray(
        b.HEADER.pack(
            base_offset,
            _USUAL_BYTES - b.LOG_OVERHEAD_BYTES,
            partition_leader_epoch,
            b.MAGIC,
            0,
            b.ATTRIBUTES_TRANSACTIONAL | b.ATTRIBUTES_CONTROL,
            0,
            timestamp_ms,
            timestamp_ms,
            producer_id,
            producer_epoch,
            b.NO_SEQUENCE,
            1,
        )
    )
    kind = COMMIT if marker.committed else ABORT
    out += _USUAL.pack(*_LENGTHS, 0, kind, _VALUE_LENGTH, 0, marker.coordinator_epoch, 0)
    b.set_crc(out)
    return out


def usual_marker(batch: Buffer) -> EndTransactionMarker | None:
    """The marker in a control batch in the form that `build_marker_batch` writes; None for another form: decode the
    record."""
    if len(batch) != _USUAL_BYTES:
        return None
    *lengths, version, kind, value_length, value_version, epoch, headers = _USUAL.unpack_from(batch, b.HEADER_BYTES)
    rest = version, value_length, value_version, headers
    if tuple(lengths) != _LENGTHS or kind not in (ABORT, COMMIT) or rest != (0, _VALUE_LENGTH, 0, 0):
        return None
    return EndTransactionMarker(kind == COMMIT, epoch)


def control_type(record: Record) -> int:
    """The type in a control record's key: ABORT, COMMIT, or one that only KRaft uses. Raises CorruptRecordsError."""
    if record.key is None or len(record.key) < 4:
        raise CorruptRecordsError("a control record without a type")
    version, kind = _unpack_key(record.key, 0)
    if version < 0:
        raise CorruptRecordsError(f"a control record of version {version}")
    return kind


def decode_marker(record: Record) -> EndTransactionMarker | None:
    """The marker in a control record; None if it has another type. Raises CorruptRecordsError.

    Later versions may only append to the value, so bytes after the epoch are ignored, as in Kafka.
    """
    kind = control_type(record)
    if kind not in (ABORT, COMMIT):
        return None
    if record.value is None or len(record.value) < 6:
        raise CorruptRecordsError("an end-transaction marker without an epoch")
    version, coordinator_epoch = _unpack_marker(record.value, 0)
    if version < 0:
        raise CorruptRecordsError(f"an end-transaction marker of version {version}")
    return EndTransactionMarker(kind == COMMIT, coordinator_epoch)
