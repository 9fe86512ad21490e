"""Reads for a share partition: the records that one fetch acquires, and the file slices of the log that hold them.

It reads batch headers: the offsets of a batch, markers, aborted transactions, and gaps left by compaction. It decodes
records only for groups that opted into delayed delivery.

Costs are per batch: headers are read, records leave as file slices. Only batches that hold an acquired record are sent.
Of a large batch with mostly other members' records only a part is sent (batch_parts.py). Batch-optimized acquisition
takes whole batches until the requested number is reached; record-limit takes exactly that many (KIP-1206). HOT.

A batch that is too small for the records it claims is skipped: no client could read it, and its offsets may go into the
billions.

With several members, a fetch acquires at most its share of the available records that may be acquired. So one member
does not hold everything while the others are idle; the pieces get smaller towards the end of the backlog. Members that
finish more than that within BRIEF_MS get more, so that small pieces do not slow down fast members.

Sources: Kafka's SharePartition.acquire, ShareFetchUtils.java; KIP-932, KIP-1206.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.broker.delivery.answer import ShareAnswer
from ottla.broker.delivery.batch_parts import Slices
from ottla.broker.delivery.delays import delays_in
from ottla.log.answers import DamagedLogError, Isolation, OffsetOutOfRangeError, ReadResult
from ottla.log.files import File, FileSlice
from ottla.log.index.transactions import AbortedTransaction
from ottla.log.segment import RawHeader, walk_headers
from ottla.machine import Millis
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL, ATTRIBUTES_TRANSACTIONAL, HEADER_BYTES, LOG_OVERHEAD_BYTES
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import RECORD_BYTES_MIN
from ottla.share.partition import SharePartition
from ottla.share.standing import DeliverableRange

if TYPE_CHECKING:
    from ottla.log.log import Log

BRIEF_MS: Final = 100
CUT_BYTES_MIN: Final = 4096
"""Smaller batches are not worth cutting."""
WALK_BYTES: Final = 4096
"""How many bytes are read at once to check headers: many small batches, or the beginning of a large one."""


class Budget:
    """The remaining allowance of one fetch, over all its partitions."""

    __slots__ = ("batch_size", "bytes_left", "exactly", "records_left", "share_left", "shared", "took_any")

    def __init__(self, bytes_max: int, records_max: int, batch_size: int, exactly: bool) -> None:
        self.bytes_left = bytes_max
        self.records_left = records_max
        self.batch_size = batch_size
        self.exactly = exactly
        self.share_left = records_max
        """The rest of the fair share of the partition that is being read."""
        self.shared = False
        self.took_any = False


class ShareReader:
    """One fetch of one share partition: pieces in, acquired ranges and slices out.

    Adjacent batches are acquired together. [first, cursor) are the offsets seen and not locked yet, [begin, stop) their
    position in the file, `bounds` the ends of their batches.
    """

    __slots__ = (
        "_answer",
        "_begin",
        "_bounds",
        "_budget",
        "_cursor",
        "_cut_from",
        "_delayed",
        "_file",
        "_first",
        "_isolation",
        "_log",
        "_machine",
        "_member",
        "_now",
        "_slices",
        "_stop",
    )

    _file: File
    _cut_from: tuple[File, int] | None
    """The batch that the last part was cut from: the same answer must not include it whole as well."""

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
        slices: Slices,
    ) -> None:
        self._now = now
        self._machine = machine
        self._log = log
        self._member = member
        self._isolation = isolation
        self._delayed = delayed
        self._budget = budget
        self._answer = answer
        self._slices = slices
        self._cut_from = None
        self._first = self._cursor = 0
        self._begin = self._stop = 0
        self._bounds: list[int] = []

    def fill(self, members: int) -> None:
        """Acquire the available records within the budget; `members` share it. Raises StorageError, OSError."""
        machine, log, budget = self._machine, self._log, self._budget
        if machine.start < log.log_start_offset:
            machine.log_start_moved(log.log_start_offset)
        limit = readable_end(log, self._isolation)
        budget.share_left = budget.records_left
        budget.shared = members > 1
        if budget.shared:
            backlog = max(limit - machine.end, 0) + machine.available_count
            share = max(1, -(-min(backlog, machine.settings.record_locks_max) // members))
            pace_ms = machine.pace_ms
            if pace_ms is not None:
                share = max(share, int(BRIEF_MS / pace_ms) if pace_ms > 0 else budget.records_left)
            budget.share_left = share
        while budget.records_left > 0 and budget.share_left > 0 and (budget.bytes_left > 0 or not budget.took_any):
            piece = machine.next_piece(self._now)
            if piece is None or piece.first >= limit or (piece.exact and self._answer.acquired):
                return
            try:
                result = log.read(piece.first, max(budget.bytes_left, 0), self._isolation, not budget.took_any)
            except OffsetOutOfRangeError:
                return
            end = limit if piece.end is None else min(piece.end, limit)
            if result.slice is not None:
                if not self._take(piece, end, result) or piece.exact:
                    return
            elif budget.took_any:
                return  # the next batch does not fit
            else:
                machine.skip(piece.first, end)  # compaction took everything up to there

    def _take(self, piece: DeliverableRange, end: int, result: ReadResult) -> bool:
        """Process the batches of one read up to `end`, or until the budget is used up; returns whether it advanced."""
        batches = result.slice
        assert batches is not None
        self._file = batches.file
        self._first = self._cursor = piece.first
        hole_end = min(end, result.next_offset)
        walked_to, slice_end = batches.position, batches.position + batches.length
        for position, header in walk_headers(self._file, batches.position, slice_end, WALK_BYTES):
            base, body, _, _, _, attributes, last_delta, _, _, producer_id, _, _, count = header
            size = body + LOG_OVERHEAD_BYTES
            if base + last_delta >= result.log_end_offset:
                break  # a damaged header: skip nothing because of it
            walked_to = position + size
            if base + last_delta < self._cursor:
                continue
            if base >= end:
                hole_end, walked_to = end, slice_end
                break
            if base > self._cursor:
                self._pass_over(base)
            high = min(base + last_delta + 1, end)
            if (
                attributes & ATTRIBUTES_CONTROL
                or (
                    result.aborted
                    and attributes & ATTRIBUTES_TRANSACTIONAL
                    and _is_aborted(result.aborted, producer_id, base)
                )
                or (
                    count * RECORD_BYTES_MIN > size - HEADER_BYTES
                    and not self._slices.holds(self._file, position, header)
                )
            ):
                self._pass_over(high)
            elif not (self._delayed and piece.fresh and self._hold_back(position, header, high)):
                self._extend(position, header, high)
            if self._cursor - self._first >= self._room():
                self._close()
                return True
        self._close()
        if walked_to == batches.position:
            raise DamagedLogError(f"{self._file.path} is damaged: no batch begins at position {walked_to}")
        if hole_end > self._cursor and walked_to == slice_end:
            self._pass_over(hole_end)
        return self._cursor > piece.first

    def _room(self) -> int:
        """How many records may be acquired now."""
        return min(self._budget.records_left, self._budget.share_left, self._locks_left())

    def _locks_left(self) -> int:
        """How many more records the members may lock."""
        return max(self._machine.settings.record_locks_max - self._machine.in_flight, 0)

    def _extend(self, position: int, header: RawHeader, high: int) -> None:
        """Acquire also the batch at `position`, up to `high`, or as much as there is room for."""
        budget, room = self._budget, self._room()
        if budget.exactly:
            high = min(high, self._first + room)
        elif budget.shared and high - self._first > 2 * budget.share_left:
            high = self._first + max(min(budget.share_left, self._locks_left()), 1)
        size, offsets = header[1] + LOG_OVERHEAD_BYTES, header[6] + 1
        cut_from = self._cut_from
        if (size >= CUT_BYTES_MIN and 2 * (high - max(self._cursor, header[0])) <= offsets) or (
            cut_from is not None and cut_from == (self._file, position)
        ):
            self._cut(position, size, high)
            return
        if not self._stop:
            self._begin = position
        self._stop = position + size
        self._cursor = high
        self._bounds.append(high)

    def _cut(self, position: int, size: int, high: int) -> None:
        """Lock the rest of a batch up to `high` and send only that."""
        low = self._cursor
        self._close()
        self._first, self._cursor = low, high
        if high <= low or self._is_sent(position):
            part = None
        else:
            try:
                part = self._slices.cut(self._file, position, size, low, high)
            except CorruptRecordsError:
                part = None  # sent as it is: the consumer that reads it reports it
                self._send(position, position + size)
        self._lock([high])
        if part is not None:
            self._cut_from = (self._file, position)
            self._answer.records.append(part)
            self._answer.size += len(part)
            self._budget.bytes_left -= len(part)

    def _is_sent(self, position: int) -> bool:
        """Whether the batch there is in the answer whole."""
        for each in reversed(self._answer.records):
            if isinstance(each, FileSlice):
                return each.file is self._file and each.position <= position < each.position + each.length
        return False

    def _pass_over(self, high: int) -> None:
        """Up to `high` nothing will ever be delivered."""
        self._close()
        self._machine.skip(self._cursor, high)
        self._first = self._cursor = high

    def _hold_back(self, position: int, header: RawHeader, high: int) -> bool:
        """Some records of this batch must wait: True when that was so, and all of it is dealt with."""
        low, wall = self._cursor, self._log.wall
        held = delays_in(self._file.read(position, header[1] + LOG_OVERHEAD_BYTES), low, high, wall.at(self._now))
        if not held:
            return False
        self._close()
        for first, end, until in [*held, (high, high, 0)]:
            if self._first < first:
                self._extend(position, header, first)
                if self._cursor < first:  # the rest stays for another fetch
                    return True
                self._close()
            if first < end:
                self._machine.hold_back(first, end, wall.moment(until))
            self._first = self._cursor = end
        return True

    def _close(self) -> None:
        """Lock [first, cursor) and put its batches into the answer."""
        first, end = self._first, self._cursor
        if first < end and self._stop:
            self._lock(self._bounds)
            self._send(self._begin, self._stop)
        self._stop = 0
        self._bounds.clear()

    def _lock(self, bounds: list[int]) -> None:
        """Acquire [first, cursor); ranges end at batch ends, once they have the length that the member asked for."""
        first, end = self._first, self._cursor
        if first >= end:
            return
        count = self._machine.acquire(self._now, self._member, first, end)
        acquired, budget = self._answer.acquired, self._budget
        begin, least = first, budget.batch_size
        for bound in bounds:
            if bound - begin >= least and bound < end:
                acquired.append((begin, bound - 1, count))
                begin = bound
        acquired.append((begin, end - 1, count))
        budget.records_left -= end - first
        budget.share_left -= end - first
        budget.took_any = True
        self._first = end

    def _send(self, begin: int, stop: int) -> None:
        """Add this part of the file to the answer, unless it is in there already."""
        records, file = self._answer.records, self._file
        last = records[-1] if records else None
        if isinstance(last, FileSlice) and last.file is file:
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
