"""Shows one pipeline: its newest report, and the figures of its recent ones as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.client.client import LATEST
from ottla.client.errors import BrokerError
from ottla.client.reports import CHARTED, SILENT, Point, Report
from ottla.console.page import Context, MissingError, Page, View
from ottla.console.pages.pipelines import PipelineRow, row_of
from ottla.console.reading import leaders_at, offsets
from ottla.console.report_reading import options_of, reports_of
from ottla.escaping import visible
from ottla.protocol.errors import ErrorCode

LABELS: Final = {
    "in_rate": "Read per second",
    "processed_rate": "Processed per second",
    "lag": "Lag in records",
    "batch_ms": "Milliseconds of a batch",
    "late_rows": "Late rows",
}
"""Labels of the lines, by figure."""
NUMBERS_SHOWN: Final = 60
BEHIND_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Line:
    """A figure over the recent reports; None in a report that lacks it."""

    label: str
    values: tuple[float | None, ...]

    @property
    def last(self) -> float | None:
        return self.values[-1] if self.values else None


@dataclass(frozen=True, slots=True)
class BehindRow:
    """A partition that a silent pipeline read: the next offset of its last report, the end now, the records between."""

    topic: str
    partition: int
    offset: int
    end: int
    lag: int


@dataclass(frozen=True, slots=True)
class Silence:
    """A silent pipeline: how long ago its last report was, what that said, and what waits now. `lag` is None if no end
    is known, `behind` has the partitions with the most records. `command` started it, "" if it did not report that."""

    for_ms: int
    said: str
    lag: int | None
    partitions: int
    behind: tuple[BehindRow, ...]
    host: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView(View):
    """A pipeline. `figures` are its own, by name; `points` the numbers of the lines, newest first. `silence` is None
    unless it is silent."""

    row: PipelineRow
    silence: Silence | None
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
    """The pipeline that the address names. Raises MissingError."""
    name, unseen = context.need("name"), list[str]()
    try:
        found = reports_of(context, unseen)
    except BrokerError as refused:
        if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        topic = visible(context.settings.reports)
        raise MissingError(f"There is no pipeline {visible(name)}: there is no topic {topic}.") from None
    report = found.newest().get(name)
    if report is None:
        raise MissingError(f"There is no pipeline {visible(name)}.")
    recent, now_ms = found.recent(name), context.now_ms
    return PipelineView(
        title=f"Pipeline {visible(name)}",
        command=context.command("pipeline", "describe", name, *options_of(context)),
        row=row_of(report, now_ms),
        silence=silence_of(context, report, unseen) if report.standing(now_ms) == SILENT else None,
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


def silence_of(context: Context, report: Report, unseen: list[str]) -> Silence:
    """Collect the last report and the present lag of a silent pipeline."""
    rows = behind(context, report, unseen)
    return Silence(
        for_ms=context.now_ms - report.at_ms,
        said=said_of(report.figures),
        lag=sum(each.lag for each in rows) if rows else None,
        partitions=len(rows),
        behind=tuple(rows[:BEHIND_SHOWN]),
        host=report.host,
        command=report.command,
    )


def said_of(figures: Mapping[str, float]) -> str:
    """The figures of a last report in words, "" without any."""
    parts = [
        f"{words} {figures[name]:,.0f}{unit}"
        for name, words, unit in (
            ("batches", "batch", ""),
            ("batch_ms", "duration of a batch", " ms"),
            ("rows", "records read", ""),
            ("lag", "lag", ""),
        )
        if name in figures
    ]
    return ", ".join(parts)


def behind(context: Context, report: Report, unseen: list[str]) -> list[BehindRow]:
    """The partitions of the reported offsets whose ends are known, the most records first."""
    read = {(topic, int(part)): at for topic, each in report.offsets.items() for part, at in each.items()}
    leaders = leaders_at(context, read)
    for topic in sorted(report.offsets.keys() - {topic for topic, _ in leaders}):
        unseen.append(f"Lag in {visible(topic)}: the topic does not exist, or you may not see it.")
    ends = offsets(context, leaders, LATEST, unseen=unseen)
    rows = [BehindRow(*place, read[place], end, max(0, end - read[place])) for place, end in ends.items()]
    return sorted(rows, key=lambda each: (-each.lag, each.topic, each.partition))


def lines_of(points: Sequence[Point]) -> tuple[Line, ...]:
    """A line for each figure that some report has."""
    lines = [Line(LABELS[figure], tuple(each.values[place] for each in points)) for place, figure in enumerate(CHARTED)]
    return tuple(each for each in lines if any(value is not None for value in each.values))


PAGE: Final = Page(name="pipeline", path="/pipeline", load=load, under="/pipelines", refresh_s=5)
