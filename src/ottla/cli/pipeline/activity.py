"""`ottla pipeline activity`: access logs and click events to windows, pages, sessions and a report page.

ottla.spark.activity computes the figures; this module prints them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import complete_topics
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, say, say_lines
from ottla.cli.pipeline.options import (
    EVERY_TEN_SECONDS,
    AllowLoss,
    PipelineOptions,
    Report,
    Title,
    absolute,
    plain_failures,
    regex,
)

if TYPE_CHECKING:
    from ottla.spark.activity import WindowSettings

UNITS = {
    "": 1,
    "s": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}


@with_shared_options
def activity(
    topic: Annotated[
        list[str], typer.Option("--topic", "-t", autocompletion=complete_topics, help="Topic to read; may be repeated.")
    ],
    table: Annotated[str, typer.Option("--table", metavar="DIR", help="Directory of the result tables.")],
    output_topic: Annotated[
        str | None,
        typer.Option("--output-topic", metavar="TOPIC", help="Topic for final results as JSON (default: none)."),
    ] = None,
    report: Report = None,
    title: Title = "Website activity",
    window: Annotated[
        str, typer.Option("--window", metavar="TIME", help="Length of a window (default 5 minutes).")
    ] = "5 minutes",
    gap: Annotated[
        str, typer.Option("--gap", metavar="TIME", help="Silence after which a session ends (default 30 minutes).")
    ] = "30 minutes",
    late: Annotated[
        str,
        typer.Option("--late", metavar="TIME", help="Lateness up to which an event is counted (default 10 minutes)."),
    ] = "10 minutes",
    conversion: Annotated[
        str | None,
        typer.Option(
            "--conversion",
            metavar="REGEX",
            help="Regular expression of the pages that a visit should reach (default: none).",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option("--top", min=1, metavar="N", help="Pages that are named for each window (default 100).")
    ] = 100,
    batch_rows: Annotated[
        int | None,
        typer.Option(
            "--batch-rows", min=1, metavar="ROWS", help="Approximate limit of rows in a batch (default: unlimited)."
        ),
    ] = None,
    allow_loss: AllowLoss = False,
    running: PipelineOptions = EVERY_TEN_SECONDS,
) -> None:
    """Count website activity: windows, top pages, visitors, sessions, from access logs or click events.

    The last line shows figures that were computed in two ways; the exit code is 1 if they differ.
    """
    options = running.run_options()
    settings, delay_s = settings_of(window, gap, top, conversion), seconds(late, "--late")
    where = absolute(table)
    with (
        running.reported(options, "activity", where, reads=topic, writes=[where, output_topic]) as (options, reporter),
        plain_failures(),
    ):
        from ottla.spark.activity import run

        found = run(
            options,
            topic,
            table,
            settings=settings,
            delay_s=delay_s,
            output_topic=output_topic,
            report=report,
            title=title,
            batch_rows=batch_rows,
            allow_loss=allow_loss,
        )
        reporter.summary = str(found)
    if report is not None and not running.quiet:
        say(f"The report is in {report}.", err=True)
    say_lines(found)


def settings_of(window: str, gap: str, top: int, conversion: str | None) -> WindowSettings:
    """Make the settings from the options. Raises CommandError."""
    window_s, gap_s = seconds(window, "--window"), seconds(gap, "--gap")
    if window_s < 1 or window_s != int(window_s):
        raise CommandError(f"--window must be whole seconds, at least one, not {window!r}.")
    with plain_failures():
        from ottla.spark.activity import WindowSettings

        return WindowSettings(int(window_s), gap_s, top, conversion and regex(conversion).pattern)


def seconds(text: str, option: str) -> float:
    """Seconds of `5 minutes`, `90 s`, `2h` or a number of seconds. Raises CommandError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*?)s?\s*", text.lower())
    length = UNITS.get(found[2]) if found else None
    if found is None or length is None:
        raise CommandError(f"{option} must be a time such as '5 minutes', '90 s' or '2 h', not {text!r}.")
    return float(found[1]) * length
