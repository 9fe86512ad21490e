"""The leader epoch cache: Kafka's rules as tables."""

from __future__ import annotations

import pytest

from ottla.log.checkpoints import CheckpointUnreadableError
from ottla.log.epochs import EpochCache


def cache(*entries: tuple[int, int]) -> EpochCache:
    made = EpochCache()
    for epoch, start in entries:
        made.assign(epoch, start)
    made.check()
    return made


THREE = ((2, 6), (3, 9), (5, 14))


@pytest.mark.parametrize(
    ("entries", "asked", "answer"),
    [
        ((), 0, (-1, -1)),
        (THREE, -1, (-1, -1)),
        (THREE, 6, (-1, -1)),  # above the newest
        (THREE, 5, (5, 20)),  # the newest ends at the log end
        (THREE, 4, (3, 14)),  # unknown, between: the largest below, up to the next one's start
        (THREE, 3, (3, 14)),
        (THREE, 2, (2, 9)),
        (THREE, 1, (1, 6)),  # below the oldest: its start
        (THREE, 0, (0, 6)),
    ],
)
def test_end_offset_for(entries: tuple[tuple[int, int], ...], asked: int, answer: tuple[int, int]) -> None:
    assert cache(*entries).end_offset_for(asked, 20) == answer


@pytest.mark.parametrize(
    ("entry", "after", "new"),
    [
        ((5, 14), THREE, False),
        ((5, 20), THREE, False),  # the epoch in force began earlier
        ((6, 20), (*THREE, (6, 20)), True),
        ((6, 14), ((2, 6), (3, 9), (6, 14)), True),  # nothing was written in 5
        ((6, 9), ((2, 6), (6, 9)), True),
        ((6, 10), ((2, 6), (3, 9), (6, 10)), True),
        ((5, 10), ((2, 6), (3, 9), (5, 10)), True),
        ((4, 12), ((2, 6), (3, 9), (4, 12)), True),  # a later history lost
        ((4, 20), ((2, 6), (3, 9), (4, 20)), True),
        ((1, 3), ((1, 3),), True),
        ((9, 0), ((9, 0),), True),
    ],
)
def test_assign(entry: tuple[int, int], after: tuple[tuple[int, int], ...], new: bool) -> None:
    made = cache(*THREE)
    made.dirty = False
    assert made.assign(*entry) is new
    assert made.entries == list(after)
    assert made.dirty is new
    made.check()


@pytest.mark.parametrize(
    ("offset", "after"),
    [(15, THREE), (14, THREE[:2]), (10, THREE[:2]), (9, THREE[:1]), (6, ()), (0, ())],
)
def test_truncate_from_end(offset: int, after: tuple[tuple[int, int], ...]) -> None:
    made = cache(*THREE)
    made.truncate_from_end(offset)
    assert made.entries == list(after)


@pytest.mark.parametrize(
    ("offset", "after"),
    [
        (0, THREE),
        (6, THREE),
        (7, ((2, 7), (3, 9), (5, 14))),
        (9, ((3, 9), (5, 14))),
        (13, ((3, 13), (5, 14))),
        (14, ((5, 14),)),
        (30, ((5, 30),)),
    ],
)
def test_truncate_from_start(offset: int, after: tuple[tuple[int, int], ...]) -> None:
    made = cache(*THREE)
    made.truncate_from_start(offset)
    assert made.entries == list(after)
    made.check()


@pytest.mark.parametrize(("offset", "epoch"), [(0, -1), (6, 2), (8, 2), (9, 3), (13, 3), (14, 5), (99, 5)])
def test_epoch_at(offset: int, epoch: int) -> None:
    assert cache(*THREE).epoch_at(offset) == epoch


def test_the_checkpoint_is_kafkas() -> None:
    text = cache(*THREE).encode()
    assert text == b"0\n3\n2 6\n3 9\n5 14\n"
    assert EpochCache.decode(text, "x").entries == list(THREE)


@pytest.mark.parametrize(
    "torn", [b"", b"0\n", b"0\n3\n2 6\n", b"1\n1\n2 6\n", b"0\n1\nx y\n", b"0\n2\n3 9\n2 6\n", b"\0" * 20, b"0\n1\n2\n"]
)
def test_torn_checkpoints_are_refused(torn: bytes) -> None:
    with pytest.raises(CheckpointUnreadableError):
        EpochCache.decode(torn, "x")


def test_a_checkpoint_torn_anywhere_is_refused() -> None:
    """The last number too: `5 1` is not `5 14`."""
    text = cache(*THREE).encode()
    for end in range(len(text)):
        with pytest.raises(CheckpointUnreadableError):
            EpochCache.decode(text[:end], "x")
