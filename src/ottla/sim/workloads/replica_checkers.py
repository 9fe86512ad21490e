"""Checks the invariants of the replicas of a simulated cluster at every step of every node.

The checker sees the logs of all nodes, the shared metadata, and the answers to clients. The numbers are those of the
invariants of a replicated log:

1. One leader per epoch: at most one node leads a partition in an epoch. A replica appends no batch of a later epoch
   than its own.
2. Log matching: a batch of one (base offset, epoch) has the same bytes in every log, and so have all batches before it.
3. Leader completeness: a new leader has all records that were acknowledged or exposed under earlier epochs.
4. In-sync and eligible replicas are durable: each has everything below the high watermark of any leader so far, when
   that moves and when they become in-sync or eligible.
5. The high watermark never goes back under one leadership, and a follower's is no higher than a leader's was.
6. No committed record is cut: no cut removes records that were below the high watermark of a leader.
7. The in-sync replicas are among the replicas, include the leader, and exclude the eligible ones (`watched_store`
   checks more of 7, and 9).

10. An acknowledged record is below the high watermark of a leader.
11. A producer's numbered batch is in a log once.

13. The last stable offset is in no transaction whose marker was below no leader's high watermark.

Other modules check the other invariants:

- 8, stale requests change nothing: the proposals of tests/harness/sim/controllers.py and `watched_store`.
- 12, committed offsets never go back: the history of the committing clients.
- 14, a coordinator's state is what its log says: `clustered_run`. `transaction_checkers` checks more of transactions.
- 15, everything comes to rest: `Cluster.settle`.

A replica that may have lost bytes (`lost_power`) is exempt from 4 until it has left the in-sync and eligible replicas,
as it must. It is exempt from 6 when it is first read again.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.log.answers import DamagedLogError, Isolation
from ottla.log.files import ReadError
from ottla.metadata.image import MetadataImage
from ottla.metadata.topics import PartitionRecord
from ottla.sim.clients.batches import CorruptError, ReadBatch, decode_batches
from ottla.sim.kernel.trace import InvariantError

READ_BYTES = 1 << 22
NONE: frozenset[int] = frozenset()


class Told(NamedTuple):
    """A record that a client learned of, and the first epoch in which a leader had it below its high watermark."""

    value: bytes
    epoch: int


@dataclass(slots=True)
class Copy:
    """A partition's log on one node at the last check: its batches in order, and the values that reveal a change."""

    partition: Partition | None = None
    batches: list[ReadBatch] = field(default_factory=list[ReadBatch])
    end: int = 0
    log_start: int = 0
    cuts: int = -1
    high_watermark: int = 0
    leadership: tuple[int, bool] = (-1, False)
    seen: tuple[object, ...] = ()
    """The values that the last check saw; if none has changed, there is nothing to check."""
    numbers: set[tuple[int, int, int]] = field(default_factory=set[tuple[int, int, int]])
    """Producer id, epoch and sequence of each numbered batch."""

    @property
    def start(self) -> int:
        """Base offset of the first batch in the log."""
        return self.batches[0].base_offset if self.batches else self.end

    def at(self, offset: int) -> ReadBatch | None:
        """The batch that holds this offset."""
        low, high = 0, len(self.batches)
        while low < high:
            middle = (low + high) // 2
            if self.batches[middle].last_offset < offset:
                low = middle + 1
            else:
                high = middle
        found = self.batches[low] if low < len(self.batches) else None
        return found if found is not None and found.base_offset <= offset else None

    def value_at(self, offset: int) -> bytes | None:
        """The value of the record at this offset."""
        batch = self.at(offset)
        if batch is None:
            return None
        return next((note.value for note in batch.notes if note.offset == offset), None)


class ReplicaChecker:
    """The promises of one topic of a cluster, by partition index."""

    def __init__(self, topic: str, topic_id: bytes | None = None) -> None:
        self.topic = topic
        self.dense = True
        """Whether the offsets of a log have no gaps."""
        self._topic_id = topic_id
        """Id of the current topic of this name; the checks ignore earlier topics of the name."""
        self.copies: dict[tuple[int, int], Copy] = {}
        """By node and partition."""
        self._places: dict[int, set[int]] = {}
        """By node, the partitions of which it has a copy."""
        self.acks: dict[int, dict[int, Told]] = {}
        self.reads: dict[int, dict[int, Told]] = {}
        self._leaders: dict[tuple[int, int], int] = {}
        self._written: dict[tuple[int, int, int], ReadBatch] = {}
        """By partition, epoch and base offset."""
        self._committed: dict[int, dict[int, int]] = {}
        """By partition: the highest high watermark of the leader of each epoch."""
        self.liars: set[int] = set()
        """The nodes whose disks were spoiled: some of their batches cannot be read before the node notices the
        damage."""
        self._isr_forgiven: set[tuple[int, int]] = set()
        self._cut_forgiven: set[tuple[int, int]] = set()
        self._down: set[int] = set()
        """The nodes that lost something and are down. A change of the in-sync replicas that adds such a node may be in
        progress."""
        self._epochs_before: dict[int, int] = {}
        """The newest leader epoch of each partition when the metadata store was restored, which may name older ones."""
        self._in_sync: dict[int, tuple[int, ...]] = {}
        """The in-sync and eligible replicas at the last check, by partition."""

    # ---- what clients learned --------------------------------------------------------------------------------------

    def acknowledged(self, index: int, offset: int, value: bytes) -> None:
        """Record that a producer with acks=all received the acknowledgement of its record at this offset."""
        known = self.acks.setdefault(index, {}).setdefault(offset, self._told(index, offset, value, "acknowledged"))
        if known.value != value:
            raise InvariantError(
                f"{self.topic}-{index}: {known.value!r} and {value!r} are both acknowledged at {offset}"
            )

    def _told(self, index: int, offset: int, value: bytes, what: str) -> Told:
        epochs = [epoch for epoch, mark in self._committed.get(index, {}).items() if mark > offset]
        if not epochs:
            raise InvariantError(f"10: {self.topic}-{index}: {offset} is {what} and below no leader's high watermark")
        return Told(value, min(epochs))

    def acknowledged_end(self, index: int) -> int:
        """Return the end of the records acknowledged with acks=all so far."""
        return max(self.acks.get(index, ()), default=-1) + 1

    def _committed_end(self, index: int, epoch: int | None = None) -> int:
        """Return the highest high watermark of any leader of a partition, or of those up to this epoch."""
        marks = self._committed.get(index, {})
        return max((mark for each, mark in marks.items() if epoch is None or each <= epoch), default=0)

    def exposed(self, index: int, offset: int, epoch: int, value: bytes) -> None:
        """Record that a consumer received this record."""
        known = self.reads.setdefault(index, {}).get(offset)
        if known is None:
            known = self.reads[index][offset] = self._told(index, offset, value, "given to a consumer")
        if known.value != value:
            raise InvariantError(
                f"{self.topic}-{index}: consumers were given {known.value!r} and {value!r} at {offset}"
            )

    @property
    def forgives(self) -> bool:
        """Whether a replica that may have lost bytes still counts as in sync or eligible."""
        return bool(self._isr_forgiven)

    # ---- a node has done something ---------------------------------------------------------------------------------

    def lost_power(self, node_id: int, *, in_sync_too: bool) -> None:
        """Handle a power cut of this node: what its disk had not written may be gone. `in_sync_too`: also what it had
        reported as an in-sync replica."""
        places = [place for place in self.copies if place[0] == node_id]
        self._cut_forgiven.update(places)
        if in_sync_too:
            self._down.add(node_id)
            self._isr_forgiven.update(place for place in places if node_id in self._in_sync.get(place[1], ()))

    def store_restored(self) -> None:
        """Handle an older metadata store: the in-sync replicas that it names need not have what was committed since."""
        self._isr_forgiven.update(self.copies)
        self._epochs_before = {index: max(marks) for index, marks in self._committed.items() if marks}

    def look(self, node: Node, image: MetadataImage) -> None:
        """Check every partition of the topic on this node. Raises InvariantError."""
        node_id = node.node_id
        self._down.discard(node_id)
        local = node.replicas.by_name.get(self.topic)
        partitions = {} if local is None else local.partitions
        if not partitions.keys() >= self._places.get(node_id, NONE):
            for index in [index for index in self._places[node_id] if index not in partitions]:
                del self.copies[node_id, index]  # its replica was moved away; one that comes back starts from nothing
                self._places[node_id].discard(index)
        if local is None or local.id != self._topic_id:
            return
        for index, partition in partitions.items():
            copy = self.copies.get((node_id, index))
            if copy is None:
                copy = self.copies[node_id, index] = Copy()
                self._places.setdefault(node_id, set()).add(index)
            seen = _seen(partition)
            if seen == copy.seen and copy.partition is partition:
                continue
            copy.seen, copy.log_start = seen, partition.log.log_start_offset
            self._read(node_id, index, partition, copy)
            self._look_at_offsets(node_id, index, partition, copy)
            self._look_at_ends(node_id, index, partition, copy)
            if partition.leads:
                self._look_at_leader(node_id, index, partition, copy, image)

    def _read(self, node_id: int, index: int, partition: Partition, copy: Copy, *, may_have_gaps: bool = False) -> None:
        log = partition.log
        is_same = partition is copy.partition and log.segments.compaction_epoch == copy.cuts
        if log.unopened or (is_same and log.log_end_offset == copy.end):
            return
        before = copy.batches
        if is_same:
            at = max(copy.end, log.log_start_offset)
        else:
            copy.batches, at = [], log.log_start_offset
            copy.numbers.clear()
        while at < log.log_end_offset:
            try:
                found = log.read(at, READ_BYTES, Isolation.LOG_END)
                octets = b"" if found.slice is None else found.slice.read()
            except (DamagedLogError, ReadError):
                if node_id not in self.liars:
                    raise
                copy.partition, copy.batches, copy.end = None, before, at
                return
            if found.slice is None and (log.failed is not None or node_id in self.liars):
                # A cut that failed, so that it is not led from here; or a batch whose offsets are damaged.
                copy.partition, copy.batches, copy.end = None, before, at
                return
            assert found.slice is not None, (partition.name, at, log.log_end_offset)
            batches = self._decoded(node_id, index, at, octets, may_have_gaps)
            if not batches:
                assert node_id in self.liars
                copy.partition, copy.batches, copy.end = None, before, at
                return
            for batch in batches:
                if is_same and batch.leader_epoch > partition.leader_epoch:
                    raise InvariantError(
                        f"1: {partition.name} on node {node_id} is in epoch {partition.leader_epoch} and takes a batch "
                        f"of epoch {batch.leader_epoch} at {batch.base_offset}"
                    )
                self._match(node_id, index, batch)
                self._count(node_id, index, batch, copy)
                copy.batches.append(batch)
                at = batch.last_offset + 1
        # A replica out of sync may drop records that no fsync covered: it has not reported them to the leader.
        took_back = partition.fsyncs_each and node_id not in self._in_sync.get(index, ())
        took_back = took_back or self._has_noticed(node_id, partition)
        if copy.batches is not before and before and not took_back:
            self._look_at_cut(node_id, index, before, copy, same_life=partition is copy.partition)
        copy.partition, copy.end, copy.cuts = partition, log.log_end_offset, log.segments.compaction_epoch

    def _decoded(self, node_id: int, index: int, at: int, octets: bytes, may_have_gaps: bool) -> list[ReadBatch] | None:
        """Return the batches that were read; None if a spoiled disk has damaged one, even where no checksum covers
        it. A gap is damage, unless they `may_have_gaps`."""
        if node_id not in self.liars:
            return decode_batches(octets)
        try:
            batches = decode_batches(octets)
        except (CorruptError, InvariantError):
            return None
        for batch in batches:
            known = self._written.get((index, batch.leader_epoch, batch.base_offset), batch)
            if not self._is_left_of(batch, known):
                return None
            if batch.last_offset < at or (batch.base_offset > at and self.dense and not may_have_gaps):
                return None
            at = batch.last_offset + 1
        return batches

    def _is_left_of(self, batch: ReadBatch, written: ReadBatch) -> bool:
        """Whether a replica can have this batch instead of the one that was written."""
        return batch == written

    def _has_noticed(self, node_id: int, partition: Partition) -> bool:
        """Whether a node with a spoiled disk reports that this log lacks records. It copies them again."""
        return node_id in self.liars and partition.copy.is_reported

    def _match(self, node_id: int, index: int, batch: ReadBatch) -> None:
        known = self._written.setdefault((index, batch.leader_epoch, batch.base_offset), batch)
        if not self._is_left_of(batch, known):
            raise InvariantError(
                f"2: {self.topic}-{index} on node {node_id} has another batch at {batch.base_offset} of epoch "
                f"{batch.leader_epoch}: {batch.notes} and {known.notes}"
            )

    def _count(self, node_id: int, index: int, batch: ReadBatch, copy: Copy) -> None:
        if batch.base_sequence < 0:
            return
        number = batch.producer_id, batch.producer_epoch, batch.base_sequence
        if number in copy.numbers:
            raise InvariantError(
                f"11: {self.topic}-{index} on node {node_id} has {number} twice: again at {batch.base_offset}"
            )
        copy.numbers.add(number)

    def _look_at_cut(self, node_id: int, index: int, before: list[ReadBatch], copy: Copy, *, same_life: bool) -> None:
        if not same_life and (node_id, index) in self._cut_forgiven:
            self._cut_forgiven.discard((node_id, index))
            return
        if node_id in self.liars and node_id not in self._in_sync.get(index, ()):
            return  # it copies again what was damaged
        start = copy.start
        committed = self._committed.get(index, {})
        for batch in before:
            if batch.base_offset < start or copy.at(batch.base_offset) == batch:
                continue
            if any(mark > batch.last_offset for epoch, mark in committed.items() if epoch == batch.leader_epoch):
                raise InvariantError(
                    f"6: {self.topic}-{index} on node {node_id}: {batch.base_offset} of epoch {batch.leader_epoch} was "
                    f"committed and is cut: {copy.end=}"
                )

    def _look_at_offsets(self, node_id: int, index: int, partition: Partition, copy: Copy) -> None:
        log = partition.log
        if not log.log_start_offset <= log.last_stable_offset <= log.high_watermark <= log.log_end_offset:
            raise InvariantError(f"5: {partition.name} on node {node_id}: {log.log_start_offset} {log.high_watermark}")
        log.check_parts()
        leadership = partition.leader_epoch, partition.leads
        if leadership == copy.leadership and partition.leads and log.high_watermark < copy.high_watermark:
            raise InvariantError(
                f"5: {partition.name} on node {node_id}: the high watermark went back from {copy.high_watermark} to "
                f"{log.high_watermark}"
            )
        copy.high_watermark = log.high_watermark
        knows_leader = index in self._committed  # a new checker may see a follower before the leader
        epoch = max(partition.leader_epoch, self._epochs_before.get(index, -1))
        lacks_head = self._has_noticed(node_id, partition)  # its high watermark is not below its start
        is_checked = not partition.leads and knows_leader and not lacks_head
        if is_checked and log.high_watermark > self._committed_end(index, epoch):
            raise InvariantError(
                f"5: {partition.name} on node {node_id}: the high watermark {log.high_watermark} of a follower in "
                f"epoch {partition.leader_epoch} is no leader's: {self._committed.get(index)}"
            )

    def _look_at_ends(self, node_id: int, index: int, partition: Partition, copy: Copy) -> None:
        log = partition.log
        ending: set[int] = set()
        """Producers whose last marker, seen from the log's end, was not committed."""
        for batch in reversed(copy.batches if copy.partition is partition else ()):
            is_below = batch.base_offset < log.high_watermark
            if is_below and not ending:
                return
            is_emptied = batch.commits is None and not batch.notes  # by compaction, which leaves what may not be stable
            if batch.commits is None and not is_emptied:
                if batch.transactional and batch.producer_id in ending and batch.base_offset < log.last_stable_offset:
                    raise InvariantError(
                        f"13: {partition.name} on node {node_id}: {batch.base_offset} is stable, and the end of its "
                        "transaction is not committed"
                    )
            elif is_emptied or is_below or self._was_committed(index, batch):
                ending.discard(batch.producer_id)
            else:
                ending.add(batch.producer_id)

    def _was_committed(self, index: int, batch: ReadBatch) -> bool:
        """Whether a leader may have had this batch below its high watermark."""
        for epoch, mark in self._committed.get(index, {}).items():
            if epoch >= batch.leader_epoch and mark > batch.base_offset:
                leader = self.copies.get((self._leaders[index, epoch], index))
                found = leader.at(batch.base_offset) if leader is not None else None
                if found is None or found.leader_epoch == batch.leader_epoch:
                    return True
        return False

    def _look_at_leader(self, node_id: int, index: int, partition: Partition, copy: Copy, image: MetadataImage) -> None:
        epoch = partition.leader_epoch
        leader = self._leaders.setdefault((index, epoch), node_id)
        if leader != node_id:
            raise InvariantError(f"1: nodes {leader} and {node_id} lead {partition.name} in epoch {epoch}")
        if copy.leadership != (epoch, True):
            self._look_at_new_leader(node_id, index, partition, copy)
        copy.leadership = epoch, True
        mark = partition.log.high_watermark
        marks = self._committed.setdefault(index, {})
        if mark > marks.get(epoch, -1):
            marks[epoch] = mark
            placed = image.partition(self.topic, index)
            if placed is not None and placed.leader_epoch == epoch:
                self._look_at_members(index, placed, mark)

    def _look_at_members(self, index: int, placed: PartitionRecord, mark: int) -> None:
        """Check that the in-sync and eligible replicas have everything below this mark, and the same."""
        leader = self.copies.get((placed.leader, index))
        for member in (*placed.isr, *placed.elr):
            copy = self.copies.get((member, index))
            if (member, index) in self._isr_forgiven or copy is None:
                continue
            if copy.partition is None and member in self.liars:
                continue  # the damage is not noticed yet
            if copy.end < mark:
                raise InvariantError(
                    f"4: {self.topic}-{index}: the high watermark was {mark}, node {member} in sync ends at {copy.end}"
                )
            if leader is None or leader.end < mark or mark <= max(copy.start, leader.start):
                continue
            if self._differ(copy.at(mark - 1), leader.at(mark - 1)):
                raise InvariantError(
                    f"4: {self.topic}-{index}: node {member} in sync differs from the leader below {mark}"
                )

    def _differ(self, one: ReadBatch | None, other: ReadBatch | None) -> bool:
        """Whether these batches of two replicas differ."""
        return one != other

    def _is_there(self, index: int, copy: Copy, offset: int, value: bytes) -> bool:
        """Whether a replica has this committed record, or need not have it."""
        return copy.value_at(offset) == value

    def _look_at_new_leader(self, node_id: int, index: int, partition: Partition, copy: Copy) -> None:
        if copy.partition is None and node_id in self.liars:
            return  # the damage is not noticed yet
        start = partition.log.log_start_offset
        for told, what in ((self.acks, "acknowledged"), (self.reads, "given to a consumer")):
            for offset, (value, epoch) in told.get(index, {}).items():
                if offset < start or epoch >= partition.leader_epoch:
                    continue
                if not self._is_there(index, copy, offset, value):
                    raise InvariantError(
                        f"3: node {node_id} leads {partition.name} in epoch {partition.leader_epoch} without "
                        f"{value!r} at {offset}, which was {what} in epoch {epoch}"
                    )

    # ---- metadata, and the end -------------------------------------------------------------------------------------

    def look_at_metadata(self, image: MetadataImage) -> None:
        """Check the metadata after a commit of the controller. Raises InvariantError."""
        topic = image.topics.get(self.topic)
        if topic is not None and topic.id != self._topic_id:
            liars = self.liars
            type(self).__init__(self, self.topic, topic.id)
            self.liars = liars
        for index, placed in enumerate(() if topic is None else topic.partitions):
            if not set(placed.isr) <= set(placed.replicas) or set(placed.isr) & set(placed.elr):
                raise InvariantError(f"7: {self.topic}-{index}: {placed}")
            if placed.leader != -1 and placed.leader not in placed.isr:
                raise InvariantError(f"7: {self.topic}-{index}: the leader is not in sync: {placed}")
            members = (*placed.isr, *placed.elr)
            self._isr_forgiven = {each for each in self._isr_forgiven if each[1] != index or each[0] in members}
            if members != self._in_sync.get(index):
                self._in_sync[index] = members
                self._isr_forgiven.update((member, index) for member in members if member in self._down)
                self._look_at_members(index, placed, self._committed_end(index))

    def look_at_rest(self, nodes: list[Node]) -> None:
        """Check at rest that the replicas are equal, byte for byte, from the latest of their start offsets on, and that
        all promises are kept. The logs of spoiled disks are read again. They may lack records that no other replica has
        either: those that a leader had lost to which no other replica was in sync or eligible."""
        self._read_liars_again(nodes)
        for index in {*self.acks, *(index for _, index in self.copies)}:
            copies = [self.copies[node.node_id, index] for node in nodes if (node.node_id, index) in self.copies]
            if not copies:
                raise InvariantError(f"3: no node has a replica of {self.topic}-{index}")
            if any(copy.partition is None for copy in copies):
                raise InvariantError(f"2: a replica of {self.topic}-{index} can't be read at rest")
            start = max(copy.start for copy in copies)
            alike = [[batch for batch in copy.batches if batch.base_offset >= start] for copy in copies]
            if any(batches != alike[0] for batches in alike):
                raise InvariantError(f"2: the replicas of {self.topic}-{index} differ at rest")
            for told in (self.acks, self.reads):
                for offset, (value, _) in told.get(index, {}).items():
                    if offset >= start and copies[0].value_at(offset) != value:
                        raise InvariantError(f"3: {self.topic}-{index} has lost {value!r} at {offset}")

    def _read_liars_again(self, nodes: list[Node]) -> None:
        """Read the logs of spoiled disks as they are at rest, with their gaps."""
        for node in nodes:
            if node.node_id in self.liars:
                for index in self._places.get(node.node_id, NONE):
                    copy, partition = self.copies[node.node_id, index], node.replicas.get(self.topic, index)
                    if partition is not None:
                        copy.cuts = -1
                        self._read(node.node_id, index, partition, copy, may_have_gaps=True)


def _seen(partition: Partition) -> tuple[object, ...]:
    """HOT."""
    log, offsets = partition.log, partition.log.offsets
    return (
        offsets.log_start_offset,
        offsets.first_unstable,
        offsets.high_watermark,
        offsets.log_end_offset,
        log.segments.compaction_epoch,
        log.unopened,
        partition.leader_epoch,
        partition.leads,
    )
