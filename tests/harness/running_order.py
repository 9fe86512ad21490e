"""The order in which the processes of a test run begin tests.

Some tests mostly wait: for sessions that expire, for other processes, for browsers. Others only compute. In a run that
begins one kind after the other, cores are idle first and too few later. So both kinds begin and end together. The
longest tests of each begin first, so that no process is left alone with one at the end.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

ALONE = ("spark", "spark-slow", "zookeeper")
"""Groups of tests of many files, which begin before all others."""
WAITING = (
    "bench",
    "cli",
    "client",
    "conform",
    "console",
    "crash",
    "demo",
    "differential",
    "docs",
    "examples",
    "kmq",
    "server",
    "ship",
    "spark",
    "testing",
)
"""Directories of tests that start processes, and wait for them."""
WAITING_UNTIL = 0.9
"""The part of the run in which tests that wait begin. The shortest tests that only compute fill the rest."""
UNRECORDED = 10.0
"""What a file uses that the table of CPU budgets does not name, in loops."""


def places(tests: Sequence[tuple[str, str | None]], recorded: dict[str, float]) -> list[float]:
    """For each test when it begins: below 0 before all others, up to 1 at the end.

    A test has a file (its path from the top) and maybe a group, whose tests run in one process one after the other.
    `recorded` has the CPU of files.
    """
    of_file = Counter(file for file, _ in tests)
    units: dict[str | int, list[int]] = defaultdict(list)
    cost: dict[str | int, float] = defaultdict(float)
    for index, (file, group) in enumerate(tests):
        unit = index if group is None else group
        units[unit].append(index)
        cost[unit] += recorded.get(file, UNRECORDED) / of_file[file]
    found = [0.0] * len(tests)
    kinds: dict[bool, list[str | int]] = {True: [], False: []}
    for unit, members in units.items():
        if unit in ALONE:
            for index in members:
                found[index] = ALONE.index(str(unit)) - len(ALONE)
        else:
            kinds[tests[members[0]][0].split("/")[1] in WAITING].append(unit)
    for waiting, of_kind in kinds.items():
        until = WAITING_UNTIL if waiting else 1.0
        total = sum(cost[unit] for unit in of_kind)
        begun = 0.0
        for unit in sorted(of_kind, key=lambda unit: -cost[unit]):
            for index in units[unit]:
                found[index] = until * begun / total
            begun += cost[unit]
    return found
