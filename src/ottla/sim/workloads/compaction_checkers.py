"""Compacts the log of a compacted topic with transactions completely, and checks the result.

When all clients are at rest, a log is compacted as if for the first time, repeatedly. The time between the compactions
is long enough for every removable record to be removed. Checks:

- A reader of committed records finds the newest record of each key as before, and no record that was not there.
- The data of aborted transactions is gone, and so is each marker whose batches are gone.
- The batches have the log's state of every producer, so a power cut does not lose it.
"""

from collections.abc import Callable

from ottla.broker.partitions.partition import Partition
from ottla.log.compaction import cleanable
from ottla.log.compaction.compaction import Compaction
from ottla.machine import Millis
from ottla.sim.clients.batches import Note, ReadBatch
from ottla.sim.kernel.trace import InvariantError

ROUNDS_AT_REST = 3
"""Compactions that leave all segment sizes unchanged before the log counts as fully compacted. One finds that a marker
has no data, and the next removes it. In earlier ones, the number of segments falls, and the last batch of each has to
stay."""


PAUSE_MS: Millis = 86_400_000
"""Time between two compactions; longer than markers are kept, even if the wall clock was set back by hours."""


def audit_compaction(
    partition: Partition,
    now: Millis,
    read_committed: Callable[[Partition], dict[int, Note]],
    batches_of: Callable[[Partition], list[ReadBatch]],
) -> None:
    """Compact the log completely and check the result. `now`: the node's time, from which the log's time continues."""
    before = read_committed(partition)
    log = partition.log
    log.roll(now)
    sizes: list[list[tuple[int, int]]] = []
    while len(sizes) < ROUNDS_AT_REST or sizes[-1] != sizes[-ROUNDS_AT_REST]:
        cleanable.write_checkpoint(log, log.log_start_offset)
        for wanted in Compaction(log, now):
            if wanted is not None:
                wanted.sync()
        sizes.append([(segment.base_offset, segment.size) for segment in log.segments])
        now += PAUSE_MS
        after = read_committed(partition)
        if not after.items() <= before.items() or _newest(after) != _newest(before):
            raise InvariantError(f"{partition.name}: compaction has left {after} of {before}")
    batches = batches_of(partition)
    _look_at_markers(partition, batches)
    _look_at_producers(partition, batches)


def _newest(notes: dict[int, Note]) -> dict[bytes | None, Note]:
    """The last record of each key."""
    return {note.key: note for _, note in sorted(notes.items())}


def _look_at_markers(partition: Partition, batches: list[ReadBatch]) -> None:
    """Check the markers. An empty batch that is kept for its producer's state counts as data."""
    has_records: dict[int, bool] = {}
    for batch in batches:
        producer_id = batch.producer_id
        if batch.commits is None:
            if batch.transactional and batch.base_sequence >= 0:
                has_records[producer_id] = has_records.get(producer_id, False) or bool(batch.notes)
            continue
        of_data = has_records.pop(producer_id, None)
        if of_data is None:
            raise InvariantError(f"{partition.name}: the marker at {batch.base_offset} stays without its data")
        if of_data and not batch.commits:
            raise InvariantError(f"{partition.name}: what the marker at {batch.base_offset} aborts takes room for ever")
    left = [producer_id for producer_id, of_data in has_records.items() if of_data]
    if left:
        raise InvariantError(f"{partition.name}: the data of producers {left} has lost its marker")


def _look_at_producers(partition: Partition, batches: list[ReadBatch]) -> None:
    data = {batch.producer_id: batch.last_offset for batch in batches if batch.base_sequence >= 0}
    epochs = {batch.producer_id: batch.producer_epoch for batch in batches}
    for entry in partition.log.producers.entries.values():
        told = data.get(entry.producer_id, -1)
        if entry.last_data_offset >= 0 and told != entry.last_data_offset:
            raise InvariantError(
                f"{partition.name}: the last batch of producer {entry.producer_id} ended at {entry.last_data_offset}, "
                f"the newest that is left at {told}"
            )
        if epochs.get(entry.producer_id) != entry.epoch:
            raise InvariantError(
                f"{partition.name}: nothing is left of epoch {entry.epoch} of producer {entry.producer_id}"
            )
