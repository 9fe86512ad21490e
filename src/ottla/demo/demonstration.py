"""Holds what the steps share: the node, the stream, the groups, and the screen.

On a terminal a table of figures is updated in place; elsewhere one plain line a second is printed.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.demo.cluster import ThreeNodes
from ottla.demo.events import AccessLog
from ottla.demo.group import Group, shown
from ottla.demo.jobs import Jobs
from ottla.demo.node import NodeProcess
from ottla.demo.producer import Stream

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

TICK_S = 0.1
RATE_OVER_S = 0.5
SLOW = 10


class StepFailedError(Exception):
    """A step did not reach its goal; the text says what failed."""


class Demonstration:
    """The node, the processes and the screen of one demonstration; `clear` ends them all."""

    def __init__(self, console: Console, source: Path | None, seconds: float, report: Path | None) -> None:
        self.console = console
        self.source = source
        self.seconds = seconds
        self.report = report
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-demo-"))
        self.node = NodeProcess(self.directory)
        self.cluster: ThreeNodes | None = None
        self.stream: Stream | None = None
        self.log: AccessLog | None = None
        self.groups: list[Group] = []
        self.jobs: Jobs | None = None
        self.began = time.monotonic()
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._live: Live | None = None

    def say(self, sentence: str) -> None:
        """Print one line that stays on the screen."""
        clock = f"{time.monotonic() - self.began:5.1f} s"
        wrap = self.console.is_terminal
        self.console.print(f"[dim]{clock}[/dim]  {sentence}", highlight=False, soft_wrap=not wrap)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for `seconds`, or until a condition holds; returns whether it holds."""
        end = time.monotonic() + seconds
        next_line = time.monotonic() + 1
        while (now := time.monotonic()) < end:
            if until():
                return True
            self._listen()
            if self._live is not None:
                self._live.update(self.figures())
            elif self.stream is not None:
                line = self.line()  # at each tick, because a rate needs an earlier and a later count
                if now >= next_line and self.acknowledged():
                    next_line = now + 1
                    self.say(line)
        return until()

    def show(self) -> None:
        """Show the figures from now on."""
        from rich.live import Live

        if self.console.is_terminal:
            self._live = Live(self.figures(), console=self.console, refresh_per_second=8)
            self._live.start()

    def hide(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def forget(self) -> None:
        """Stop showing a stream that has ended, and its groups: the next one begins at 0."""
        self.stream, self.groups = None, []
        self._rates.clear()

    def clear(self) -> None:
        """End every process and remove the directory."""
        self.hide()
        if self.stream is not None:
            self.stream.stop()
        for group in self.groups:
            group.stop()
        if self.jobs is not None:
            self.jobs.stop()
        self.node.stop()
        if self.cluster is not None:
            self.cluster.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _listen(self) -> None:
        """Receive the members' reports, for at most a tick."""
        pipes = {member.pipe: group for group in self.groups for member in group.members}
        if not pipes:
            time.sleep(TICK_S)
            return
        deadline = time.monotonic() + TICK_S
        while (left := deadline - time.monotonic()) > 0:
            for pipe in wait(list(pipes), left):
                if not pipes[pipe].listen(pipe):  # type: ignore[index,arg-type]
                    raise RuntimeError("A member of a group ended by itself.")
        for group in self.groups:
            if group.changed:
                group.changed = False
                owners = "   ".join(f"[cyan]{each.name}[/cyan] {shown(each.owns)}" for each in group.members)
                if len(group.members) > 1:
                    self.say(f"[bold]{group.name}[/bold] shares: {owners}")

    def acknowledged(self) -> int:
        return self.stream.tally.records if self.stream else 0

    def rate(self, name: str, count: int) -> float:
        """Records a second of one counter, over up to the last second."""
        now = time.monotonic()
        since, then, rate = self._rates.get(name, (now, count, 0.0))
        if now - since >= RATE_OVER_S or name not in self._rates:
            rate = (count - then) / (now - since) if now > since else 0.0
            self._rates[name] = (now, count, rate)
        return rate

    def counters(self) -> list[tuple[str, int, float, int]]:
        """(name, records, records a second, lag) of the stream and of each group."""
        produced = self.acknowledged()
        rows = [("produced", produced, self.rate("produced", produced), 0)]
        for group in self.groups:
            records = group.tally.records
            rows.append((group.name, records, self.rate(group.name, records), max(0, produced - records)))
        return rows

    def line(self) -> str:
        first, *groups = self.counters()
        parts = [f"produced {first[1]:,} at {per_second(first[2])}/s"]
        parts += [f"{name} {records:,} at {per_second(rate)}/s, lag {lag:,}" for name, records, rate, lag in groups]
        return "   ".join(parts)

    def figures(self) -> Table:
        from rich.table import Table

        table = Table(expand=False)
        for heading in ("", "records", "records/s", "lag"):
            table.add_column(heading, justify="right" if heading else "left")
        for name, records, rate, lag in self.counters():
            table.add_row(name, f"{records:,}", per_second(rate), "" if name == "produced" else f"{lag:,}")
        return table


def per_second(rate: float) -> str:
    """A rate for display: 20,013, or 0.7 where a whole number would hide it."""
    return f"{rate:,.1f}" if 0 < rate < SLOW else f"{rate:,.0f}"
