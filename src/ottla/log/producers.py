"""Keeps the state of one partition's idempotent and transactional producers.

For each producer id it has the epoch, the last five batches, and the transaction that is open here. It also has the
ended transactions that still hold back the last stable offset. Time is passed in: batches have timestamps, and calls
have the wall clock's time.

A transaction's first batch needs a guard (KIP-890). The guard proves that the coordinator verified the transaction, and
that no marker was written since. So a batch that was delayed for a long time can't open a transaction that would never
end.

Rules (KIP-98, KIP-360, KIP-890; Kafka's ProducerStateManager.java, ProducerAppendInfo.java, ProducerStateEntry.java):
- A batch that repeats one of the last five of its producer's epoch is a duplicate: it succeeds with the old offsets.
  Kafka also accepts it if the transaction of that batch has ended; here it is out of order. No client resends a batch
  of a transaction that it has ended. But librdkafka gives the same sequences to other records once it has aborted a
  transaction that was written to a node that died.
- A lower epoch is fenced. A higher epoch begins at sequence 0, and the same epoch continues at last + 1. After 2^31 - 1
  comes 0. A producer id that is not known here may begin at any sequence.
- A transaction is open from its first batch here to its marker. Its offsets stay unstable until the high watermark has
  passed the marker.

Snapshots (`.snapshot`, named by their offset) have Kafka's format: version int16 1, CRC-32C over all that follows it,
count, then 46 bytes per producer with its last batch. Kafka's reader ignores bytes after that, and Ottla adds three
things there.

First, the earlier ones of the last five batches. A producer may have several requests in flight when the node dies.
Without these batches it would get OUT_OF_ORDER_SEQUENCE_NUMBER for batches that are in the log, and clients then send
them again.

Second, under the complement of the producer id, the transactions whose marker the high watermark had not passed.
Without them the last stable offset would pass records that another leader may still cut off. Kafka does not store
them.

Third, under a producer id that does not exist, the summaries of the transaction indexes. No checksum covers an index,
and a damaged one would show aborted records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from ottla.log.answers import AppendRefusedError, Origin
from ottla.log.index.transactions import IndexSummary
from ottla.machine import WallMillis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.batch import ATTRIBUTES_CONTROL, ATTRIBUTES_TRANSACTIONAL, crc_of
from ottla.protocol.records.control import EndTransactionMarker, decode_marker, usual_marker
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import decode_records

BATCHES_KEPT: Final = 5
SEQUENCE_MAX: Final = 2**31 - 1
NO_OFFSET: Final = -1
SNAPSHOT_HEADER: Final = Struct(">hIi")
SNAPSHOT_ENTRY: Final = Struct(">qhiqiqiq")
SNAPSHOT_EARLIER: Final = Struct(">qiqiq")  # producer id, last sequence, last offset, offset delta, timestamp
SNAPSHOT_ENDED: Final = Struct(">qiqiq")  # ~producer id, 1 if aborted, the marker's offset, 0, first offset
SNAPSHOT_INDEX: Final = Struct(">qiqiq")  # INDEX_ID, number of entries, the segment's base offset, 0, checksum
INDEX_ID: Final = 2**63 - 1
SNAPSHOT_VERSION: Final = 1
CRC_COVERS_FROM: Final = 6
_CLIENT: Final = Origin.CLIENT


class SnapshotUnreadableError(Exception):
    """The file is torn, or not a producer snapshot."""


class SequencedBatch(NamedTuple):
    """One of a producer's last batches: sequences and offsets both span `offset_delta` + 1."""

    first_sequence: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """State of one producer id. `batches` are of the current epoch, newest last; empty after an epoch change."""

    __slots__ = ("batches", "coordinator_epoch", "current_txn_first_offset", "epoch", "last_timestamp", "producer_id")

    def __init__(
        self,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        current_txn_first_offset: int = NO_OFFSET,
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        self.batches: deque[SequencedBatch] = deque(maxlen=BATCHES_KEPT)

    def is_open(self, batch: SequencedBatch) -> bool:
        """Whether this batch's transaction is still open."""
        return 0 <= self.current_txn_first_offset <= batch.first_offset

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_data_offset(self) -> int:
        """Offset of the newest data record that is remembered, -1 when only a marker is."""
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


class Transaction(NamedTuple):
    """A transaction that ended here, with its marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool


class VerificationGuard:
    """A pending verification with the coordinator that a producer may open a transaction here. Compared by identity.

    `lowest_sequence`: the lowest of the batches that wait for the verification; that batch must be appended first.
    """

    __slots__ = ("epoch", "lowest_sequence", "made_ms", "second_version")

    def __init__(self, epoch: int, lowest_sequence: int, made_ms: WallMillis, *, second_version: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.made_ms = made_ms
        self.second_version = second_version


def duplicate_of(entry: ProducerEntry, epoch: int, first: int, last: int) -> SequencedBatch | None:
    """The remembered batch that a batch with these sequences repeats."""
    if entry.epoch == epoch:
        for batch in entry.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
    return None


def verify_sequence(entry: ProducerEntry, epoch: int, first: int) -> None:
    """Whether a client's data batch may follow. Raises AppendRefusedError. Pure: the rules are in the module's
    docstring."""
    if epoch < entry.epoch:
        raise _fenced(entry, epoch)
    if epoch > entry.epoch:
        if first != 0:
            raise AppendRefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {entry.producer_id} must begin its new epoch {epoch} (known: {entry.epoch}) with sequence "
                f"0, not {first}.",
            )
        return
    last = entry.last_sequence
    if first != last + 1 and not (first == 0 and last == SEQUENCE_MAX):
        raise AppendRefusedError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"Producer {entry.producer_id} sent sequence {first} after {last}.",
        )


def _fenced(entry: ProducerEntry, epoch: int) -> AppendRefusedError:
    return AppendRefusedError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"Epoch {epoch} of producer {entry.producer_id} is smaller than the last seen epoch {entry.epoch}.",
    )


def marker_in(batch: bytes | bytearray | memoryview) -> EndTransactionMarker | None:
    """The marker in a control batch; None when compaction left the batch empty, or it is no end of a transaction."""
    usual = usual_marker(batch)
    if usual is not None:
        return usual
    try:
        records = decode_records(batch)
        return decode_marker(records[0]) if records else None
    except CorruptRecordsError:
        return None


OWED_MAX: Final = 1000
"""Number of producers whose first batch is remembered as refused; they repeat it within seconds."""


class ProducerState:
    """All producers of one partition. `end_offset` is the log end offset of this state."""

    __slots__ = ("end_offset", "ended", "entries", "expiration_ms", "guards", "open", "owed")

    def __init__(self, expiration_ms: int) -> None:
        self.expiration_ms = expiration_ms
        self.end_offset = 0
        self.entries: dict[int, ProducerEntry] = {}
        self.owed: dict[int, tuple[int, int]] = {}  # of producers without an entry: (epoch, sequence) due first
        self.guards: dict[int, VerificationGuard] = {}  # of producers that are about to open a transaction
        self.open: dict[int, int] = {}  # first offset -> producer id, in offset order: transactions without a marker
        self.ended: dict[int, Transaction] = {}  # by first offset: markers that the high watermark has not passed

    # ---- data batches ----------------------------------------------------------------------------------------------

    def owe(self, producer_id: int, epoch: int, first: int) -> None:
        """Remember that a batch could not be written, or was undone. An unknown producer may begin with any sequence,
        so its later outstanding batches must wait for this one."""
        if producer_id < 0 or producer_id in self.entries:
            return
        known = self.owed.pop(producer_id, None)
        if known is not None and known[0] == epoch:
            first = min(first, known[1])
        if len(self.owed) >= OWED_MAX:
            del self.owed[next(iter(self.owed))]
        self.owed[producer_id] = (epoch, first)

    def may_begin(self, producer_id: int, epoch: int, first: int) -> bool:
        """Whether a producer without an entry may begin with this sequence."""
        owed = self.owed.get(producer_id)
        if owed is not None and owed[0] == epoch and first > owed[1]:
            return False
        self.owed.pop(producer_id, None)
        return True

    def verify_batch(
        self,
        attributes: int,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        last_delta: int,
        batch: memoryview,
        origin: Origin,
    ) -> SequencedBatch | None:
        """The batch in the log that this one repeats; None if it may be appended. HOT.

        Raises AppendRefusedError.
        """
        entry = self.entries.get(producer_id)
        if entry is None:
            if self.owed and not self.may_begin(producer_id, producer_epoch, sequence):
                # Nothing is wrong with the disk now, and every client tries again what is answered so.
                raise AppendRefusedError(
                    ErrorCode.KAFKA_STORAGE_ERROR, "An earlier batch of this producer comes first."
                )
            return None
        if attributes & ATTRIBUTES_CONTROL:
            marker = marker_in(batch)
            if marker is not None:
                self.verify_marker(producer_id, producer_epoch, marker.coordinator_epoch)
            return None
        client = origin is _CLIENT
        if client:
            batches = entry.batches
            if entry.epoch == producer_epoch and batches and batches[-1].last_sequence + 1 == sequence:
                if entry.current_txn_first_offset < 0 or attributes & ATTRIBUTES_TRANSACTIONAL:
                    return None  # the next batch of a producer in order: nothing to look up
            elif (known := self.find_duplicate(producer_id, producer_epoch, sequence, last_delta)) is not None:
                if attributes & ATTRIBUTES_TRANSACTIONAL and not entry.is_open(known):
                    raise AppendRefusedError(
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        f"Producer {producer_id} repeats sequence {sequence} of a transaction that has ended.",
                    )
                return known
        transactional = bool(attributes & ATTRIBUTES_TRANSACTIONAL)
        self.verify(producer_id, producer_epoch, sequence, transactional=transactional, client=client)
        return None

    def verify(self, producer_id: int, epoch: int, first: int, *, transactional: bool, client: bool) -> None:
        """Whether a data batch may be appended; for a coordinator's batch only the epoch is checked. Raises
        AppendRefusedError."""
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        if client:
            verify_sequence(entry, epoch, first)
        elif epoch < entry.epoch:
            raise _fenced(entry, epoch)
        if entry.current_txn_first_offset >= 0 and not transactional:
            raise AppendRefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {producer_id} has a transaction open since offset {entry.current_txn_first_offset}; a batch "
                "outside of it can't be taken.",
            )

    def add(
        self,
        producer_id: int,
        epoch: int,
        first: int,
        first_offset: int,
        last_offset: int,
        timestamp: int,
        *,
        transactional: bool,
    ) -> None:
        """Apply a data batch that is in the log."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        delta = last_offset - first_offset
        last = (first + delta) & SEQUENCE_MAX if first >= 0 else -1  # a coordinator's batches have no sequence
        entry.batches.append(SequencedBatch(first, last, last_offset, delta, timestamp))
        entry.last_timestamp = timestamp
        if transactional and entry.current_txn_first_offset < 0:
            entry.current_txn_first_offset = first_offset
            self.open[first_offset] = producer_id
            self.guards.pop(producer_id, None)

    # ---- the first batch of a transaction --------------------------------------------------------------------------

    def guard(
        self, producer_id: int, epoch: int, first: int, wall_ms: WallMillis, *, second_version: bool
    ) -> VerificationGuard | None:
        """The guard that a batch needs to open a transaction; None if the transaction is open already.

        Raises AppendRefusedError if the producer is fenced.
        """
        entry = self.entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _fenced(entry, epoch)
            if epoch == entry.epoch and entry.current_txn_first_offset >= 0:
                return None
        guard = self.guards.get(producer_id)
        if guard is None:
            guard = self.guards[producer_id] = VerificationGuard(epoch, first, wall_ms, second_version=second_version)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence = epoch, first
        elif first < guard.lowest_sequence:
            guard.lowest_sequence = first
        return guard

    def verify_guard(
        self, producer_id: int, epoch: int, first: int, delta: int, guard: VerificationGuard | None
    ) -> None:
        """Whether a client's transactional batch may be appended with this guard. Raises AppendRefusedError."""
        entry = self.entries.get(producer_id)
        if entry is not None:
            if epoch < entry.epoch:
                raise _fenced(entry, epoch)
            if epoch == entry.epoch and entry.current_txn_first_offset >= 0:
                return
            if duplicate_of(entry, epoch, first, (first + delta) & SEQUENCE_MAX) is not None:
                return
        known = self.guards.get(producer_id)
        if known is None or known is not guard:
            raise AppendRefusedError(
                ErrorCode.INVALID_TXN_STATE,
                f"Producer {producer_id} has no transaction open here, and its coordinator was not asked, or a marker "
                "has come since.",
            )
        if first > known.lowest_sequence or (first and entry is None and known.second_version):
            raise AppendRefusedError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Producer {producer_id} sent sequence {first} first; {min(first, known.lowest_sequence)} is to come "
                "before.",
            )

    def marker_written(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """Drop a pending guard, so that the transaction is verified again. The guard stays if the marker ends the
        transaction before it, which the epoch shows in transaction version 2."""
        guard = self.guards.get(producer_id)
        if guard is not None and not (transaction_version >= 2 and guard.epoch == epoch):
            del self.guards[producer_id]

    # ---- markers ---------------------------------------------------------------------------------------------------

    def verify_marker(
        self, producer_id: int, epoch: int, coordinator_epoch: int, *, transaction_version: int = 0
    ) -> None:
        """Whether a marker may be appended by its coordinator. Raises AppendRefusedError.

        Under transaction version 2 every transaction has its own epoch: the marker's is above the known one, or equal
        with nothing open (the same marker once more).
        """
        if producer_id < 0:
            raise AppendRefusedError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"There is no producer {producer_id}.")
        if epoch < 0:
            raise AppendRefusedError(ErrorCode.INVALID_PRODUCER_EPOCH, f"There is no epoch {epoch} of a producer.")
        entry = self.entries.get(producer_id)
        if entry is None:
            return
        stale = epoch < entry.epoch
        if transaction_version >= 2:
            stale = stale or (epoch == entry.epoch and entry.current_txn_first_offset >= 0)
        if stale:
            raise _fenced(entry, epoch)
        if coordinator_epoch < entry.coordinator_epoch:
            raise AppendRefusedError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Marker for producer {producer_id} has coordinator epoch {coordinator_epoch}, below the last one, "
                f"{entry.coordinator_epoch}.",
            )

    def end_transaction(
        self, producer_id: int, epoch: int, coordinator_epoch: int, offset: int, timestamp: int, *, aborted: bool
    ) -> Transaction | None:
        """Apply a marker at `offset`. Returns the transaction that it ends, None if that had no data here."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.coordinator_epoch = coordinator_epoch
        entry.last_timestamp = timestamp
        first_offset, entry.current_txn_first_offset = entry.current_txn_first_offset, NO_OFFSET
        if first_offset < 0:
            return None
        return Transaction(producer_id, first_offset, offset, aborted)

    def emptied_marker(self, producer_id: int, epoch: int, timestamp: int) -> None:
        """Apply a marker without its record: compaction has left it to keep the producer's epoch. Kafka leaves it too,
        but does not read its epoch again (ProducerAppendInfo.append)."""
        entry = self.entries.get(producer_id)
        if entry is None:
            entry = self.entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif epoch > entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.last_timestamp = max(entry.last_timestamp, timestamp)

    def last_stable_offset_after(self, ended: Transaction) -> int:
        """The last stable offset that the transaction index stores with an abort: the first offset still open after
        it."""
        for first_offset in self.open:
            if first_offset != ended.first_offset:
                return first_offset
        return ended.last_offset + 1

    def complete(self, ended: Transaction) -> None:
        """End the transaction; it holds the last stable offset back until the high watermark passes its marker."""
        self.open.pop(ended.first_offset, None)
        self.ended[ended.first_offset] = ended

    def high_watermark_moved(self, high_watermark: int) -> None:
        if self.ended:
            passed = [first for first, ended in self.ended.items() if ended.last_offset < high_watermark]
            for first_offset in passed:
                del self.ended[first_offset]

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open, or ended but not known to be replicated."""
        first = next(iter(self.open), None)
        if self.ended:
            ended = min(self.ended)
            return ended if first is None else min(first, ended)
        return first

    # ---- life cycle ------------------------------------------------------------------------------------------------

    def find_duplicate(self, producer_id: int, epoch: int, first: int, delta: int) -> SequencedBatch | None:
        entry = self.entries.get(producer_id)
        if entry is None:
            return None
        return duplicate_of(entry, epoch, first, (first + delta) & SEQUENCE_MAX)

    def expire(self, wall_ms: WallMillis) -> int:
        """Forget producers with nothing open that were idle for the expiration time. Returns how many."""
        old = [
            entry.producer_id
            for entry in self.entries.values()
            if entry.current_txn_first_offset < 0 and wall_ms - entry.last_timestamp >= self.expiration_ms
        ]
        for producer_id in old:
            del self.entries[producer_id]
        idle = [each for each, guard in self.guards.items() if wall_ms - guard.made_ms >= self.expiration_ms]
        for producer_id in idle:
            del self.guards[producer_id]
        return len(old)

    def clear(self, end_offset: int) -> None:
        self.entries.clear()
        self.open.clear()
        self.ended.clear()
        self.guards.clear()
        self.end_offset = end_offset

    def log_start_moved(self, log_start_offset: int) -> None:
        """Note that records were deleted. That removes no producer, but a transaction that ended below the start is
        settled."""
        gone = [first for first, ended in self.ended.items() if ended.last_offset < log_start_offset]
        for first_offset in gone:
            del self.ended[first_offset]
        self.end_offset = max(self.end_offset, log_start_offset)

    def encode(self, indexes: Mapping[int, IndexSummary] | None = None) -> bytes:
        """The bytes of a snapshot file. `indexes`: the summaries of the transaction indexes that have entries, by base
        offset."""
        body = bytearray(SNAPSHOT_HEADER.size)
        for entry in self.entries.values():
            batch = entry.batches[-1] if entry.batches else None
            body += SNAPSHOT_ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                batch.last_sequence if batch else -1,
                batch.last_offset if batch else -1,
                batch.offset_delta if batch else 0,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        for entry in self.entries.values():
            for earlier in list(entry.batches)[:-1]:
                body += SNAPSHOT_EARLIER.pack(
                    entry.producer_id,
                    earlier.last_sequence,
                    earlier.last_offset,
                    earlier.offset_delta,
                    earlier.timestamp,
                )
        for ended in self.ended.values():
            body += SNAPSHOT_ENDED.pack(~ended.producer_id, ended.aborted, ended.last_offset, 0, ended.first_offset)
        for base_offset, summary in (indexes or {}).items():
            body += SNAPSHOT_INDEX.pack(INDEX_ID, summary.entries, base_offset, 0, summary.checksum)
        SNAPSHOT_HEADER.pack_into(body, 0, SNAPSHOT_VERSION, 0, len(self.entries))
        crc = crc_of(memoryview(body), CRC_COVERS_FROM, len(body))
        SNAPSHOT_HEADER.pack_into(body, 0, SNAPSHOT_VERSION, crc, len(self.entries))
        return bytes(body)

    def restore(self, snapshot: bytes, end_offset: int, wall_ms: WallMillis) -> None:
        """Replace the state by a snapshot taken at `end_offset`, without the producers that have expired since.

        Ended transactions are as at the time of the snapshot: the high watermark may have passed them since
        (`high_watermark_moved`). Raises SnapshotUnreadableError, and then nothing has changed.
        """
        entries = decode_snapshot(snapshot)
        self.clear(end_offset)
        for ended in _ended_in(snapshot, len(entries)):
            self.ended[ended.first_offset] = ended
        for entry in entries:
            if entry.current_txn_first_offset >= 0 or wall_ms - entry.last_timestamp < self.expiration_ms:
                self.entries[entry.producer_id] = entry
        unfinished = [entry for entry in entries if entry.current_txn_first_offset >= 0]
        for entry in sorted(unfinished, key=lambda entry: entry.current_txn_first_offset):
            self.open[entry.current_txn_first_offset] = entry.producer_id

    def check(self) -> None:
        opened = {
            entry.current_txn_first_offset: producer_id
            for producer_id, entry in self.entries.items()
            if entry.current_txn_first_offset >= 0
        }
        assert opened == self.open, (opened, self.open)
        assert list(self.open) == sorted(self.open)


def decode_snapshot(snapshot: bytes) -> list[ProducerEntry]:
    """The producers in a snapshot file. Raises SnapshotUnreadableError."""
    if len(snapshot) < SNAPSHOT_HEADER.size:
        raise SnapshotUnreadableError(f"a producer snapshot of {len(snapshot)} bytes is cut off")
    version, crc, count = SNAPSHOT_HEADER.unpack_from(snapshot)
    if version != SNAPSHOT_VERSION:
        raise SnapshotUnreadableError(f"producer snapshot version {version} is not {SNAPSHOT_VERSION}")
    if crc != crc_of(memoryview(snapshot), CRC_COVERS_FROM, len(snapshot)):
        raise SnapshotUnreadableError("the checksum of the producer snapshot does not match")
    end = SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size
    if len(snapshot) < end or (len(snapshot) - end) % SNAPSHOT_EARLIER.size:
        raise SnapshotUnreadableError(f"the producer snapshot does not hold the {count} entries it promises")
    earlier: dict[int, list[SequencedBatch]] = {}
    for producer_id, last, last_offset, delta, timestamp in SNAPSHOT_EARLIER.iter_unpack(memoryview(snapshot)[end:]):
        batch = SequencedBatch((last - delta) & SEQUENCE_MAX, last, last_offset, delta, timestamp)
        earlier.setdefault(producer_id, []).append(batch)
    entries: list[ProducerEntry] = []
    for fields in SNAPSHOT_ENTRY.iter_unpack(memoryview(snapshot)[SNAPSHOT_HEADER.size : end]):
        producer_id, epoch, last, last_offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset)
        if last_offset >= 0:
            entry.batches.extend(earlier.get(producer_id, ()))
            entry.batches.append(SequencedBatch((last - delta) & SEQUENCE_MAX, last, last_offset, delta, timestamp))
        entries.append(entry)
    return entries


def indexes_in(snapshot: bytes) -> dict[int, IndexSummary]:
    """The summaries of transaction indexes in a sound snapshot, by base offset. Empty if there are none, or if Kafka or
    an older version has written the snapshot."""
    _, _, count = SNAPSHOT_HEADER.unpack_from(snapshot)
    behind = memoryview(snapshot)[SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size :]
    return {
        base_offset: IndexSummary(entries, checksum)
        for index_id, entries, base_offset, _, checksum in SNAPSHOT_INDEX.iter_unpack(behind)
        if index_id == INDEX_ID
    }


def _ended_in(snapshot: bytes, count: int) -> Iterator[Transaction]:
    """The ended transactions in a sound snapshot of this number of producers, whose marker was not committed."""
    behind = memoryview(snapshot)[SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size :]
    for complement, aborted, marker_offset, _, first_offset in SNAPSHOT_ENDED.iter_unpack(behind):
        if complement < 0:
            yield Transaction(~complement, first_offset, marker_offset, bool(aborted))
