"""Verifies that batches are in their place: their offsets rise, and their leader epochs are those of the log.

No checksum covers a batch's base offset and leader epoch. A flipped bit there moves records to other offsets, and a
reader that goes by offsets silently skips those in between. The neighbours of the batch contradict it. After a batch
that claims too high offsets, the next one begins too low. A batch that claims too low offsets begins too low itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.log.epochs import UNDEFINED_EPOCH, EpochCache
from ottla.log.gaps import Gaps
from ottla.log.segment import Segment, walk_headers
from ottla.protocol.records.batch import LOG_OVERHEAD_BYTES

WALK_BYTES: Final = 16 << 10


class Fault(NamedTuple):
    """The first batch that is out of place: its position, the offset that belongs there, what is wrong with it."""

    position: int
    offset: int
    why: str


class Verified(NamedTuple):
    """The progress of a walk: the position, the next offset, and the fault that ended it early."""

    position: int
    next_offset: int
    fault: Fault | None = None


def verify_order(
    segment: Segment,
    position: int,
    stop: int,
    offset: int,
    below: int,
    batches_max: int,
    epochs: EpochCache | None,
    gaps: Gaps,
) -> Verified:
    """Walk from the batch at `position` to `stop`, and one batch beyond. The first batch contains `offset`, or begins
    after it.

    All offsets must be below `below`. At most `batches_max` batches. `epochs`: the required leader epochs. `gaps`: the
    permitted ones.
    """
    end, expected = position, offset
    leap: tuple[int, int] | None = None  # the batch before, unless the one before it vouches for it: where, and offset
    first, turn = True, 0
    epoch, until = -1, -1
    for at, header in walk_headers(segment.file, position, segment.size, WALK_BYTES):
        base, last = header[0], header[0] + header[6]
        if first and base < offset <= last:
            expected = base
        if base < expected or header[6] < 0 or last >= below:
            if leap is not None and base < expected:
                return Verified(leap[0], leap[1], Fault(*leap, f"it claims the offsets up to {expected - 1}"))
            return Verified(at, expected, Fault(at, expected, f"it claims the offsets {base} to {last}"))
        if base > expected and gaps.is_damage(base):
            return Verified(at, expected, Fault(at, expected, f"the batches before offset {base} are missing"))
        if at >= stop or turn == batches_max:
            break
        if epochs is not None and header[2] != UNDEFINED_EPOCH:
            if base >= until:
                epoch, until = epochs.span_at(base)
            if header[2] != epoch >= 0:
                return Verified(at, expected, Fault(at, expected, f"it claims leader epoch {header[2]}, not {epoch}"))
        leap = (at, expected) if first or base > expected else None  # only the next batch can confirm it
        end, expected, first = at + header[1] + LOG_OVERHEAD_BYTES, last + 1, False
        turn += 1
    if end < stop and turn < batches_max:
        return Verified(end, expected, Fault(end, expected, "no batch begins there"))
    return Verified(end, expected)
