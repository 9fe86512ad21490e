"""Shows the progress of a running pipeline: rows per second, lag per partition, state, duration of a batch.

The figures come from Spark's progress reports, as JSON, of sources whose offsets are {"topic": {"0": 123}}. A terminal
shows a table that is redrawn; other outputs get a line every few seconds. Both go to stderr, because stdout is for the
output of the commands.

Source: StreamingQueryProgress of Spark 4.3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TextIO

from ottla.client import TopicPartition

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

LINE_EVERY_S = 5.0
SAME_EVERY_S = 60.0
DRAW_EVERY_S = 0.5
RATE_OVER_S = 10.0
PARTITIONS_SHOWN = 12
WAITS = "waits for executors"


class BatchRows(NamedTuple):
    """A pipeline's own counts of a batch, for use where Spark does not count records."""

    rows: int
    late: int = 0


Progress = dict[str, Any]
Lag = dict[TopicPartition, int]


@dataclass(slots=True)
class Figures:
    """The figures of one query. Rates are of rows per second, sizes of bytes."""

    rows: int = 0
    batches: int = 0
    batch_id: int = -1
    batch_s: float = 0.0
    processed_rate: float = 0.0
    lag: Lag = field(default_factory=dict)
    positions: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    state_rows: int = 0
    state_bytes: int = 0
    late_rows: int = 0
    watermark: str = ""
    arrived: list[tuple[float, int]] = field(default_factory=list)

    def take(self, progress: Progress, now_s: float) -> None:
        """Add one report; reports without a batch only have the positions of the sources."""
        self.lag = lag_of(progress) or self.lag
        self.positions = positions_of(progress) or self.positions
        if "addBatch" not in progress.get("durationMs", {}):
            return
        self.rows += progress["numInputRows"]
        self.batches += 1
        self.batch_id = progress["batchId"]
        self.batch_s = progress["durationMs"].get("triggerExecution", progress.get("batchDuration", 0)) / 1000
        self.processed_rate = progress.get("processedRowsPerSecond") or 0.0
        self.watermark = progress.get("eventTime", {}).get("watermark", "")
        operators = progress.get("stateOperators", ())
        self.state_rows = sum(each["numRowsTotal"] for each in operators)
        self.state_bytes = sum(state_bytes_of(each) for each in operators)
        self.late_rows += sum(each.get("numRowsDroppedByWatermark", 0) for each in operators)
        self.late_rows += progress.get("numLateRows", 0)
        self.arrived.append((now_s, progress["numInputRows"]))

    def in_rate(self, now_s: float, began_s: float) -> float:
        """Rows per second read in the last seconds; 0 without rows."""
        self.arrived = [(at, rows) for at, rows in self.arrived if now_s - at <= RATE_OVER_S]
        return sum(rows for _, rows in self.arrived) / max(min(RATE_OVER_S, now_s - began_s), 0.001)


def lag_of(progress: Progress) -> Lag:
    """Records not read yet by (topic, partition): the log's end as the source last saw it, minus the offset read."""
    found: Lag = {}
    for source in progress.get("sources", ()):
        latest, read = source.get("latestOffset"), source.get("endOffset")
        if not isinstance(latest, dict) or not all(isinstance(each, dict) for each in latest.values()):
            continue
        for topic, partitions in latest.items():
            done = (read or {}).get(topic, {}) if isinstance(read, dict) else {}
            for partition, offset in partitions.items():
                found[topic, int(partition)] = max(int(offset) - int(done.get(partition, offset)), 0)
    return found


def positions_of(progress: Progress) -> dict[TopicPartition, int]:
    """The next offsets to read; where several sources read a partition, the lowest."""
    found: dict[TopicPartition, int] = {}
    for source in progress.get("sources", ()):
        read = source.get("endOffset")
        if isinstance(read, dict) and all(isinstance(each, dict) for each in read.values()):
            keep_lowest(found, {(topic, int(p)): int(at) for topic, each in read.items() for p, at in each.items()})
    return found


def keep_lowest(found: dict[TopicPartition, int], positions: Mapping[TopicPartition, int]) -> None:
    for place, at in positions.items():
        found[place] = min(at, found.get(place, at))


def state_bytes_of(operator: Progress) -> int:
    """Return the size of the state: on disk if RocksDB reports it, otherwise in memory."""
    return operator.get("customMetrics", {}).get("rocksdbSstFileSize", 0) + operator.get("memoryUsedBytes", 0)


def size(number: int) -> str:
    """12.3 MB."""
    amount = float(number)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def line(name: str, figures: Figures, in_rate: float, *, waits: bool = False) -> str:
    """The figures of one query on one line. `waits`: the cluster has given it no executor."""
    parts = [f"{figures.rows:,} rows", f"{in_rate:,.0f} rows/s in", f"{figures.processed_rate:,.0f} rows/s processed"]
    if figures.lag:
        (topic, partition), most = max(figures.lag.items(), key=lambda each: each[1])
        total = sum(figures.lag.values())
        parts.append(f"lag {total:,}" + (f" (most {topic}-{partition}: {most:,})" if total else ""))
    if figures.state_rows or figures.state_bytes:
        parts.append(f"state {figures.state_rows:,} rows, {size(figures.state_bytes)}")
    if figures.late_rows:
        parts.append(f"{figures.late_rows:,} rows too late")
    if figures.batches:
        parts.append(f"batch {figures.batch_id} took {figures.batch_s:.1f} s")
    if waits:
        parts.append(WAITS)
    return f"{name}: {', '.join(parts)}"


class View:
    """Shows the queries on a terminal or as lines. A context manager: call `take` with each report, `draw` often, and
    `say` with messages for the user."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet = quiet
        self._stream = stream
        self._figures: dict[str, Figures] = {}
        self._began_s = time.monotonic()
        self._drawn_s = self._began_s
        self._live: Live | None = None
        self._said: dict[str, tuple[str, float]] = {}
        self.figures: dict[str, float] = {}
        """The figures of all queries together, as of the last call of `measure`."""
        self.positions: dict[TopicPartition, int] = {}
        """The next offsets to read; of a partition that several queries read, the lowest."""
        self.waits = False
        """Whether the queries wait for executors, as the cluster has given them none."""

    def __enter__(self) -> Self:
        if not self._quiet and (self._stream or sys.stderr).isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream or sys.stderr)
            self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream or sys.stderr, flush=True)

    def tell(self, text: str) -> None:
        """A line that stays, unless only warnings are wanted."""
        if not self._quiet:
            self.say(text)

    def expect(self, name: str) -> None:
        """A query of that name has been started."""
        self._figures.setdefault(name, Figures())

    def take(self, name: str, progress: Progress) -> None:
        """Add a new report."""
        self._figures.setdefault(name, Figures()).take(progress, time.monotonic())

    def measure(self) -> None:
        """Replace `figures` and `positions`; another thread may read them."""
        now_s, found = time.monotonic(), list(self._figures.values())
        positions: dict[TopicPartition, int] = {}
        for each in found:
            keep_lowest(positions, each.positions)
        self.positions = positions
        lags = [sum(each.lag.values()) for each in found if each.lag]
        self.figures = {
            "rows": sum(each.rows for each in found),
            "in_rate": round(sum(each.in_rate(now_s, self._began_s) for each in found), 1),
            "processed_rate": round(sum(each.processed_rate for each in found), 1),
            **({"lag": sum(lags)} if lags else {}),
            "batches": sum(each.batches for each in found),
            "batch_ms": round(max((each.batch_s for each in found), default=0.0) * 1000),
            "late_rows": sum(each.late_rows for each in found),
            "state_rows": sum(each.state_rows for each in found),
            "state_bytes": sum(each.state_bytes for each in found),
        }

    def draw(self) -> None:
        """Show the figures, where it is time to."""
        now_s = time.monotonic()
        if self._quiet or now_s - self._drawn_s < (DRAW_EVERY_S if self._live else LINE_EVERY_S):
            return
        self._drawn_s = now_s
        if self._live is not None:
            self._live.update(self.table(now_s), refresh=True)
            return
        for name, figures in self._figures.items():
            text = line(name, figures, figures.in_rate(now_s, self._began_s), waits=self.waits)
            said, at_s = self._said.get(name, ("", 0.0))
            if text != said or now_s - at_s >= SAME_EVERY_S:
                self._said[name] = (text, now_s)
                self.say(text)

    def table(self, now_s: float) -> RenderableType:
        """The queries, and the partitions that lag most."""
        from rich.console import Group
        from rich.table import Table

        queries = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for column in ("QUERY", "ROWS", "ROWS/S IN", "PROCESSED", "LAG", "STATE", "TOO LATE", "BATCH", "TOOK"):
            queries.add_column(column, justify="left" if column == "QUERY" else "right")
        for name, each in self._figures.items():
            queries.add_row(
                name,
                f"{each.rows:,}",
                f"{each.in_rate(now_s, self._began_s):,.0f}",
                f"{each.processed_rate:,.0f}",
                f"{sum(each.lag.values()):,}" if each.lag else "-",
                f"{each.state_rows:,} rows, {size(each.state_bytes)}" if each.state_rows else "-",
                f"{each.late_rows:,}" if each.late_rows else "-",
                str(each.batch_id) if each.batches else "-",
                f"{each.batch_s:.1f} s" if each.batches else "-",
            )
        return Group(queries, *(["", f"The pipeline {WAITS}."] if self.waits else []), *self.partitions())

    def partitions(self) -> list[RenderableType]:
        """The lag of each partition, the largest first."""
        from rich.table import Table

        lags: Lag = {}
        for each in self._figures.values():
            for place, lag in each.lag.items():
                lags[place] = max(lag, lags.get(place, 0))
        if not lags:
            return []
        shown = sorted(lags.items(), key=lambda each: (-each[1], each[0]))
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("PARTITION")
        table.add_column("LAG", justify="right")
        for (topic, partition), lag in shown[:PARTITIONS_SHOWN]:
            table.add_row(f"{topic}-{partition}", f"{lag:,}")
        left = len(shown) - PARTITIONS_SHOWN
        if left > 0:
            table.add_row(f"{left} more", f"{sum(lag for _, lag in shown[PARTITIONS_SHOWN:]):,}")
        return ["", table]
