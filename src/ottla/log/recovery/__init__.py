"""Recovery of logs: it opens what a stop, a kill or a power cut left behind, and keeps every complete batch.

The caller passes one of three cases:
- After a clean stop, the files are complete. Only the batches behind the last index entry are walked, to find the end.
- After a kill of the process (`same_boot`), the page cache survived, so everything that was written is still there. The
  active segment is sound up to its last persisted index entry. Batches behind it are checked.
- After a crash of the machine, every batch at or above the recovery point is checked against its CRC. The indexes of
  those segments are rebuilt, because they are not synced with every flush. Snapshots above it are not trusted.

The log is cut at the first batch that is torn or corrupt, or whose offsets are out of order (no checksum covers them).
Segments behind the cut are removed. Whatever bits are flipped, opening a log raises only OSError.

With `write_again`, or if the log was closed because of a failed fsync, a kill is no reason to trust the page cache. It
may show batches that the kernel gave up writing, and an fsync now would not report them. Everything above the recovery
point is checked and written again.

If a recovery was interrupted (`interrupted`), by a kill or by a disk error, the next one does all of that. Whatever
boot it is by then, the log is checked as after a power cut. After a failed fsync, what is read or was repaired may be
in the page cache only.

Leftovers: `.cleaned` and `.tmp` are unfinished and are removed; `.deleted` are finished and are removed. A `.log.swap`
is a compaction that had decided (compaction/), and is completed. Missing or unsound indexes are rebuilt from their
segment. Producer state is read from the newest sound snapshot and the batches after it. Epochs are read from the
batches if their checkpoint is lost or, after a power cut, contradicts the batches.

    loading.py    the steps in their order, for each of the three cases
    leftovers.py  what an unfinished compaction or deletion left
    segments.py   where sound batches end; indexes that are rebuilt; what is written again
    epochs.py     leader epochs, from their checkpoint and the batches
    state.py      producers
    missing.py    what the log lacks, compared with everything that is known of it
    found.py      collects what is missing or damaged, for the cluster

Source: Kafka's LogLoader.java, LogSegment.recover, ProducerStateManager.truncateAndReload.
"""
