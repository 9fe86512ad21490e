"""`ottla pipeline list` and `describe`: what pipelines, trackers and shippers report. They need no Spark."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import HERE, Cluster, Output, client, named
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, print_json, print_rows, say
from ottla.cli.reporting import TOPIC, ReportsFrom
from ottla.cli.times import shown_time
from ottla.escaping import visible

if TYPE_CHECKING:
    from ottla.client.reports import Report, ReportsReader

COLUMNS = ("NAME", "KIND", "STATE", "IN/S", "PROCESSED/S", "LAG", "BATCH-MS", "LAST-REPORT", "HOST")
LIST_EPILOG = "Example: ottla pipeline list --format json"
DESCRIBE_EPILOG = "Example: ottla pipeline describe archive:/srv/lake@web1"


def read(cluster: Cluster, topic: str) -> ReportsReader:
    """All reports in the topic. Raises CommandError."""
    from ottla.client import BrokerError
    from ottla.client.reports import ReportsReader

    reader = ReportsReader(topic)
    with client(cluster) as connected:
        try:
            while not reader.read(connected):
                pass
        except BrokerError as error:
            if error.name != "UNKNOWN_TOPIC_OR_PARTITION":
                raise
            raise CommandError(
                f"There is no topic {visible(topic)}: pipelines report to it with --reports-to {visible(topic)}."
            ) from None
    return reader


@with_shared_options
def list_pipelines(reports_from: ReportsFrom = TOPIC, cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """List the pipelines, trackers and shippers that report: state, rates, lag."""
    found, now_ms = read(cluster, reports_from), time.time_ns() // 1_000_000
    rows = [row_of(each, now_ms) for _, each in sorted(found.newest().items())]
    print_rows(COLUMNS, rows, format, none="No pipeline has reported.")
    if found.is_full:
        say(f"These are the {len(rows)} pipelines that reported last; there may be more.", err=True)
    if found.invalid:
        say(f"Records that are no reports of this version of Ottla: {found.invalid:,}.", err=True)


def row_of(report: Report, now_ms: int) -> tuple[Any, ...]:
    figures = report.figures_at(now_ms)
    rates = [figures.get(each) for each in ("in_rate", "processed_rate", "lag", "batch_ms")]
    return report.name, report.kind, report.standing(now_ms), *rates, shown_time(report.at_ms), report.host


@with_shared_options
def describe(
    name: Annotated[str, typer.Argument(metavar="NAME", callback=named, help="Name in `ottla pipeline list`.")],
    reports_from: ReportsFrom = TOPIC,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show the newest report of a pipeline: what it reads and writes, its figures, why it failed."""
    report = read(cluster, reports_from).newest().get(name)
    if report is None:
        raise CommandError(f"No pipeline {visible(name)} has reported to {visible(reports_from)}.")
    now_ms = time.time_ns() // 1_000_000
    state, figures = report.standing(now_ms), report.figures_at(now_ms)
    if format is Format.JSON:
        print_json({**asdict(report), "state": state, "figures": figures})
        return
    rows: list[tuple[str, Any]] = [
        ("NAME", report.name),
        ("KIND", report.kind),
        ("STATE", state),
        ("STARTED", shown_time(report.started_ms)),
        ("LAST-REPORT", shown_time(report.at_ms)),
        ("HOST", report.host),
        ("PID", report.pid),
        ("VERSION", report.ottla),
        ("READS", ", ".join(report.reads)),
        ("WRITES", ", ".join(report.writes)),
        *((each.upper().replace("_", "-"), value) for each, value in figures.items()),
        ("SUMMARY", report.summary),
        ("ERROR", report.error),
        ("COMMAND", report.command),
    ]
    print_rows(("FIELD", "VALUE"), rows, format)
