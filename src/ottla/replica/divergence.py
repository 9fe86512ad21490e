"""Finds where a follower's log is cut when it and the leader's part ways.

Knows epochs and where they end, as both logs tell. Never the high watermark: what a restarted follower has above it may
be committed (KIP-101).

Sources: KIP-101, KIP-279, KIP-320, KIP-595; Kafka's AbstractFetcherThread.getOffsetTruncationState; KAFKA-6361.
"""

from __future__ import annotations

from typing import NamedTuple


class EpochEnd(NamedTuple):
    """An epoch and the offset where it ends; (-1, -1) where nothing is known."""

    epoch: int
    end_offset: int


def truncation_offset(leader: EpochEnd, own: EpochEnd, log_end_offset: int) -> int:
    """Where to cut. `leader`: the largest epoch the leader knows that is not above the follower's newest; `own`: what
    the follower's log answers for the leader's epoch."""
    if own.epoch < 0:
        return min(leader.end_offset, log_end_offset)
    if own.epoch == leader.epoch:
        return min(own.end_offset, leader.end_offset, log_end_offset)
    return min(own.end_offset, log_end_offset)  # and the next fetch asks about an older epoch
