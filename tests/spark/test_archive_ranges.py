"""Runs of offsets against Python's sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from ottla.spark.archive.proof import below
from ottla.spark.archive.ranges import Covered, Runs, joined, next_offsets, once_and_twice, run, runs_of, union

pieces = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda each: (each[0], sum(each))), max_size=12)


def offsets_in(runs: Runs) -> set[int]:
    return {offset for first, until in runs.pairs() for offset in range(first, until)}


def is_tidy(runs: Runs) -> bool:
    pairs = runs.pairs()
    return all(a < b for a, b in pairs) and all(a[1] < b[0] for a, b in pairwise(pairs))


@given(pieces, pieces)
def test_runs_are_sets(some: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    mine, theirs = union(some), union(more)
    a, b = ({x for first, until in each for x in range(first, until)} for each in (some, more))
    for runs, expected in ((mine, a), (mine | theirs, a | b), (mine & theirs, a & b), (mine - theirs, a - b)):
        assert offsets_in(runs) == expected
        assert runs.total == len(expected)
        assert bool(runs) == bool(expected)
        assert is_tidy(runs)


@given(st.lists(st.integers(0, 40), max_size=40))
def test_offsets_in_any_order_become_runs(found: list[int]) -> None:
    first, until = runs_of(np.array(found, np.int64))
    once, twice = once_and_twice(first, until)
    assert int((until - first).sum()) == len(found)
    assert offsets_in(once) == set(found)
    assert offsets_in(twice) == {each for each in found if found.count(each) > 1}


@given(pieces, st.lists(st.integers(-5, 80), min_size=1, max_size=10))
def test_below_counts_what_is_less(some: list[tuple[int, int]], at: list[int]) -> None:
    there = offsets_in(union(some))
    assert below(union(some), np.array(at)).tolist() == [sum(offset < each for offset in there) for each in at]


def test_neighbours_are_joined_and_gaps_stay() -> None:
    ranges = [
        Covered("a", 0, 5, 9, 3, 1),
        Covered("a", 0, 0, 5, 5),
        Covered("a", 0, 10, 12, 2),
        Covered("b", 0, 12, 13, 1),
    ]
    assert joined(ranges) == [Covered("a", 0, 0, 9, 8, 1), Covered("a", 0, 10, 12, 2), Covered("b", 0, 12, 13, 1)]
    assert next_offsets(ranges) == {("a", 0): 12, ("b", 0): 13}


def test_runs_are_shown_to_people() -> None:
    assert union([(7, 8), (10, 20), (30, 31), (40, 50), (60, 61)]).shown() == "7, 10-19, 30 and 2 more"
    assert run(3, 3).shown() == ""
