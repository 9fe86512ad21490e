"""Reads records from partitions within bounds: forwards from positions, backwards from ends, or as they arrive.

Records are read as whole batches, so the bounds count bytes, not offsets: a compacted topic costs what it holds. The
result says how far it got, as positions by partition, from which another request continues. A record of a transaction
carries the transaction's state.

Sources: Kafka's consumer (Fetcher.java: aborted transactions), KIP-98.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ottla.client.client import Client
from ottla.client.errors import BrokerError, ClientError, check
from ottla.client.fetching import FetchedPart, PartitionFetch, post_fetch
from ottla.console.access import RecordsHiddenError
from ottla.console.browsing.decoding import Decoding
from ottla.console.browsing.filters import Filter
from ottla.console.browsing.found import Found
from ottla.protocol.records import CorruptRecordsError, Record, decode_records, iter_batches
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.control import ABORT, COMMIT, control_type

BYTES_MAX: Final = 48 << 20
SECONDS_MAX: Final = 4.0
PART_BYTES: Final = 1 << 20
ROUND_BYTES: Final = 8 << 20
READ_COMMITTED: Final = 1
NONE, COMMITTED, ABORTED, OPEN = "", "committed", "aborted", "open"
"""States of a record's transaction; NONE for a record outside any."""
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(slots=True)
class Budget:
    """Bytes and time that a request has left."""

    bytes_left: int = BYTES_MAX
    until: float = field(default_factory=lambda: time.monotonic() + SECONDS_MAX)
    records: int = 0
    spent: int = 0

    @property
    def is_spent(self) -> bool:
        return self.bytes_left <= 0 or time.monotonic() >= self.until

    def spend(self, size: int) -> None:
        self.bytes_left -= size
        self.spent += size

    def end(self) -> None:
        """Leave no time."""
        self.until = 0.0


@dataclass(frozen=True, slots=True)
class Scanned:
    """The records that were found, in the order of the request, and the positions from which to continue. `is_over`:
    nothing is left. `troubles` are sentences about partitions that could not be read, `failure` is the first answer or
    connection that failed."""

    found: list[Found]
    positions: dict[int, int]
    is_over: bool
    records: int
    size: int
    troubles: tuple[str, ...] = ()
    failure: ClientError | None = None


# ---- batches -------------------------------------------------------------------------------------------------------


def records_of(
    part: FetchedPart, partition: int, at: int, end: int, committed: bool
) -> tuple[list[Found], int, str | None]:
    """The records of a part of an answer between two offsets, the offset after them, and why the rest can't be read.

    `committed`: the part was read with READ_COMMITTED, so that its list of aborted transactions is complete.
    """
    found: list[Found] = []
    after, trouble = at, None
    states = _States(part, committed)
    try:
        for header, position in iter_batches(part.records):
            if header.base_offset >= end:
                return found, end, None
            state = states.of(header, position)
            after = header.next_offset
            for record in decode_records(part.records, position):
                if at <= record.offset < end:
                    codec = CODECS[header.compression] if header.compression < len(CODECS) else "?"
                    kind = _control(record) if header.is_control else ""
                    epoch = header.partition_leader_epoch
                    found.append(Found(partition, record, state, kind, header.producer_id, codec, epoch))
    except CorruptRecordsError as damage:
        trouble = f"Partition {partition} cannot be read at offset {after}: {damage}."
    return found, after, trouble


class _States:
    """The states of transactions in one part of an answer."""

    def __init__(self, part: FetchedPart, committed: bool) -> None:
        self._part, self._committed = part, committed
        self._begun = sorted(part.aborted, key=lambda each: each[1])
        self._aborted: set[int] = set()
        self._ends = {} if committed else self._markers()

    def of(self, header: BatchHeader, position: int) -> str:
        if not header.is_transactional:
            return NONE
        if header.is_control:
            kind = self._kind(position)
            if kind == ABORT:
                self._aborted.discard(header.producer_id)
            return ABORTED if kind == ABORT else COMMITTED
        if not self._committed:
            later = [kind for offset, kind in self._ends.get(header.producer_id, ()) if offset > header.base_offset]
            return OPEN if not later else ABORTED if later[0] == ABORT else COMMITTED
        while self._begun and self._begun[0][1] <= header.last_offset:
            self._aborted.add(self._begun.pop(0)[0])
        return ABORTED if header.producer_id in self._aborted else COMMITTED

    def _markers(self) -> dict[int, list[tuple[int, int]]]:
        """The markers in the part by producer: (offset, kind)."""
        ends: dict[int, list[tuple[int, int]]] = {}
        try:
            for header, position in iter_batches(self._part.records):
                if header.is_control:
                    ends.setdefault(header.producer_id, []).append((header.base_offset, self._kind(position)))
        except CorruptRecordsError:
            pass
        return ends

    def _kind(self, position: int) -> int:
        records = decode_records(self._part.records, position)
        return control_type(records[0]) if records else -1


def _control(record: Record) -> str:
    kind = control_type(record)
    return {COMMIT: "commit marker", ABORT: "abort marker"}.get(kind, f"control record {kind}")


# ---- reading -------------------------------------------------------------------------------------------------------


class Scan:
    """Reads partitions of one topic, whose leaders the client knows."""

    def __init__(
        self,
        client: Client,
        topic: str,
        search: Filter,
        budget: Budget | None = None,
        decoding: Decoding | None = None,
    ) -> None:
        self.client, self.topic, self.search = client, topic, search
        self.budget = budget or Budget()
        self._decoding = decoding or Decoding()
        self.troubles: dict[str, None] = {}
        self.failure: ClientError | None = None
        self._plain: set[int] = set()
        """Partitions that are read up to their end, beyond the last stable offset."""
        self._failed: set[int] = set()
        self._rounds = 0

    def forwards(self, positions: Mapping[int, int], ends: Mapping[int, int], limit: int) -> Scanned:
        """The first matches from positions up to ends, oldest first."""
        at = dict(positions)
        kept: dict[int, list[Found]] = {partition: [] for partition in at}
        while not self.budget.is_spent:
            wanted = {
                each: (at[each], ends[each])
                for each in at
                if at[each] < ends[each] and len(kept[each]) < limit and each not in self._failed
            }
            if not wanted:
                break
            for partition, (found, after) in self._round(wanted).items():
                kept[partition] += found
                at[partition] = after
        matches = sorted((each for rows in kept.values() for each in rows), key=lambda each: each.order)
        taken = _in_offset_order(matches, newest_first=False)[:limit]
        left = _left(kept, taken)
        after = {each: min((row.record.offset for row in left[each]), default=at[each]) for each in at}
        return self._scanned(taken, after, all(after[each] >= ends[each] for each in after))

    def backwards(self, starts: Mapping[int, int], ends: Mapping[int, int], limit: int) -> Scanned:
        """The last matches between starts and ends, newest first. The positions are the ends for the next request."""
        high = dict(ends)
        kept: dict[int, list[Found]] = {partition: [] for partition in high}
        window = max(8, -(-2 * limit // max(1, len(high))))
        while not self.budget.is_spent:
            open_ = [
                each
                for each in high
                if high[each] > starts[each] and len(kept[each]) < limit and each not in self._failed
            ]
            if not open_:
                break
            spent = self.budget.spent
            lows = {each: max(starts[each], high[each] - window) for each in open_}
            begun = self._begun({each: (lows[each], high[each]) for each in open_})
            for partition in open_:
                low = lows[partition]
                rows, at = self._window(partition, begun[partition], high[partition])
                if partition in self._failed:
                    continue
                if at < high[partition]:
                    skipped = f"Offsets {at} to {high[partition] - 1} of partition {partition}"
                    self.troubles[f"{skipped} were not read: there was too much before them."] = None
                kept[partition] += rows
                high[partition] = low
                if self.budget.is_spent:  # what has begun of the others is read again by the next request
                    break
            if self.budget.spent - spent < ROUND_BYTES // 4:
                window *= 4
        matches = sorted((each for rows in kept.values() for each in rows), key=lambda each: each.order, reverse=True)
        taken = _in_offset_order(matches, newest_first=True)[:limit]
        left = _left(kept, taken)
        before = {each: max((row.record.offset + 1 for row in left[each]), default=high[each]) for each in high}
        return self._scanned(taken, before, all(before[each] <= starts[each] for each in before))

    def _begun(self, ranges: Mapping[int, tuple[int, int]]) -> dict[int, tuple[list[Found], int]]:
        """The first matches in a range of each partition, and the offset up to which it was read: one fetch from each
        leader, and another one for open transactions."""
        begun: dict[int, tuple[list[Found], int]] = {each: ([], low) for each, (low, _) in ranges.items()}
        for _ in range(2):
            left = {
                each: (begun[each][1], high)
                for each, (_, high) in ranges.items()
                if begun[each][1] < high and each not in self._failed
            }
            if not left or self.budget.is_spent:
                break
            for partition, (found, after) in self._round(left).items():
                begun[partition] = [*begun[partition][0], *found], after
        return begun

    def _window(self, partition: int, begun: tuple[list[Found], int], high: int) -> tuple[list[Found], int]:
        """The matches of one partition in a range that has begun to be read, and the offset up to which it was read."""
        rows, at = begun
        while at < high and not self.budget.is_spent and partition not in self._failed:
            for found, after in self._round({partition: (at, high)}).values():
                rows += found
                at = after
        return rows, at

    def _scanned(self, taken: list[Found], positions: dict[int, int], is_over: bool) -> Scanned:
        budget = self.budget
        return Scanned(taken, positions, is_over, budget.records, budget.spent, tuple(self.troubles), self.failure)

    def _round(self, wanted: Mapping[int, tuple[int, int]]) -> dict[int, tuple[list[Found], int]]:
        """One fetch from each leader: the matches and the offset after what was read, by partition."""
        results: dict[int, tuple[list[Found], int]] = {}
        for isolation in (READ_COMMITTED, 0):
            asked = [each for each in wanted if (each in self._plain) == (isolation == 0)]
            for partition, part in self._fetched(asked, wanted, isolation).items():
                at, end = wanted[partition]
                found, after, trouble = records_of(part, partition, at, end, isolation == READ_COMMITTED)
                if trouble is not None:
                    self.troubles[trouble] = None
                    after = end
                if after <= at and isolation == READ_COMMITTED and at >= part.last_stable_offset:
                    self._plain.add(partition)
                elif after <= at and at >= part.high_watermark:
                    after = end
                self.budget.records += len(found)
                accepted, stopped = self._accepted(found)
                results[partition] = accepted, min(after, end) if stopped is None else stopped
        self._rounds += 1
        return results

    def _accepted(self, found: list[Found]) -> tuple[list[Found], int | None]:
        """The records that the search finds, and the offset at which it had no time to decode them."""
        if self.search.is_empty:
            return found, None
        data = [each for each in found if not each.control]
        if not self._decoding.is_used or not self.search.reads_content:
            return [each for each in data if self.search.accepts(each.record)], None
        accepted: list[Found] = []
        for each, pair in zip(data, self._decoding.of(data), strict=True):
            for decoded in pair:
                if decoded is not None and decoded.is_late:
                    self.budget.end()
                    return accepted, each.record.offset
                if decoded is not None and decoded.json is None:
                    why = f"the contents of records with {decoded.schema}, which were searched as bytes. {decoded.why}"
                    self.troubles[why] = None
            if self.search.accepts(each.record, *pair):
                accepted.append(each)
                self._decoding.keep(each, pair)
        return accepted, None

    def _fetched(
        self, partitions: Iterable[int], wanted: Mapping[int, tuple[int, int]], isolation: int
    ) -> dict[int, FetchedPart]:
        """The parts of partitions, from their leaders; a partition that can't be read gets a sentence."""
        by_leader: dict[int, list[PartitionFetch]] = {}
        leaders = self.client.known_topic(self.topic).leaders
        for partition in partitions:
            if leaders[partition] < 0:
                self._fail([partition], ClientError(f"Partition {partition} has no leader."))
                continue
            fetch = PartitionFetch(self.topic, partition, wanted[partition][0], PART_BYTES)
            by_leader.setdefault(leaders[partition], []).append(fetch)
        results: dict[int, FetchedPart] = {}
        for node_id, rows in by_leader.items():
            first = self._rounds % len(rows)  # the first one gets a batch, whatever its size
            rows = rows[first:] + rows[:first]
            size = max(1, min(ROUND_BYTES, self.budget.bytes_left))
            try:
                leader = self.client.broker(node_id)
                fetching = post_fetch(
                    self.client, leader, rows, max_bytes=size, min_bytes=0, max_wait_ms=0, isolation_level=isolation
                )
                parts = fetching.take()
            except RecordsHiddenError:
                raise
            except ClientError as failure:
                self._fail([each.partition for each in rows], failure, f"Node {node_id}: {failure}")
                continue
            for (_, partition), part in parts.items():
                self.budget.spend(len(part.records))
                try:
                    check(part.error_code, f"partition {partition}")
                except BrokerError as refused:
                    self._fail([partition], refused)
                else:
                    results[partition] = part
        return results

    def _fail(self, partitions: Iterable[int], failure: ClientError, sentence: str = "") -> None:
        """Leave partitions out for the rest of the request."""
        self._failed.update(partitions)
        self.failure = self.failure or failure
        self.troubles[sentence or str(failure)] = None


def _in_offset_order(matches: list[Found], *, newest_first: bool) -> list[Found]:
    """Matches by time, but those of a partition by offset, so that positions can continue after any of them."""
    by_partition: dict[int, list[Found]] = {}
    for each in matches:
        by_partition.setdefault(each.partition, []).append(each)
    for rows in by_partition.values():
        rows.sort(key=lambda each: each.record.offset, reverse=not newest_first)
    return [by_partition[each.partition].pop() for each in matches]


def _left(kept: Mapping[int, list[Found]], taken: list[Found]) -> dict[int, list[Found]]:
    """The matches that were found and are not shown, by partition."""
    gone = {(each.partition, each.record.offset) for each in taken}
    return {each: [row for row in rows if (each, row.record.offset) not in gone] for each, rows in kept.items()}


def scanned(
    client: Client,
    topic: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    bytes_max: int,
    unseen: list[str],
) -> tuple[list[Found], dict[int, int], bool]:
    """The records of partitions in the order of their offsets, without those of aborted transactions; the positions
    that were reached; whether they are the ends."""
    if all(starts[each] >= ends[each] for each in starts):
        return [], dict(starts), True
    limit = sum(max(0, ends[each] - starts[each]) for each in starts)
    found = Scan(client, topic, Filter(), Budget(bytes_max)).forwards(starts, ends, limit)
    unseen += [each for each in found.troubles if each not in unseen]
    rows = [each for each in found.found if not each.control and each.transaction != ABORTED]
    rows.sort(key=lambda each: (each.partition, each.record.offset))
    return rows, found.positions, found.is_over
