"""Opening a log: what a stop, a kill or a power cut left behind becomes a log again, keeping every complete batch.

Three cases, told by the caller:
- clean stop: files are as they say; only the last few batches behind the last index entry are walked, to find the end.
- the process was killed (`same_boot`): the page cache survived, so all that was written is there, and what is on disk
  is sound up to the last persisted index entry of the active segment. Batches behind it are checked.
- the machine went down: every batch at or above the recovery point is checked against its CRC, and the indexes of
  those segments are rebuilt, for they are not synced with every flush. Snapshots above it are not trusted.
The log is cut at the first batch that is torn or corrupt or whose offsets are out of place (no checksum covers them),
and segments behind that go. Whatever a flipped bit says, opening a log raises nothing but OSError.

With `write_again`, or when the log was shut because of an fsync that failed, a kill is no reason to trust the page
cache: it may show batches that the kernel gave up writing, and an fsync now would say nothing of them. What is above
the recovery point is checked and written again.

A recovery that ended in the middle (`interrupted`), killed or by an error of the disk, leaves all of that to the next
one: whatever boot it is by then, the log is checked as after a power cut, and what is read or was repaired may be in
the page cache only, after an fsync that failed.

Leftovers: `.cleaned`, `.tmp` are unfinished and go; `.deleted` are finished and go; a `.log.swap` is a compaction that
had decided (compaction/) and is completed. Indexes that are missing or not sound are rebuilt from their segment;
producer state from the newest sound snapshot and the batches after it; epochs from the batches where their checkpoint
is lost or, after a power cut, says otherwise.

    loading.py    the steps in their order, for each of the three cases
    leftovers.py  what an unfinished compaction or deletion left
    segments.py   where sound batches end; indexes that are made anew; what is written again
    state.py      epochs and producers

Source: Kafka's LogLoader.java, LogSegment.recover, ProducerStateManager.truncateAndReload.
"""
