"""Remembers which leader epoch began at which offset of one partition.

Invariant: both columns rise strictly. A single node too raises the epoch at every start, so that a client can tell a
lost tail from a quiet one (KIP-320). Source: KIP-101, KIP-279, Kafka's LeaderEpochFileCache.java; the rules are written
out at `end_offset_for` and `assign`.

On disk: `leader-epoch-checkpoint`, one `epoch start_offset` a line. It is written (not synced) with the first append of
an epoch, and synced before the log's recovery point may pass that append: what a crash can lose of it, recovery finds
again in the batches' headers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final

from ottla.log.checkpoints import CheckpointUnreadableError, decode_checkpoint, encode_checkpoint

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class EpochCache:
    """Epochs with their start offsets. `dirty`: the checkpoint file is outdated."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.dirty = False

    @property
    def latest_epoch(self) -> int:
        """The newest epoch, -1 without any."""
        return self._epochs[-1] if self._epochs else UNDEFINED_EPOCH

    @property
    def latest_start(self) -> int:
        """The start offset of the newest epoch, -1 without any."""
        return self._starts[-1] if self._starts else UNDEFINED_OFFSET

    @property
    def earliest(self) -> tuple[int, int] | None:
        """(epoch, start_offset) of the oldest entry."""
        return (self._epochs[0], self._starts[0]) if self._epochs else None

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Note that `epoch` begins at `start_offset`; True when that is new. Epochs and offsets are not negative.

        An epoch that is already the newest and began earlier stays as it is. Anything else first drops the entries
        with an epoch >= this one or a start >= this one: they are histories that lost.
        """
        assert epoch >= 0
        assert start_offset >= 0
        if self._epochs and self._epochs[-1] == epoch and start_offset >= self._starts[-1]:
            return False
        keep = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        del self._epochs[keep:]
        del self._starts[keep:]
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self.dirty = True
        return True

    def correct(self, epoch: int, base_offset: int, last_offset: int) -> None:
        """Correct the cache at a batch in the log, whose epoch is authoritative (-1: it has none). Other entries there
        are of a lost history."""
        stands = self.epoch_at(last_offset)
        if epoch < 0 or stands == epoch:
            return
        if stands > epoch:
            self.truncate_from_end(self._starts[self._epochs.index(stands)])
        if epoch > self.epoch_at(base_offset):
            self.assign(epoch, base_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest known epoch <= `epoch`, its end offset): the answer to OffsetForLeaderEpoch.

        Undefined, or above the newest: (-1, -1). The newest: its end is the log's end. Below the oldest: (`epoch`,
        start of the oldest). Between: the largest known epoch not above it, and the start of the next one.
        """
        if epoch == UNDEFINED_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        higher = bisect_right(self._epochs, epoch)
        if higher == 0:
            return epoch, self._starts[0]
        return self._epochs[higher - 1], self._starts[higher]

    def epoch_at(self, offset: int) -> int:
        """The epoch in which `offset` was (or will be) written, -1 below the oldest."""
        at = bisect_right(self._starts, offset)
        return self._epochs[at - 1] if at else UNDEFINED_EPOCH

    def span_at(self, offset: int) -> tuple[int, int]:
        """(`epoch_at` this offset, the start offset of the next epoch); 2**63 if there is none."""
        at = bisect_right(self._starts, offset)
        until = self._starts[at] if at < len(self._starts) else 1 << 63
        return self._epochs[at - 1] if at else UNDEFINED_EPOCH, until

    def truncate_from_end(self, offset: int) -> None:
        """Drop entries that start at or after `offset`."""
        keep = bisect_left(self._starts, offset)
        if keep < len(self._starts):
            del self._epochs[keep:]
            del self._starts[keep:]
            self.dirty = True

    def truncate_from_start(self, offset: int) -> None:
        """Cut the cache at the log's new start: the epoch in force at `offset` starts there, and earlier ones are
        removed."""
        at = bisect_right(self._starts, offset)
        if at and (at > 1 or self._starts[0] != offset):
            del self._epochs[: at - 1]
            del self._starts[: at - 1]
            self._starts[0] = offset
            self.dirty = True

    def clear(self) -> None:
        if self._epochs:
            self.dirty = True
        self._epochs.clear()
        self._starts.clear()

    def written(self) -> None:
        """The checkpoint file has these entries."""
        self.dirty = False

    def encode(self) -> bytes:
        """The checkpoint file's bytes."""
        return encode_checkpoint(f"{epoch} {start}" for epoch, start in self.entries)

    @classmethod
    def decode(cls, text: bytes, path: str) -> EpochCache:
        """Read a checkpoint file. Raises CheckpointUnreadableError."""
        cache = cls()
        for line in decode_checkpoint(text, path):
            try:
                epoch, start = map(int, line.split())
            except ValueError as error:
                raise CheckpointUnreadableError(f"{path} has a line that is no epoch: {line!r}") from error
            if cache._epochs and (epoch <= cache._epochs[-1] or start <= cache._starts[-1]):
                raise CheckpointUnreadableError(f"{path} has epochs out of order at {line!r}")
            cache._epochs.append(epoch)
            cache._starts.append(start)
        return cache

    def check(self) -> None:
        assert len(self._epochs) == len(self._starts)
        for column in (self._epochs, self._starts):
            assert all(a < b for a, b in pairwise(column)), self.entries
