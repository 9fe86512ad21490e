"""The budgets of CPU: what is over one, the table, and that processes below a test count."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness import cpu_budget
from tests.harness.cpu_budget import FACTOR, RECORDED_FROM, SLACK, TABLE, Meter, over_budget, read_table, write_table
from tests.harness.sources import FORM

BURNS = "import time\nwhile time.process_time() < 0.3: pass\n"


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


@pytest.mark.parametrize("waits", [True, False], ids=["waited-for", "running"])
def test_processes_below_count_for_the_file(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_budget, "loop_s", lambda: 0.1)
    children_of = cpu_budget._children
    earlier = set(children_of(os.getpid()))  # of other tests: what is below them is lost when they end
    monkeypatch.setattr(cpu_budget, "_children", lambda pid: [each for each in children_of(pid) if each not in earlier])
    meter = Meter()
    meter.enter("tests/a.py")
    command = [sys.executable, "-c", BURNS + ("" if waits else "print(flush=True)\ninput()")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"" if waits else process.stdout.readline() == b"\n"
        if waits:
            process.wait()
        meter.enter("tests/b.py")
    meter.enter(None)
    assert meter.figures()["tests/a.py"] > 2.5
    assert meter.figures()["tests/b.py"] < meter.figures()["tests/a.py"]


def test_what_counts_for_no_file_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_budget, "loop_s", lambda: 0.1)
    meter = Meter()
    meter.enter("tests/a.py")
    began = time.process_time()
    while time.process_time() - began < 0.2:
        pass
    meter.count(for_file=False)
    meter.enter(None)
    assert meter.figures()["tests/a.py"] < 1.5


@FORM
def test_the_table_names_files_that_exist() -> None:
    gone = [file for file in read_table(TABLE.read_text()) if not Path(TABLE.parent.parent, file).exists()]
    assert not gone, "run `make cpu-budgets`"
