"""The CPU that each test file uses, compared with a recorded budget, so that the suite does not grow unnoticed.

Each worker counts the CPU time of its own process and of all processes below it, and divides it by the CPU time of a
small loop that it repeats during the run. The quotient depends little on the machine and on other processes.
Session fixtures count for no file: whichever file needs one first would pay for all.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.machine import loop_s

TABLE = Path(__file__).parents[1] / "cpu_budgets.txt"
FACTOR = 3.0
"""Tests with real processes use up to twice as much beside other busy processes, which slow them more than the loop."""
SLACK = 30
"""Added to each budget: what the first test of a process pays for imports, and caches that are still empty."""
HEADING = f"""\
# The CPU of each test file that uses much, in runs of the loop of bench/machine.py (about 0.1 s each).
# `make cpu-budgets` writes this file. .ci/run fails if a file uses more than {FACTOR:g} times its figure + {SLACK}.
"""
RECORDED_FROM = 20
"""A file that uses less is not in the table. Its budget is that of a file with this figure."""
LOOP_EVERY_S = 15.0
"""CPU seconds of a worker between two measurements of the loop."""
MOST = 100
"""Rows shown by `--cpu-budgets files` and `--cpu-budgets tests`."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def budget(recorded: float | None) -> float:
    """How much a file may use, given its figure in the table."""
    return FACTOR * (RECORDED_FROM if recorded is None else recorded) + SLACK


def over_budget(used: dict[str, float], recorded: dict[str, float]) -> list[str]:
    """One line for each file that uses more than its budget, worst first."""
    over = [(figure / budget(recorded.get(file)), file) for file, figure in used.items()]
    return [
        f"{file} used {used[file]:.0f} loops of CPU; its budget is {budget(recorded.get(file)):.0f}"
        for ratio, file in sorted(over, reverse=True)
        if ratio > 1
    ]


def read_table(text: str) -> dict[str, float]:
    """The figures by file."""
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {file: float(figure) for figure, file in lines}


def write_table(used: dict[str, float]) -> str:
    """The table of these figures, without the files that use little."""
    rows = [f"{figure:6.0f} {file}\n" for file, figure in sorted(used.items()) if figure >= RECORDED_FROM]
    return HEADING + "".join(rows)


def cpu_s() -> float:
    """The CPU seconds of this process, of every process below it that runs, and of those that it has waited for."""
    ended = os.times()
    total = time.process_time() + ended.children_user + ended.children_system
    below = _children(os.getpid())
    while below:
        pid = below.pop()
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            continue  # it has ended
        fields = stat.rpartition(b")")[2].split()
        total += sum(int(field) for field in fields[11:15]) * _TICK_S
        below += _children(pid)
    return total


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_bytes().split())
    except OSError:
        pass  # it has ended
    return found


class Meter:
    """Counts the CPU of the files whose tests run in this process."""

    def __init__(self) -> None:
        self.used: dict[str, float] = defaultdict(float)
        self.loops: list[float] = []
        self._file: str | None = None
        self._counted = 0.0
        self._loops_at = 0.0

    def enter(self, file: str | None) -> None:
        """From now on the CPU counts for this file."""
        if file == self._file:
            return
        self.count()
        self._file = file
        if file is not None and (not self.loops or time.process_time() - self._loops_at > LOOP_EVERY_S):
            self.loops.append(loop_s())
            self._loops_at = time.process_time()
            self._counted = cpu_s()

    def count(self, *, for_file: bool = True) -> None:
        """Book what was used since the last call, for the file or for none."""
        now = cpu_s()
        if for_file and self._file is not None:
            self.used[self._file] += max(0.0, now - self._counted)
        self._counted = now

    def figures(self) -> dict[str, float]:
        """The CPU of each file in loops."""
        if not self.loops:
            return {}
        loop = sum(self.loops) / len(self.loops)
        return {file: seconds / loop for file, seconds in self.used.items()}


class CpuBudgets:
    """The plugin: a meter in each process that runs tests, and a verdict in the one that prints."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._mode = str(config.getoption("cpu_budgets"))
        self._meter = Meter()
        self._used: dict[str, float] = defaultdict(float)
        self._over: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[object]:
        file = item.path.relative_to(self._config.rootpath).as_posix()
        self._meter.enter(item.nodeid if self._mode == "tests" else file)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
        if fixturedef.scope != "session":
            return (yield)
        self._meter.count()
        try:
            return (yield)
        finally:
            self._meter.count(for_file=False)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add(getattr(node, "workeroutput", {}).get("cpu", {}))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._meter.enter(None)
        output: dict[str, object] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["cpu"] = self._meter.figures()
            return
        self._add(self._meter.figures())
        if self._mode == "write":
            root = self._config.rootpath
            kept = {file: figure for file, figure in read_table(TABLE.read_text()).items() if (root / file).exists()}
            TABLE.write_text(write_table(kept | self._used))
        elif self._mode in ("report", "fail"):
            self._over = over_budget(self._used, read_table(TABLE.read_text()))
            if self._over and self._mode == "fail" and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._mode in ("files", "tests"):
            terminalreporter.section("CPU in loops")
            for name, figure in sorted(self._used.items(), key=lambda row: -row[1])[:MOST]:
                terminalreporter.write_line(f"{figure:8.1f} {name}")
        elif self._over:
            terminalreporter.section("over the CPU budget")
            for line in self._over:
                terminalreporter.write_line(line)
            terminalreporter.write_line("Make them cheaper, or record the growth with `make cpu-budgets`.")

    def _add(self, figures: dict[str, float]) -> None:
        for file, figure in figures.items():
            self._used[file] += figure
