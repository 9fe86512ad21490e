"""Finds where to truncate a follower's log that has diverged from the leader's.

It compares epochs and their end offsets in both logs. It never uses the high watermark: records above a restarted
follower's high watermark may be committed (KIP-101).

Sources: KIP-101, KIP-279, KIP-320, KIP-595; Kafka's AbstractFetcherThread.getOffsetTruncationState; KAFKA-6361.
"""

from __future__ import annotations

from typing import NamedTuple


class EpochEnd(NamedTuple):
    """An epoch and the offset where it ends; (-1, -1) if unknown."""

    epoch: int
    end_offset: int


def truncation_offset(leader: EpochEnd, own: EpochEnd, log_end_offset: int) -> int:
    """The offset to truncate to. `leader`: the largest epoch of the leader that is not above the follower's newest.
    `own`: the follower's log's answer for the leader's epoch."""
    if own.epoch < 0:
        return min(leader.end_offset, log_end_offset)
    if own.epoch == leader.epoch:
        return min(own.end_offset, leader.end_offset, log_end_offset)
    return min(own.end_offset, log_end_offset)  # the next fetch asks about an older epoch
