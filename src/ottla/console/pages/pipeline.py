"""Shows one pipeline: its newest report, and the figures of its recent ones as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.reports import CHARTED, Point
from ottla.console.page import Context, MissingError, Page, View
from ottla.console.pages.pipelines import PipelineRow, row_of
from ottla.console.report_reading import options_of, reports_of
from ottla.escaping import visible

LABELS: Final = {
    "in_rate": "Read per second",
    "processed_rate": "Processed per second",
    "lag": "Lag in records",
    "batch_ms": "Milliseconds of a batch",
    "late_rows": "Late rows",
}
"""Labels of the lines, by figure."""
NUMBERS_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Line:
    """A figure over the recent reports; None in a report that lacks it."""

    label: str
    values: tuple[float | None, ...]

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView(View):
    """A pipeline. `figures` are its own, by name; `points` the numbers of the lines, newest first."""

    row: PipelineRow
    started_ms: int
    every_ms: int
    pid: int
    ottla: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    figures: tuple[tuple[str, float], ...]
    summary: str
    error: str
    lines: tuple[Line, ...]
    points: tuple[Point, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> PipelineView:
    """The pipeline that the address names."""
    name, unseen = context.need("name"), list[str]()
    found = reports_of(context, unseen)
    report = found.newest().get(name)
    if report is None:
        raise MissingError(f"There is no pipeline {visible(name)}.")
    recent, now_ms = found.recent(name), context.now_ms
    return PipelineView(
        title=f"Pipeline {visible(name)}",
        command=context.command("pipeline", "describe", name, *options_of(context)),
        row=row_of(report, now_ms),
        started_ms=report.started_ms,
        every_ms=report.every_ms,
        pid=report.pid,
        ottla=report.ottla,
        reads=report.reads,
        writes=report.writes,
        figures=tuple(report.figures_at(now_ms).items()),
        summary=report.summary,
        error=report.error,
        lines=lines_of(recent),
        points=recent[: -NUMBERS_SHOWN - 1 : -1],
        unseen=tuple(unseen),
    )


def lines_of(points: Sequence[Point]) -> tuple[Line, ...]:
    """A line for each figure that some report has."""
    lines = [Line(LABELS[figure], tuple(each.values[place] for each in points)) for place, figure in enumerate(CHARTED)]
    return tuple(each for each in lines if any(value is not None for value in each.values))


PAGE: Final = Page(name="pipeline", path="/pipeline", load=load, refresh_s=5)
