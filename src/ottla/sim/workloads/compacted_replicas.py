"""Checks the replicas of a compacted topic, each of which compacts on its own, against the committed records.

The checker keeps one log of what is committed: the batches as their leaders first had them below the high watermark. A
replica may lack a record of these only in three cases:

- Its key has a later record that is committed, also by its transaction, if it has one.
- It was written in a transaction that was aborted.
- It is a tombstone, and `delete.retention.ms` is short.

The rest of a batch keeps its position, its offsets and its producer, and a marker outlives the data of its transaction.
Everything else of `replica_checkers` applies unchanged.

Source: Kafka's LogCleaner.scala; its documentation, "Log Compaction".
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ottla.broker.node import Node
from ottla.broker.partitions.partition import Partition
from ottla.metadata.image import MetadataImage
from ottla.sim.clients.batches import Note, ReadBatch
from ottla.sim.kernel.trace import InvariantError
from ottla.sim.workloads.replica_checkers import Copy, ReplicaChecker

RETENTION_LONG_MS = 86_400_000
"""Retention with which no tombstone is removed within a run, whatever clocks show."""


@dataclass(slots=True)
class Committed:
    """The committed part of one partition. `end`: its end offset."""

    end: int = 0
    batches: dict[int, ReadBatch] = field(default_factory=dict[int, ReadBatch])
    """By base offset, as they were written."""
    newest: dict[bytes | None, int] = field(default_factory=dict[bytes | None, int])
    """The last offset of each key that a reader of committed records sees."""
    aborted: set[int] = field(default_factory=set[int])
    """Offsets of records that no such reader sees."""
    ended: dict[int, list[Note]] = field(default_factory=dict[int, list[Note]])
    """By the offset of a marker: the records of its transaction."""
    _open: dict[int, list[Note]] = field(default_factory=dict[int, list[Note]])

    def add(self, batch: ReadBatch) -> None:
        """The next batch of it."""
        self.end = batch.last_offset + 1
        self.batches[batch.base_offset] = batch
        if batch.commits is not None:
            notes = self.ended[batch.base_offset] = self._open.pop(batch.producer_id, [])
            if batch.commits:
                self._show(notes)
            else:
                self.aborted.update(note.offset for note in notes)
        elif batch.transactional:
            self._open.setdefault(batch.producer_id, []).extend(batch.notes)
        else:
            self._show(batch.notes)

    def _show(self, notes: list[Note] | tuple[Note, ...]) -> None:
        for note in notes:
            self.newest[note.key] = max(note.offset, self.newest.get(note.key, -1))


class CompactedReplicaChecker(ReplicaChecker):
    """See the module's docstring."""

    def __init__(self, topic: str, topic_id: bytes | None = None) -> None:
        super().__init__(topic, topic_id)
        self.dense = False
        self.committed: dict[int, Committed] = {}
        self._tombstones_go = True

    # ---- what is committed -----------------------------------------------------------------------------------------

    def look_at_metadata(self, image: MetadataImage) -> None:
        super().look_at_metadata(image)
        topic = image.topics.get(self.topic)
        if topic is not None:
            retention_ms = int(topic.configs.get("delete.retention.ms", RETENTION_LONG_MS))
            self._tombstones_go = retention_ms < RETENTION_LONG_MS

    def _look_at_leader(self, node_id: int, index: int, partition: Partition, copy: Copy, image: MetadataImage) -> None:
        committed = self.committed.setdefault(index, Committed())
        for batch in copy.batches if partition.log.high_watermark > committed.end else ():
            if committed.end <= batch.base_offset and batch.last_offset < partition.log.high_watermark:
                committed.add(self._written[index, batch.leader_epoch, batch.base_offset])
        super()._look_at_leader(node_id, index, partition, copy, image)

    # ---- what may be missing ---------------------------------------------------------------------------------------

    def _is_left_of(self, batch: ReadBatch, written: ReadBatch) -> bool:
        """Whether `batch` is `written`, unchanged or as compaction can have left it."""
        same = replace(written, notes=batch.notes, commits=batch.commits)
        return same == batch and set(batch.notes) <= set(written.notes) and batch.commits in (written.commits, None)

    def _differ(self, one: ReadBatch | None, other: ReadBatch | None) -> bool:
        return (
            one is not None
            and other is not None
            and (one.base_offset, one.leader_epoch) != (other.base_offset, other.leader_epoch)
        )

    def _is_there(self, index: int, copy: Copy, offset: int, value: bytes) -> bool:
        if copy.value_at(offset) is not None:
            return super()._is_there(index, copy, offset, value)
        return self._may_go(index, Note(offset, 0, self._key_at(index, offset), value))

    def _key_at(self, index: int, offset: int) -> bytes | None:
        batches = self.committed.setdefault(index, Committed()).batches.values()
        return next((note.key for batch in batches for note in batch.notes if note.offset == offset), None)

    def _may_go(self, index: int, note: Note) -> bool:
        """Whether a replica may lack this committed record."""
        committed = self.committed.setdefault(index, Committed())
        if committed.newest.get(note.key, -1) > note.offset or note.offset in committed.aborted:
            return True
        return note.value is None and self._tombstones_go

    def _look_at_cut(self, node_id: int, index: int, before: list[ReadBatch], copy: Copy, *, same_life: bool) -> None:
        """Check a log after a cut. It must still have the committed records that it had, except those that compaction
        may remove."""
        if not same_life and (node_id, index) in self._cut_forgiven:
            self._cut_forgiven.discard((node_id, index))
            return
        self._look_at_kept(node_id, index, before, copy)

    def _look_at_kept(self, node_id: int, index: int, batches: Iterable[ReadBatch], copy: Copy) -> None:
        """Check that the replica has the committed ones of these batches, as far as it must. Raises InvariantError."""
        committed = self.committed.setdefault(index, Committed())
        for batch in batches:
            if batch.base_offset < copy.log_start or not self._is_of(committed, batch):
                continue
            found = copy.at(batch.base_offset)
            here = found if found is not None and found.leader_epoch == batch.leader_epoch else None
            left = set() if here is None else set(here.notes)
            for note in batch.notes:
                if note not in left and not self._may_go(index, note):
                    raise InvariantError(
                        f"6: {self.topic}-{index} on node {node_id} lacks {note}, which is committed, while the newest "
                        f"of its key is {committed.newest.get(note.key)}: {copy.end=}"
                    )
            if batch.commits is not None and (here is None or here.commits is None):
                data = [note for note in committed.ended[batch.base_offset] if self._has(copy, note)]
                if data:
                    raise InvariantError(
                        f"13: {self.topic}-{index} on node {node_id} has {data} without the marker at "
                        f"{batch.base_offset}"
                    )

    def _has(self, copy: Copy, note: Note) -> bool:
        batch = copy.at(note.offset)
        return batch is not None and note in batch.notes

    def look_at_rest(self, nodes: list[Node]) -> None:
        """Check at rest that each replica has all committed records that it must have, and no others."""
        self._read_liars_again(nodes)
        for (node_id, index), copy in self.copies.items():
            committed = self.committed.setdefault(index, Committed())
            self._look_at_kept(node_id, index, committed.batches.values(), copy)
            strange = [batch for batch in copy.batches if not self._is_of(committed, batch)]
            if strange:
                raise InvariantError(f"2: node {node_id} has {strange} in {self.topic}-{index}, which nobody committed")

    def _is_of(self, committed: Committed, batch: ReadBatch) -> bool:
        written = committed.batches.get(batch.base_offset)
        return written is not None and self._is_left_of(batch, written)
