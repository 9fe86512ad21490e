"""From a share partition to batches in the log: what one fetch acquires, and the file slices that hold it.

Knows batch headers: which offsets a batch covers, which are markers, which belong to aborted transactions, where
compaction left nothing. Decodes records only for groups that opted into delayed delivery. Does not know sessions.

Costs are per batch: headers are read, records leave as file slices; only batches that hold an acquired record are sent.
Batch-optimized acquisition takes whole batches until the asked number is reached; record-limit takes exactly that many
(KIP-1206). HOT.

Sources: Kafka's SharePartition.acquire, ShareFetchUtils.java; KIP-932, KIP-1206.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.share_answer import ShareAnswer
from ottla.broker.share_delays import delays_in
from ottla.log.answers import Isolation, OffsetOutOfRange, ReadResult
from ottla.log.files import File, FileSlice
from ottla.log.segment import LOG_OVERHEAD, walk_headers
from ottla.log.txnindex import AbortedTransaction
from ottla.machine import Millis
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL, ATTRIBUTES_TRANSACTIONAL
from ottla.share.partition import SharePartition
from ottla.share.standing import Piece

if TYPE_CHECKING:
    from ottla.log.log import Log

WALK_BYTES: Final = 4096
"""Read at once to look at headers: many small batches, or the beginning of a large one."""


class Budget:
    """What one fetch may still take, over all its partitions."""

    __slots__ = ("batch_size", "bytes_left", "exactly", "records_left", "took_any")

    def __init__(self, bytes_max: int, records_max: int, batch_size: int, exactly: bool) -> None:
        self.bytes_left = bytes_max
        self.records_left = records_max
        self.batch_size = batch_size
        self.exactly = exactly
        self.took_any = False


class Reader:
    """One fetch of one share partition: pieces in, acquired ranges and slices out.

    Batches that lie side by side are acquired together: [first, cursor) is what has been seen and not been locked yet,
    [begin, stop) where it stands in the file, `bounds` where its batches end.
    """

    __slots__ = (
        "_answer",
        "_begin",
        "_bounds",
        "_budget",
        "_cursor",
        "_delayed",
        "_file",
        "_first",
        "_isolation",
        "_log",
        "_machine",
        "_member",
        "_now",
        "_stop",
    )

    _file: File

    def __init__(
        self,
        now: Millis,
        machine: SharePartition,
        log: Log,
        member: str,
        isolation: Isolation,
        delayed: bool,
        budget: Budget,
        answer: ShareAnswer,
    ) -> None:
        self._now = now
        self._machine = machine
        self._log = log
        self._member = member
        self._isolation = isolation
        self._delayed = delayed
        self._budget = budget
        self._answer = answer
        self._first = self._cursor = 0
        self._begin = self._stop = 0
        self._bounds: list[int] = []

    def fill(self) -> None:
        """Acquire what there is and the budget allows. Raises StorageFailed, OSError."""
        machine, log, budget = self._machine, self._log, self._budget
        if machine.start < log.log_start_offset:
            machine.log_start_moved(log.log_start_offset)
        limit = readable_end(log, self._isolation)
        while budget.records_left > 0 and (budget.bytes_left > 0 or not budget.took_any):
            piece = machine.next_piece(self._now)
            if piece is None or piece.first >= limit or (piece.exact and self._answer.acquired):
                return
            try:
                result = log.read(piece.first, max(budget.bytes_left, 0), self._isolation, not budget.took_any)
            except OffsetOutOfRange:
                return
            end = limit if piece.end is None else min(piece.end, limit)
            if result.slice is not None:
                if not self._take(piece, end, result) or piece.exact:
                    return
            elif budget.took_any:
                return  # the next batch does not fit
            else:
                machine.skip(piece.first, end)  # compaction took everything up to there

    def _take(self, piece: Piece, end: int, result: ReadResult) -> bool:
        """Go through the batches of one read up to `end`, or until the budget is used up; whether it led on."""
        batches = result.slice
        assert batches is not None
        self._file = batches.file
        self._first = self._cursor = piece.first
        hole_end = min(end, result.next_offset)
        walked_to, slice_end = batches.position, batches.position + batches.length
        for position, header in walk_headers(self._file, batches.position, slice_end, WALK_BYTES):
            base, body, _, _, _, attributes, last_delta, _, _, producer_id, _, _, _ = header
            size = body + LOG_OVERHEAD
            walked_to = position + size
            if base + last_delta < self._cursor:
                continue
            if base >= end:
                hole_end, walked_to = end, slice_end
                break
            if base > self._cursor:
                self._pass_over(base)
            high = min(base + last_delta + 1, end)
            if attributes & ATTRIBUTES_CONTROL or (
                result.aborted
                and attributes & ATTRIBUTES_TRANSACTIONAL
                and _is_aborted(result.aborted, producer_id, base)
            ):
                self._pass_over(high)
            elif not (self._delayed and piece.fresh and self._hold_back(position, size, high)):
                self._extend(position, size, high)
            if self._cursor - self._first >= self._room():
                self._close()
                return True
        self._close()
        if hole_end > self._cursor and walked_to == slice_end:
            self._pass_over(hole_end)
        return self._cursor > piece.first

    def _room(self) -> int:
        """How many records may be acquired now."""
        settings, machine = self._machine.settings, self._machine
        return min(self._budget.records_left, max(settings.record_locks_max - machine.in_flight, 0))

    def _extend(self, position: int, size: int, high: int) -> None:
        """The batch there, up to `high`, is to be acquired too."""
        if not self._stop:
            self._begin = position
        self._stop = position + size
        if self._budget.exactly:
            high = min(high, self._first + self._room())
        self._cursor = high
        self._bounds.append(high)

    def _pass_over(self, high: int) -> None:
        """Up to `high` nothing will ever be delivered."""
        self._close()
        self._machine.skip(self._cursor, high)
        self._first = self._cursor = high

    def _hold_back(self, position: int, size: int, high: int) -> bool:
        """Some records of this batch must wait: True when that was so, and all of it is dealt with."""
        low = self._cursor
        held = delays_in(self._file.read(position, size), low, high, self._now)
        if not held:
            return False
        self._close()
        for first, end, until in [*held, (high, high, 0)]:
            if self._first < first:
                self._extend(position, size, first)
                if self._cursor < first:  # record-limit: the rest stays for another fetch
                    return True
                self._close()
            if first < end:
                self._machine.hold_back(first, end, until)
            self._first = self._cursor = end
        return True

    def _close(self) -> None:
        """Lock [first, cursor) and put its batches into the answer."""
        first, end = self._first, self._cursor
        if first < end and self._stop:
            count = self._machine.acquire(self._now, self._member, first, end)
            acquired, budget = self._answer.acquired, self._budget
            begin, least = first, budget.batch_size
            for bound in self._bounds:
                if bound - begin >= least and bound < end:
                    acquired.append((begin, bound - 1, count))
                    begin = bound
            acquired.append((begin, end - 1, count))
            budget.records_left -= end - first
            budget.took_any = True
            self._send(self._begin, self._stop)
            self._first = end
        self._stop = 0
        self._bounds.clear()

    def _send(self, begin: int, stop: int) -> None:
        """Add this part of the file to the answer, unless it is in there already."""
        records, file = self._answer.records, self._file
        if records and records[-1].file is file:
            last = records[-1]
            last_stop = last.position + last.length
            begin = max(begin, last_stop)
            if begin >= stop:
                return
            if begin == last_stop:
                records.pop()
                records.append(FileSlice(file, last.position, stop - last.position))
            else:
                records.append(FileSlice(file, begin, stop - begin))
        else:
            records.append(FileSlice(file, begin, stop - begin))
        self._answer.size += stop - begin
        self._budget.bytes_left -= stop - begin


def readable_end(log: Log, isolation: Isolation) -> int:
    """Below this a group of this isolation level may read."""
    return log.last_stable_offset if isolation is Isolation.TXN_COMMITTED else log.high_watermark


def _is_aborted(aborted: list[AbortedTransaction], producer_id: int, base: int) -> bool:
    return any(
        entry.producer_id == producer_id and entry.first_offset <= base <= entry.last_offset for entry in aborted
    )
