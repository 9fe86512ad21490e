"""Packs markers as they are read from a topic, for their way to the stage that has the state.

A row for each marker would be copied, sorted and wrapped one by one on its way. Therefore one row has all markers of a
partition, among some thousand, as one piece of bytes.

A pack is an Arrow IPC stream of one record batch: `offset` int64, `timestamp_ms` int64, `key` and `value` binary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from ottla.kmq.events import MarkersRead

PACKED: Final = "partition int, packed binary"
READ: Final = ("partition", "offset", "timestamp", "timestampType", "key", "value")
LOG_APPEND_TIME: Final = 1
US_PER_MS: Final = 1_000

_SCHEMA = pa.schema(
    [("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("key", pa.binary()), ("value", pa.binary())],
    metadata={b"format": b"1"},
)
_PACKED = pa.schema([("partition", pa.int32()), ("packed", pa.binary())])


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows with the columns READ in, rows of PACKED out: one for each partition in each batch."""
    for batch in batches:
        partitions = np.asarray(batch.column("partition"))
        for partition in np.unique(partitions).tolist():
            chosen = partitions == partition
            own = batch if chosen.all() else batch.filter(pa.array(chosen))
            yield pa.record_batch(
                [pa.array([partition], pa.int32()), pa.array([packed(own)], pa.binary())], schema=_PACKED
            )


def packed(batch: pa.RecordBatch) -> bytes:
    """Encode one pack. A time set by the sender, not by the log, is limited to now: a fast clock must not expire all
    time-outs."""
    times: Any = np.asarray(batch.column("timestamp").cast(pa.int64())) // US_PER_MS
    kinds: Any = np.asarray(batch.column("timestampType"))
    if (kinds != LOG_APPEND_TIME).any():
        times = np.where(kinds == LOG_APPEND_TIME, times, np.minimum(times, now_ms()))
    columns = [batch.column("offset"), pa.array(times, pa.int64()), batch.column("key"), batch.column("value")]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    return sink.getvalue().to_pybytes()


def now_ms() -> int:
    from ottla.kmq.tracker import now_ms

    return now_ms()


@dataclass(frozen=True, slots=True)
class Markers:
    """Markers of one partition in the order of their offsets, at least one; in columns of the same length."""

    offsets: Any
    """numpy, int64"""
    timestamps_ms: Any
    """numpy, int64"""
    keys: list[bytes | None]
    values: list[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)

    def read(self) -> MarkersRead:
        """As the machine takes them."""
        return MarkersRead(self.offsets.tolist(), self.timestamps_ms.tolist(), self.keys, self.values)


def unpack(packs: Sequence[bytes]) -> Markers:
    """The markers of some packs of one partition, brought into order."""
    table = pa.concat_tables([pa.ipc.open_stream(each).read_all() for each in packs])
    offsets = table.column("offset").to_numpy()
    if len(offsets) > 1 and (offsets[1:] < offsets[:-1]).any():
        order = np.argsort(offsets, kind="stable")
        table, offsets = table.take(pa.array(order)), offsets[order]
    keys, values = (table.column(name).to_numpy().tolist() for name in ("key", "value"))
    return Markers(offsets, table.column("timestamp_ms").to_numpy(), keys, values)
