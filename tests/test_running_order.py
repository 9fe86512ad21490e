"""The order of a run: both kinds of tests at the same time, the longest first, and groups whole."""

from tests.harness.running_order import places

RECORDED = {"tests/server/a.py": 100.0, "tests/server/b.py": 50.0, "tests/log/c.py": 40.0, "tests/log/d.py": 20.0}


def order(*tests: tuple[str, str | None]) -> list[tuple[str, str | None]]:
    found = places(tests, RECORDED)
    return [tests[index] for index in sorted(range(len(tests)), key=found.__getitem__)]


def test_what_waits_and_what_computes_alternate_and_the_longest_are_first() -> None:
    server = [("tests/server/b.py", "b"), ("tests/server/a.py", "a")]
    log = [("tests/log/d.py", None), ("tests/log/d.py", None), ("tests/log/c.py", None)]
    assert [file[-4:-3] for file, _ in order(*server, *log)] == ["a", "c", "b", "d", "d"]


def test_sessions_of_spark_are_first_in_the_order_of_their_files() -> None:
    spark: list[tuple[str, str | None]] = [("tests/spark/z.py", "spark"), ("tests/spark/a.py", "spark")]
    pages: list[tuple[str, str | None]] = [("tests/spark/p.py", "spark-slow")]
    others: list[tuple[str, str | None]] = [("tests/server/a.py", "a"), ("tests/cli/z.py", "zookeeper")]
    assert order(*others, *pages, *spark) == [*spark, *pages, others[1], others[0]]


def test_a_group_stays_together() -> None:
    tests: list[tuple[str, str | None]] = [("tests/log/d.py", f"d-{index % 2}") for index in range(6)]
    groups = [group for _, group in order(*tests)]
    assert groups == ["d-0"] * 3 + ["d-1"] * 3
