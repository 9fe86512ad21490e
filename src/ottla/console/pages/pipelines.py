"""Lists pipelines, trackers and shippers by their newest reports: state, rates, lag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ottla.client.errors import BrokerError
from ottla.client.reports import FAILED, SILENT, Report
from ottla.console.access import RecordsHiddenError
from ottla.console.page import Context, Page, Paged, View, paged
from ottla.console.report_reading import options_of, reports_of
from ottla.escaping import visible


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline. Rates are records per second; None for a figure that it does not report."""

    name: str
    kind: str
    state: str
    is_bad: bool
    in_rate: float | None
    processed_rate: float | None
    lag: float | None
    batch_ms: float | None
    late_rows: float | None
    at_ms: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines(View):
    """A page of pipelines, and what was searched. `why` says why no report could be read, "" if they were."""

    search: str
    topic: str
    why: str
    paged: Paged
    pipelines: tuple[PipelineRow, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> Pipelines:
    """The pipelines of one page."""
    search, topic = context.query.get("q", ""), context.settings.reports
    unseen: list[str] = []
    newest, why = dict[str, Report](), ""
    try:
        newest = reports_of(context, unseen).newest()
    except RecordsHiddenError as hidden:
        why = str(hidden)
    except BrokerError as refused:
        why = why_of(topic, refused)
    rows = rows_of(newest.values(), context.now_ms)
    where, shown = paged([each for each in rows if search.lower() in each.name.lower()], context.number("page", 1))
    return Pipelines(
        title="Pipelines",
        command=context.command("pipeline", "list", *options_of(context)),
        search=search,
        topic=topic,
        why=why,
        paged=where,
        pipelines=tuple(shown),
        unseen=tuple(unseen),
    )


def why_of(topic: str, refused: BrokerError) -> str:
    """Why no report can be read, in words."""
    if refused.name == "UNKNOWN_TOPIC_OR_PARTITION":
        return f"No pipeline reports yet: there is no topic {visible(topic)}."
    if refused.name == "TOPIC_AUTHORIZATION_FAILED":
        return f"You may not read the topic {visible(topic)}, or it does not exist."
    return str(refused)


def rows_of(reports: Iterable[Report], now_ms: int) -> list[PipelineRow]:
    """The rows of pipelines: first those that failed or are silent, then by name."""
    rows = [row_of(each, now_ms) for each in reports]
    return sorted(rows, key=lambda each: (not each.is_bad, each.name))


def row_of(report: Report, now_ms: int) -> PipelineRow:
    """The row of a pipeline at a time."""
    state, figures = report.standing(now_ms), report.figures_at(now_ms)
    return PipelineRow(
        report.name,
        report.kind,
        state,
        state in (FAILED, SILENT),
        figures.get("in_rate"),
        figures.get("processed_rate"),
        figures.get("lag"),
        figures.get("batch_ms"),
        figures.get("late_rows"),
        report.at_ms,
        report.host,
    )


PAGE: Final = Page(name="pipelines", path="/pipelines", load=load, label="Pipelines", key="p", refresh_s=5)
