"""How ranges become tasks, and a limit becomes a micro-batch."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark.platform.cores import cores_of
from ottla.spark.reader.plan import Range, TaskRanges, limited, task_ranges

Places = dict[tuple[str, int], tuple[int, int]]
places = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9)),
    st.tuples(st.integers(0, 1000), st.integers(0, 5000)),
    max_size=12,
)
some = st.one_of(st.none(), st.integers(1, 30))


def ranges_of(found: Places) -> list[Range]:
    return [Range(topic, partition, first, first + size) for (topic, partition), (first, size) in found.items()]


def sizes(planned: list[TaskRanges]) -> list[int]:
    return [sum(each.size for each in share.ranges) for share in planned]


@settings(deadline=None)
@given(places, st.integers(1, 8), some, some)
def test_each_offset_is_read_once(
    found: Places, tasks: int, min_partitions: int | None, max_records: int | None
) -> None:
    ranges = ranges_of(found)
    planned = task_ranges(ranges, tasks=tasks, min_partitions=min_partitions, max_records=max_records)
    assert all(each.size > 0 for share in planned for each in share.ranges)
    pieces = sorted((each for share in planned for each in share.ranges), key=lambda r: (r.topic, r.partition, r.first))
    for whole in ranges:
        mine = [each for each in pieces if (each.topic, each.partition) == (whole.topic, whole.partition)]
        assert sum(each.size for each in mine) == whole.size
        if mine:
            assert (mine[0].first, mine[-1].until) == (whole.first, whole.until)
        assert all(a.until == b.first for a, b in itertools.pairwise(mine))
    if max_records is not None:
        assert all(size <= max_records for size in sizes(planned))
    else:
        assert len(planned) <= max(tasks, min_partitions or 1)


def test_partitions_are_put_together_evenly() -> None:
    ranges = [Range("t", i, 0, size) for i, size in enumerate([900, 100, 500, 500, 10, 390])]
    planned = task_ranges(ranges, tasks=2)
    assert sizes(planned) == [
        1290,
        1110,
    ]  # the largest first, each to the task with the least: within a third of the best
    assert all(list(share.ranges) == sorted(share.ranges, key=lambda each: each.partition) for share in planned)


def test_fewer_partitions_than_cores_are_not_split_unless_asked() -> None:
    ranges = [Range("t", 0, 0, 1000)]
    assert sizes(task_ranges(ranges, tasks=4)) == [1000]
    assert sorted(sizes(task_ranges(ranges, tasks=4, min_partitions=3))) == [333, 333, 334]


@pytest.mark.parametrize(
    ("given_sizes", "min_partitions", "expected"),
    [  # KafkaOffsetRangeCalculatorSuite's cases
        ([1], 3, [1]),
        ([5], 2, [2, 3]),
        ([5, 10], 3, [5, 5, 5]),
        ([10, 10, 10, 10], 5, [10, 10, 10, 10]),
        ([10, 10, 10, 20], 5, [10, 10, 10, 10, 10]),
        ([1, 100], 6, [1, 20, 20, 20, 20, 20]),
    ],
)
def test_splitting_as_spark_does(given_sizes: list[int], min_partitions: int, expected: list[int]) -> None:
    ranges = [Range("t", i, 0, size) for i, size in enumerate(given_sizes)]
    planned = task_ranges(ranges, tasks=100, min_partitions=min_partitions)
    pieces = [each for share in planned for each in share.ranges]
    assert [each.size for each in sorted(pieces, key=lambda each: (each.partition, each.first))] == expected


def test_nothing_to_read_is_no_task() -> None:
    assert task_ranges([Range("t", 0, 5, 5), Range("t", 1, 7, 3)], tasks=2) == []


def test_a_limit_is_shared_by_what_is_there() -> None:
    start = {("t", 0): 0, ("t", 1): 100}
    end = {("t", 0): 3000, ("t", 1): 1100, ("t", 2): 50}
    begins = {("t", 2): 49}
    assert limited(400, start, end, begins) == {("t", 0): 299, ("t", 1): 200, ("t", 2): 50}
    assert limited(10_000, start, end, begins) == end
    assert limited(1, start, end, begins) == {("t", 0): 1, ("t", 1): 101, ("t", 2): 50}


def test_a_limit_leaves_alone_what_went_back() -> None:
    assert limited(10, {("t", 0): 50, ("t", 1): 0}, {("t", 0): 20, ("t", 1): 100}, {}) == {("t", 0): 20, ("t", 1): 10}


@settings(deadline=None)
@given(places, st.integers(1, 3000))
def test_a_limit_ends_nowhere_but_in_between(found: Places, limit: int) -> None:
    start = {place: first for place, (first, _) in found.items()}
    end = {place: first + size for place, (first, size) in found.items()}
    between = limited(limit, start, end, {})
    assert all(start[place] <= between[place] <= end[place] for place in found)
    assert all(between[place] > start[place] for place in found if end[place] > start[place])
    taken, there = (sum(ends[place] - start[place] for place in found) for ends in (between, end))
    assert min(limit, there) <= taken <= limit + len(found)


@pytest.mark.parametrize(
    ("line", "cores"),
    [
        ("java -cp x org.apache.spark.deploy.SparkSubmit --conf spark.master=local[2] --conf a=b pyspark-shell", 2),
        ("java org.apache.spark.deploy.SparkSubmit --master local[3, 4] job.py", 3),
        ("java org.apache.spark.deploy.SparkSubmit --master local job.py", 1),
        ("java org.apache.spark.deploy.SparkSubmit --master spark://h:7077 job.py", None),
        ("java org.apache.spark.deploy.SparkSubmit --conf spark.master=local-cluster[2,1,1024] job.py", None),
    ],
)
def test_the_cores_of_a_master(line: str, cores: int | None) -> None:
    assert cores_of(line) == cores
