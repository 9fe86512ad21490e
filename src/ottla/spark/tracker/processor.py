"""Turns the tracker into a dataflow: markers in, messages to redeliver out. For any DataFrame of markers.

The dataflow uses transformWithState, with one key for each partition of the markers topic. The state of a key is one
value, the ledger, and one map of chunks (chunks.py), and it has one timer. step.py computes the effect of a batch on
them.

The timer fires when a message may have become due without new markers. Spark checks timers in each micro-batch, with or
without markers, so the trigger's interval bounds the delay.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

from ottla.kmq.config import KmqConfig
from ottla.spark.platform.workers import SentToWorkers, WorkerFunction
from ottla.spark.tracker.batches import PACKED, READ, Markers, pack, unpack
from ottla.spark.tracker.chunks import Ledger, decode_ledger, encode_ledger
from ottla.spark.tracker.step import Stepped, step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NEVER: Final = -1
DUE_COLUMNS: Final = (
    "partition int, offset long, deadline_ms long, since_ms long, reason string, text string, "
    "clock_ms long, asked_ms long"
)
STANDING_COLUMNS: Final = (
    "position long, commit_offset long, open long, oldest_due_ms long, replaying long, read long, malformed long"
)
SCHEMA: Final = f"{DUE_COLUMNS}, {STANDING_COLUMNS}"
_DUE: Final = tuple(each.split()[0] for each in DUE_COLUMNS.split(", "))
_STANDING: Final = tuple(each.split()[0] for each in STANDING_COLUMNS.split(", "))


def redeliveries(markers: DataFrame, config: KmqConfig, *, run_ms: int | None = None) -> DataFrame:
    """Return the messages to redeliver, each when its time has come.

    `markers`: a stream of the markers topic with the source's columns. Needs the RocksDB state store, and an output
    mode of "append" or "update". Columns:

    - `partition`, `offset`: position of the message in the queue;
    - `deadline_ms`, `since_ms`: when its time-out expired, and the start of its back-off (epoch ms);
    - `reason`: timed-out, failed or rejected; `text`: a worker's words;
    - `clock_ms`: the time in the markers topic when the message was returned; `asked_ms`: when it was returned before,
      null at first.

    A message is returned again until its end marker has been read (`ottla.kmq.external_tracker` says when). The
    redelivering process reads the record from the queue and calls `external_tracker.decided` with the count in it.

    `run_ms`: no message is returned before a marker at least as new as this time has been read, or the end of the
    topic; by default the time of this call.
    """
    return tracked(markers, config, run_ms=run_ms).where("offset is not null").select(*_DUE)


def tracked(markers: DataFrame, config: KmqConfig, *, run_ms: int | None = None) -> DataFrame:
    """Return the same rows, and one row without an offset for each partition and batch with its state. Its columns:
    `position` of the next marker, `commit_offset` (the smallest open one), `open` messages, when the first one is due,
    whether it is still `replaying` (1). Also markers `read` in this batch, and how many of those were `malformed`."""
    began_ms = time.time_ns() // 1_000_000 if run_ms is None else run_ms
    packed = markers.select(*READ).mapInArrow(WorkerFunction(pack), PACKED)
    return packed.groupBy("partition").transformWithStateInPandas(
        statefulProcessor=Tracker(config, began_ms),
        outputStructType=SCHEMA,
        outputMode="Update",
        timeMode="ProcessingTime",
    )


class StoredChunks:
    """The chunks of the current partition, in the state store."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, number: int) -> bytes | None:
        found = self._state.getValue((number,))
        return None if found is None else bytes(found[0])

    def put(self, number: int, octets: bytes) -> None:
        self._state.updateValue((number,), (octets,))

    def drop(self, number: int) -> None:
        self._state.removeKey((number,))


class Tracker(SentToWorkers, StatefulProcessor):
    """Follows the markers of each partition."""

    def __init__(self, config: KmqConfig, run_ms: int) -> None:
        self._config, self._run_ms = config, run_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._ledger = handle.getValueState("ledger", "octets binary")
        self._chunks = StoredChunks(handle.getMapState("chunks", "number long", "octets binary"))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[pd.DataFrame]:
        packs = [octets for frame in rows for octets in frame["packed"]]
        yield self._step(key[0], timerValues.getCurrentProcessingTimeInMs(), unpack(packs))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        """Spark passes these arguments by name."""
        now_ms, fired_ms = timerValues.getCurrentProcessingTimeInMs(), expiredTimerInfo.getExpiryTimeInMs()
        yield self._step(key[0], now_ms, None, fired_ms)

    def close(self) -> None:
        pass

    def _step(self, partition: int, now_ms: int, markers: Markers | None, fired_ms: int = NEVER) -> pd.DataFrame:
        """Handle markers or a timer. In a batch, markers come before timers and postpone the timer: it fires only
        without markers."""
        found = self._ledger.get()
        ledger = Ledger() if found is None else decode_ledger(bytes(found[0]))
        before = ledger.wake_ms
        outcome = step(partition, self._config, ledger, self._chunks, now_ms, self._run_ms, markers)
        ledger.wake_ms = NEVER if outcome.wake_ms is None else outcome.wake_ms
        if before not in (NEVER, ledger.wake_ms, fired_ms):  # Spark itself deletes the one that fired
            self._handle.deleteTimer(before)
        if ledger.wake_ms != NEVER and before != ledger.wake_ms:
            self._handle.registerTimer(ledger.wake_ms)
        self._ledger.update((encode_ledger(ledger),))
        return frame_of(partition, outcome, ledger)


def frame_of(partition: int, outcome: Stepped, ledger: Ledger) -> pd.DataFrame:
    """Rows of SCHEMA: the due ones, and how the partition stands."""
    due = outcome.due
    columns: dict[str, Any] = {
        name: [getattr(each, name) for each in due] + [None] for name in _DUE if name not in ("partition", "reason")
    }
    columns["partition"] = [partition] * (len(due) + 1)
    columns["reason"] = [each.reason.value for each in due] + [None]
    standing = (
        ledger.position,
        ledger.commit_offset,
        ledger.open_count,
        ledger.first_due_ms,
        int(ledger.replaying),
        outcome.read,
        outcome.malformed,
    )
    for name, number in zip(_STANDING, standing, strict=True):
        columns[name] = [None] * len(due) + [number]
    types = {name: "string" if name in ("reason", "text") else "Int64" for name in columns}
    return pd.DataFrame({name: columns[name] for name in (*_DUE, *_STANDING)}).astype({**types, "partition": "int32"})
