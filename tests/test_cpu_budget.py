"""The budgets of CPU: what is over one, the table, and that processes below a test count."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.cpu_budget import FACTOR, RECORDED_FROM, SLACK, TABLE, over_budget, read_table, write_table
from tests.harness.sources import FORM

TOP = TABLE.parents[1]


def test_only_growth_beyond_factor_and_slack_is_over() -> None:
    recorded = {"tests/a.py": 100.0}
    limit = FACTOR * 100 + SLACK
    assert over_budget({"tests/a.py": limit - 1}, recorded) == []
    assert over_budget({"tests/a.py": limit + 1}, recorded) == ["tests/a.py used 331 loops of CPU; its budget is 330"]


def test_a_file_without_a_figure_has_the_smallest_budget() -> None:
    limit = FACTOR * RECORDED_FROM + SLACK
    used = {"tests/new.py": limit * 2, "tests/worse.py": limit * 3, "tests/small.py": limit - 1}
    assert [line.split()[0] for line in over_budget(used, {})] == ["tests/worse.py", "tests/new.py"]


def test_a_table_is_read_as_it_was_written() -> None:
    text = write_table({"tests/b.py": 40.4, "tests/a.py": 1200.0, "tests/small.py": RECORDED_FROM - 1})
    assert read_table(text) == {"tests/a.py": 1200, "tests/b.py": 40}


METERED = """
import subprocess, sys, time
from tests.harness import cpu_budget

cpu_budget.loop_s = lambda: 0.1
burns = "import time\\nwhile time.process_time() < 0.3: pass\\n"


def below(waits):
    meter = cpu_budget.Meter()
    meter.enter("a")
    command = [sys.executable, "-c", burns + ("" if waits else "print(flush=True)\\ninput()")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.read() if waits else process.stdout.readline()
        if waits:
            process.wait()
        meter.enter("b")
    meter.enter(None)
    return meter.figures()


def dropped():
    meter = cpu_budget.Meter()
    meter.enter("a")
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    meter.count(for_file=False)
    meter.enter(None)
    return meter.figures()


print([below(True), below(False), dropped()])
"""
"""Meters where nothing else runs: threads of earlier tests work, and processes that they started end and count."""


@pytest.fixture(scope="module")
def metered() -> list[dict[str, float]]:
    ran = subprocess.run([sys.executable, "-c", METERED], cwd=TOP, capture_output=True, text=True, check=True)
    return ast.literal_eval(ran.stdout)


@pytest.mark.parametrize("waits", [True, False], ids=["waited-for", "running"])
def test_processes_below_count_for_the_file(waits: bool, metered: list[dict[str, float]]) -> None:
    figures = metered[0 if waits else 1]
    assert figures["a"] > 2.5
    assert figures["b"] < figures["a"]


def test_what_counts_for_no_file_is_dropped(metered: list[dict[str, float]]) -> None:
    assert metered[2]["a"] < 1.5


@FORM
def test_the_table_names_files_that_exist() -> None:
    gone = [file for file in read_table(TABLE.read_text()) if not Path(TABLE.parent.parent, file).exists()]
    assert not gone, "run `make cpu-budgets`"
