"""What the view makes of Spark's reports; no Spark in it."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ottla.spark.platform.failures import reason, sentence
from ottla.spark.running import progress
from ottla.spark.running.progress import Figures, View, lag_of, line, positions_of, size


def report(batch: int = 3, rows: int = 500, *, took_ms: int = 800, **more: Any) -> dict[str, Any]:
    """As a query on two topics reports a batch."""
    source = {
        "endOffset": {"clicks": {"0": 120, "1": 80}, "views": {"0": 9}},
        "latestOffset": {"clicks": {"0": 150, "1": 80}, "views": {"0": 1009, "1": 4}},
    }
    operator = {
        "numRowsTotal": 1200,
        "memoryUsedBytes": 1_000_000,
        "numRowsDroppedByWatermark": 2,
        "customMetrics": {"rocksdbSstFileSize": 2_400_000},
    }
    return {
        "batchId": batch,
        "numInputRows": rows,
        "processedRowsPerSecond": rows / took_ms * 1000,
        "durationMs": {"addBatch": took_ms - 50, "triggerExecution": took_ms},
        "sources": [source],
        "stateOperators": [operator],
        **more,
    }


def test_the_figures_of_all_queries_for_reports() -> None:
    view = View(quiet=True)
    for name in ("one", "two"):
        view.take(name, report())
    view.measure()
    assert view.figures.pop("in_rate") > 0
    assert view.figures == {
        "rows": 1000,
        "processed_rate": 1250,
        "lag": 2060,
        "batches": 2,
        "batch_ms": 800,
        "late_rows": 4,
        "state_rows": 2400,
        "state_bytes": 6_800_000,
    }
    empty = View(quiet=True)
    empty.measure()
    assert "lag" not in empty.figures


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_figures_of_a_query() -> None:
    assert lag_of(report()) == {("clicks", 0): 30, ("clicks", 1): 0, ("views", 0): 1000, ("views", 1): 0}
    figures = Figures()
    figures.take(report(), 100.0)
    figures.take(report(4, 700), 102.0)
    idle = report(5, 0)
    del idle["durationMs"]["addBatch"]
    idle["sources"][0]["endOffset"] = idle["sources"][0]["latestOffset"]
    figures.take(idle, 104.0)
    assert (figures.rows, figures.batches, figures.batch_id, figures.late_rows) == (1200, 2, 4, 4)
    assert sum(figures.lag.values()) == 0
    assert figures.in_rate(104.0, 92.0) == pytest.approx(120)
    assert figures.in_rate(111.0, 92.0) == pytest.approx(70), "what came more than ten seconds ago does not count"
    assert line("visits", figures, 70.0) == (
        "visits: 1,200 rows, 70 rows/s in, 875 rows/s processed, lag 0, state 1,200 rows, 3.4 MB, "
        "4 rows too late, batch 4 took 0.8 s"
    )
    assert line("visits", figures, 70.0, waits=True) == f"{line('visits', figures, 70.0)}, waits for executors"
    figures.take(report(6, 0) | {"numLateRows": 51}, 112.0)
    assert figures.late_rows == 57
    assert lag_of({"sources": [{"endOffset": 4, "latestOffset": 7}, {"latestOffset": None}]}) == {}
    assert [size(each) for each in (7, 1500, 3_400_000, 2_000_000_000_000)] == ["7 B", "1.5 kB", "3.4 MB", "2.0 TB"]


def test_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with View(stream=stream) as view:
        view.expect("visits")
        view.draw()
        view.draw()
        view.take("visits", report())
        view.draw()
        view.tell("Done.")
    first, second, done = stream.getvalue().splitlines()
    assert first == "visits: 0 rows, 0 rows/s in, 0 rows/s processed", "not said again while it stays"
    assert "lag 1,030 (most views-0: 1,000)" in second
    assert done == "Done."


def test_quiet_means_warnings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    stream = io.StringIO()
    with View(quiet=True, stream=stream) as view:
        view.take("visits", report())
        view.draw()
        view.tell("Done.")
        view.say("The broker is away.")
    assert stream.getvalue() == "The broker is away.\n"


def test_a_table_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DRAW_EVERY_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    terminal = Terminal()
    with View(stream=terminal) as view:
        view.take("visits", report())
        view.draw()
        view.say("[a line] that stays")
    drawn = terminal.getvalue()
    for cell in ("visits", "1,030", "1,200 rows, 3.4 MB", "views-0", "1,000", "0.8 s", "[a line] that stays"):
        assert cell in drawn
    assert drawn.index("views-0") < drawn.index("clicks-0"), "the largest lag first"


STREAM_FAILED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: {} SQLSTATE: XXKST\n=== Streaming"


@pytest.mark.parametrize(
    ("said", "comes_to"),
    [
        ("There are [1] sources in the checkpoint offsets and now there are [2]", "that of another query"),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log.", "Another run writes to the checkpoint /c"),
        ("Checksum error: file:/c/offsets/3 at 0 exp: 1 got: 2", "The checkpoint file /c/offsets/3 is damaged"),
        ("java.io.IOException: No space left on device", "No space is left on the device"),
        ("Job aborted: java.lang.OutOfMemoryError: Java heap space", "(Java heap space). Give it more: --conf"),
        ("Python worker exited unexpectedly (crashed)", "was killed again and again"),
        ("ModuleNotFoundError: No module named 'ottla'", "Python of Spark's workers has no ottla. Install"),
        ("ModuleNotFoundError: No module named 'llvmlite.binding'", "workers has no llvmlite.binding. Install"),
    ],
)
def test_what_spark_says_comes_to_a_sentence(said: str, comes_to: str) -> None:
    told = sentence("visits", "/c", STREAM_FAILED.format(said))
    assert comes_to in told
    assert "\n" not in told


def test_the_reason_is_what_was_said_innermost() -> None:
    assert reason(STREAM_FAILED.format("[USER_RAISED_EXCEPTION] boo SQLSTATE: P0001")) == "boo"
    python = "Traceback (most recent call last):\n  File 'a.py', line 1\n    f()\nKeyError: 'x'\n\tat org.apache.Spark"
    assert reason(STREAM_FAILED.format(python)) == "KeyError: 'x'"
    ours = (
        "Traceback (most recent call last):\n  File 'a.py'\nottla.client.errors.BrokerError: produce to t-0: WRONG.\n"
    )
    assert reason(STREAM_FAILED.format(ours)) == "produce to t-0: WRONG."
    java = "Py4JJavaError: An error occurred while calling o1.start.\n: java.io.IOException: no such thing\n\tat a.b.c"
    assert reason(java) == "no such thing"


def test_positions_are_the_lowest_of_the_sources() -> None:
    progress = report()
    assert positions_of(progress) == {("clicks", 0): 120, ("clicks", 1): 80, ("views", 0): 9}
    progress["sources"].append({"endOffset": {"clicks": {"0": 90, "1": 95}}})
    assert positions_of(progress)["clicks", 0] == 90
    assert positions_of(progress)["clicks", 1] == 80
    assert positions_of({"sources": [{"endOffset": 4}, {"endOffset": None}]}) == {}
