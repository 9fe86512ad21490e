"""Runs of offsets against Python's sets."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

from ottla.spark.archive.ranges import Covered, Runs, joined, next_offsets, once_and_twice, run, runs_of, union
from ottla.spark.archive.verification import Comparison, Seen, below

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


def compared(
    ranges: list[Covered], archived: list[tuple[int, int]], logged: list[tuple[int, int]], window: tuple[int, int]
) -> Comparison:
    runs = union(archived)
    seen = Seen(runs, run(0, 0), runs.total)
    return Comparison(("t", 0), ranges, seen, Seen(union(logged)), run(*window))


def test_holes_of_the_log_are_no_losses() -> None:
    """Offsets 4, 9 and 14 are control records; the log begins at 10 now."""
    ranges = [Covered("t", 0, 0, 10, 8), Covered("t", 0, 10, 20, 9)]
    there = [(0, 4), (5, 9), (10, 14), (15, 20)]
    one = compared(ranges, there, [(10, 14), (15, 20)], (10, 20))
    figures = one.checked((10, 20))
    assert (one.problems, figures.rows, figures.holes, figures.missing, figures.gone) == ([], 17, 3, 0, 0)


def test_losses_are_no_holes_also_where_the_log_is_gone() -> None:
    ranges = [Covered("t", 0, 0, 10, 9), Covered("t", 0, 10, 20, 10)]
    one = compared(ranges, [(0, 4), (5, 9), (10, 20)], [(10, 20)], (10, 20))
    figures = one.checked((10, 20))
    assert (figures.missing, figures.holes) == (1, 1)
    assert one.problems == ["t-0: 9 records were archived of the offsets 0 to 9, but the table and the log have 8."]
    alone = compared(ranges, [(0, 4), (5, 9), (10, 20)], [], (0, 0))
    assert (alone.checked(None).missing, len(alone.problems)) == (1, 1)


def test_what_the_log_has_and_the_table_has_not_is_named_once() -> None:
    one = compared([Covered("t", 0, 0, 10, 10)], [(0, 3), (5, 10)], [(0, 10)], (0, 10))
    figures = one.checked((0, 10))
    assert (figures.missing, figures.holes) == (2, 0)
    assert one.problems == ["t-0: 2 offsets are in the log, but not in the table: 3-4."]


def test_what_compaction_took_from_the_log_since_is_no_fault() -> None:
    one = compared([Covered("t", 0, 0, 10, 10)], [(0, 10)], [(0, 2), (9, 10)], (0, 10))
    figures = one.checked((0, 10))
    assert (one.problems, figures.gone) == ([], 7)


def test_commits_that_overlap_or_leave_a_gap_are_told() -> None:
    ranges = [Covered("t", 0, 0, 10, 10), Covered("t", 0, 8, 12, 4), Covered("t", 0, 15, 20, 5)]
    one = compared(ranges, [(0, 12), (15, 20)], [(0, 20)], (0, 20))
    one.checked((0, 18))
    assert one.problems == [
        "t-0: 2 offsets are covered by two commits: 8-9.",
        "t-0: 3 offsets are between two commits and covered by none: 12-14.",
        "t-0: the log ends at 18, before the archive's end 20: the topic was created again or truncated.",
    ]
