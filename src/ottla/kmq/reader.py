"""Reads single records of the queue topic by exact offset, or finds out that they do not exist.

A fetch at an offset returns the first record at or *after* it, so only the record's own offset proves that it is the
wanted one. `step` returns what has arrived, without a long wait.

The reader reads one partition at a time, its wanted offsets in order: after a worker crash they are mostly consecutive.
A record counts as gone only if two fetches at its own offset both returned later records.

It also reads uncommitted records: a worker with another client may have received them.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.kmq.client import placed
from ottla.kmq.config import KmqConfig
from ottla.kmq.events import Failed, RecordBeyondEnd, RecordGone

if TYPE_CHECKING:
    from confluent_kafka import Message

RECORDS_PER_STEP = 500
GAP_MAX = 2_000
"""If the next wanted record is more than this many offsets away, the reader seeks instead of reading on."""
PATIENCE_S = 30.0
WATERMARKS_TIMEOUT_S = 5.0

Found: TypeAlias = "Message | RecordGone | RecordBeyondEnd | Failed"

READER = {
    "fetch.wait.max.ms": 100,
    "queued.min.messages": 2_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.error.backoff.ms": 100,
}
READER_ALWAYS = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
}


class RecordReader:
    """Reads records: call `want` for each, then `step` until each is found, gone, beyond the end, or failed."""

    def __init__(self, properties: Mapping[str, Any], config: KmqConfig) -> None:
        from confluent_kafka import Consumer

        group = {"group.id": f"{config.tracker_group_id}-reader"}
        self._queue = config.queue
        self._consumer = Consumer({**READER, **properties, **group, **READER_ALWAYS})
        self._wanted: dict[int, list[int]] = {}
        """Wanted offsets by partition, in order; the first partition is read now."""
        self._reading: int | None = None
        self._suspects: set[tuple[int, int]] = set()
        self._since = 0.0

    def __len__(self) -> int:
        """The number of records that are still wanted."""
        return sum(map(len, self._wanted.values()))

    def want(self, partition: int, offset: int) -> None:
        """Ask for this record. If it precedes the records that are being read now, it is read after them."""
        self._suspects.discard((partition, offset))
        insort(self._wanted.setdefault(partition, []), offset)
        if partition == self._reading and self._wanted[partition][0] == offset:
            self._reading = None

    def drop(self, partition: int) -> None:
        """Forget this partition's records: it was revoked."""
        self._wanted.pop(partition, None)
        self._suspects = {each for each in self._suspects if each[0] != partition}
        if self._reading == partition:
            self._stop()

    def close(self) -> None:
        self._consumer.close()

    def step(self) -> list[tuple[int, Found]]:
        """(partition, result) for each wanted record whose result is known now."""
        if not self._wanted:
            return []
        if self._reading is None:
            self._assign(next(iter(self._wanted)))
        partition = self._reading
        assert partition is not None
        found: list[Found] = []
        messages = self._consumer.consume(RECORDS_PER_STEP, 0)
        last = self._walk(partition, messages, found)
        if found:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > PATIENCE_S:
            found += self._fail(partition)
        left = self._wanted.get(partition)
        if not left:
            self._wanted.pop(partition, None)
            self._stop()
        elif self._reading == partition and last is not None and not last < left[0] <= last + GAP_MAX:
            self._assign(partition)
        return [(partition, each) for each in found]

    def _assign(self, partition: int) -> None:
        from confluent_kafka import TopicPartition

        if self._reading != partition:
            self._since = time.monotonic()
        self._reading = partition
        self._consumer.assign([TopicPartition(self._queue, partition, self._wanted[partition][0])])

    def _stop(self) -> None:
        self._reading = None
        self._consumer.unassign()

    def _walk(self, partition: int, messages: list[Message], found: list[Found]) -> int | None:
        """Match arrived records with the wanted ones; returns the last offset seen."""
        from confluent_kafka import KafkaError

        wanted, last = self._wanted[partition], None
        for message in messages:
            error = message.error()
            if message.partition() != partition or not wanted:
                continue
            if error is None:
                _, last = placed(message)
                if not self._passed(partition, last, found):
                    break
                if wanted and wanted[0] == last:
                    self._suspects.discard((partition, wanted.pop(0)))
                    found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                last = message.offset() or 0
                if not self._passed(partition, last, found):
                    break
                found += [RecordBeyondEnd(offset) for offset in wanted]
                wanted.clear()
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                last = self._compare_with_log(partition, found)
            elif error.fatal() or error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                found += self._fail(partition)
        return last

    def _passed(self, partition: int, seen: int, found: list[Found]) -> bool:
        """Handle wanted offsets before `seen`, for which no record arrived. An offset is gone if a second fetch at it
        shows the same.

        Returns False if the first of them has to be fetched again.
        """
        wanted = self._wanted[partition]
        while wanted and wanted[0] < seen:
            if (partition, wanted[0]) not in self._suspects:
                self._suspects.add((partition, wanted[0]))
                return False
            self._suspects.discard((partition, wanted[0]))
            found.append(RecordGone(wanted.pop(0)))
        return True

    def _compare_with_log(self, partition: int, found: list[Found]) -> int | None:
        """After an out-of-range error, report the wanted offsets before the log's start and after its end."""
        from confluent_kafka import KafkaException, TopicPartition

        wanted = self._wanted[partition]
        try:
            marks = self._consumer.get_watermark_offsets(
                TopicPartition(self._queue, partition), timeout=WATERMARKS_TIMEOUT_S
            )
        except KafkaException:
            found += self._fail(partition)
            return None
        low, high = marks or (0, 0)
        found += [RecordGone(offset) for offset in wanted if offset < low]
        found += [RecordBeyondEnd(offset) for offset in wanted if offset >= high]
        wanted[:] = [offset for offset in wanted if low <= offset < high]
        return -GAP_MAX - 1  # the rest has to be sought

    def _fail(self, partition: int) -> list[Found]:
        wanted = self._wanted[partition]
        failed: list[Found] = [Failed(offset) for offset in wanted]
        wanted.clear()
        return failed
