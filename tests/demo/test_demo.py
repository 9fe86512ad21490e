"""The demo as a person runs it, and the arithmetic of its proof."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from array import array
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from ottla.demo import events
from ottla.demo.cluster import ThreeNodes
from ottla.demo.demonstration import Demonstration, per_second
from ottla.demo.run import run
from ottla.demo.tally import Tally, digest
from tests.harness.waiting import soon

ACCESS_LOG = Path(__file__).resolve().parents[3] / "shared" / "data" / "activity" / "apache_access.log"


def demo(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The demo in a process group of its own, which must be empty soon after its end: no worker outlives it."""
    command = [sys.executable, "-m", "ottla", "demo", "--seconds", "3", *arguments]
    said, complained = directory / "stdout", directory / "stderr"
    with said.open("w") as out, complained.open("w") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
    try:
        code = process.wait(600)
        soon(lambda: is_gone(process.pid), "the demo ends and leaves no processes behind")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, code, said.read_text(), complained.read_text())


def is_gone(group: int) -> bool:
    """Whether the last process of a group has ended."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow("tests/demo/test_demo.py::test_it_replays_an_access_log")
def test_it_proves_that_nothing_is_lost(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    ended = demo(tmp_path, "--report", str(report))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = re.findall(r"(acknowledged|dashboard|archive)\W+([\d,]+)\W+(\d+)\W+([0-9a-f]{16})", ended.stdout)
    assert [row[0] for row in rows] == ["acknowledged", "dashboard", "archive"]
    assert len({row[1:] for row in rows}) == 1, "counts, partitions and checksums agree"
    assert int(rows[0][1].replace(",", "")) > 0
    kills_and_jobs(ended.stdout)
    assert f"All {rows[0][1]} records are in the lake, each offset once." in ended.stdout
    assert f"Verified {rows[0][1]} rows in 9 partitions" in ended.stdout
    assert "<svg " in report.read_text()
    three_nodes(ended.stdout)


def kills_and_jobs(printed: str) -> None:
    """Of one node: a member is killed and handed over, workers are killed, every job is done or set aside."""
    assert "kill -9 bea" in printed
    assert "Handed over" in printed
    assert "Every job was done or set aside" in printed
    counts = dict(re.findall(r"│ (jobs posted|done|broken)\b(?! twice)[^│]*│\W*(\d+)", printed))
    assert counts == {"jobs posted": "400", "done": "392", "broken": "8"}
    assert len(re.findall(r"worker-\d+", printed)) == 3, "three workers were killed"


def three_nodes(printed: str) -> None:
    """The second half: a leader is killed, all that was acknowledged is read, and no money is lost."""
    assert "at -" not in printed
    assert len(re.findall(r"kill -9 node [123]", printed)) == 2
    assert len(re.findall(r"Node [123] is back, and in sync again", printed)) == 2
    assert "All 200 jobs are done" in printed
    acknowledged, read = re.findall(r"([\d,]+) records acknowledged, ([\d,]+) read, the same checksum", printed)[0]
    assert acknowledged == read != "0"
    looks = dict(re.findall(r"read_(committed|uncommitted) +│ +\d+ │ +(\d+) │", printed))
    assert looks["committed"] == "0"
    assert int(looks["uncommitted"]) > 0


class Admin:
    """A node that came back a moment ago: it does not know the topic yet, then no leader of it, then all."""

    def __init__(self) -> None:
        self.leaders = iter([None, -1, 2])

    def list_topics(self, timeout: float) -> SimpleNamespace:
        leader = next(self.leaders)
        part = SimpleNamespace(leader=leader, isrs=[1, 2, 3])
        return SimpleNamespace(topics={} if leader is None else {"t": SimpleNamespace(partitions={0: part})})


def test_nodes_are_asked_until_they_know_the_leader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = ThreeNodes(tmp_path)
    monkeypatch.setattr(nodes, "_admin", Admin())
    assert nodes.partitions(("t",))["t", 0].leader == 2
    monkeypatch.setattr(nodes, "_admin", Admin())
    assert [nodes.is_in_sync(("t",)) for _ in range(3)] == [False, False, True]


def test_it_replays_an_access_log(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_bytes(
        b'10.0.0.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5 "-" "curl"\n\xff no log line at all\n' * 3
    )
    ended = demo(tmp_path, "--no-pipelines", "--no-cluster", "--input", str(log))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"{log} has 6 lines; they are replayed once." in ended.stdout
    told, _, rest = ended.stdout.partition("kill -9 bea")
    assert "produced 0" not in ended.stdout
    assert re.search(r"produced [1-6] at", rest), "lines are left to read when a member is killed"
    assert "produced 6 at" not in told
    assert "BGQUEUE" not in ended.stderr
    assert re.search(r"acknowledged\W+6\b", ended.stdout)
    kills_and_jobs(ended.stdout)
    assert "(3 of the lines are none of an access log: they are in errors.)" in ended.stdout
    assert "./demo --console shows all of this in the browser" in ended.stdout


def test_an_input_that_is_none_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    for path in (tmp_path / "absent", tmp_path / "empty", tmp_path):
        assert run(path, 3, None) == 2
        assert capsys.readouterr().err.startswith(f"ottla: {path} cannot be read: ")


def test_a_stream_that_is_over_is_shown_no_more() -> None:
    screen = io.StringIO()
    demo = Demonstration(Console(file=screen), None, 3, None)
    produced: Any = SimpleNamespace(tally=SimpleNamespace(records=900), stop=lambda: None)
    try:
        demo.stream = produced
        assert demo.line() == "produced 900 at 0/s"
        demo.forget()
        demo.run(1.2)
        assert screen.getvalue() == ""
        demo.stream = SimpleNamespace(tally=SimpleNamespace(records=0), stop=lambda: None)  # type: ignore[assignment]
        demo.run(1.2)
        assert screen.getvalue() == "", "nothing has been produced yet"
        demo.stream = produced
        produced.tally.records = 3
        assert demo.line() == "produced 3 at 0/s"
    finally:
        demo.clear()


def test_made_up_events_are_the_same_for_the_same_seed() -> None:
    assert list(islice(events.made_up(3), 100)) == list(islice(events.made_up(3), 100))
    assert list(islice(events.made_up(3), 100)) != list(islice(events.made_up(4), 100))


def test_made_up_pages_differ_in_how_often_they_are_viewed() -> None:
    views = Counter(json.loads(value)["path"] for _, _, value in islice(events.made_up(), 5000))
    (first, most), (_, second) = views.most_common(2)
    assert first == "/"
    assert 0.1 < most / 5000 < 0.3
    assert second > 5 * views["/about"] > 0


def test_slow_rates_are_not_shown_as_none() -> None:
    assert [per_second(rate) for rate in (0, 0.5, 9.96, 20_012.6)] == ["0", "0.5", "10.0", "20,013"]


@pytest.mark.skipif(not ACCESS_LOG.exists(), reason="the sample access log is not on this machine")
def test_a_real_access_log_is_understood() -> None:
    log = events.AccessLog(ACCESS_LOG)
    assert [value for _, _, value in log] == ACCESS_LOG.read_bytes().splitlines()
    assert log.lines == 10_000
    assert log.unreadable <= 1


DIGESTS = [digest("t", 0, offset, b"", b"") for offset in range(40)]


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(1, 12)), max_size=30))
@example([(1, 2), (1, 1), (0, 1)])
def test_a_tally_is_that_of_the_offsets_it_has_seen(runs: list[tuple[int, int]]) -> None:
    """Runs in any order, overlapping or not: what is counted is the unbroken run from offset 0."""
    tally, seen, told = Tally(), set[int](), 0
    for first, length in runs:
        run = array("Q", DIGESTS[first : first + length])
        tally.add(("t", 0), first, run)
        seen.update(range(first, first + len(run)))
        told += len(run)
    end = next(offset for offset in range(41) if offset not in seen)
    assert tally.next_offsets.get(("t", 0), 0) == tally.records == end
    assert tally.checksum == sum(DIGESTS[:end]) % (1 << 64)
    assert (tally.holes == []) == (end == max(seen, default=-1) + 1)
    assert tally.records + tally.repeated <= told


def test_a_changed_record_changes_the_checksum() -> None:
    assert len({digest("t", 0, 0, b"k", b"v"), digest("t", 0, 0, b"kv", b""), digest("t", 0, 1, b"k", b"v")}) == 3
