"""`ottla pipeline logs`: lines of any services to one table, and `find` in it.

It has the arguments; ottla.spark.logs has formats and tables.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ottla.cli.connection import Output, complete_topics, pairs
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, counted, print_json, say, say_lines
from ottla.cli.pipeline.options import EVERY_SECOND, AllowLoss, PipelineOptions, Report, Title, absolute, plain_failures
from ottla.cli.plans import Limit
from ottla.cli.times import parse_time

app = typer.Typer(
    help="Store log lines in a table by time, level and component; compute error rates; find lines.",
    invoke_without_command=True,
    epilog="Example: ottla pipeline logs --topic logs --table ./logs --once --report logs.html",
)

SERVICES_TOLD = 20

Table = Annotated[str | None, typer.Option("--table", metavar="DIR", help="Directory of the tables.")]


TopicOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", autocompletion=complete_topics, help="Topic of log lines; may be repeated (default: logs)."
    ),
]
Window = Annotated[
    int,
    typer.Option("--window", min=1, metavar="SECONDS", help="Seconds of a window of error rates (default 300)."),
]
Delay = Annotated[
    float,
    typer.Option(
        "--delay",
        min=0,
        metavar="SECONDS",
        help="Seconds behind a service's newest line after which a line is late (default 600).",
    ),
]
Zone = Annotated[
    str,
    typer.Option("--zone", help="Time zone of times that name none, such as +02:00 or Europe/Berlin (default UTC)."),
]
Hint = Annotated[
    list[str] | None,
    typer.Option(
        "--hint",
        metavar="SERVICE=FORMAT",
        help="Format to try first for a service; may be repeated (default: none).",
    ),
]
OutputTopic = Annotated[
    str | None,
    typer.Option(
        "--output-topic", metavar="TOPIC", help="Topic for error rates as JSON, as they change (default: none)."
    ),
]
BatchRows = Annotated[
    int | None, typer.Option("--batch-rows", min=1, help="Lines in a batch at most (default: unlimited).")
]


@app.callback()
@with_shared_options
def logs(
    context: typer.Context,
    topic: TopicOption = None,
    table: Table = None,
    window: Window = 300,
    delay: Delay = 600,
    zone: Zone = "UTC",
    hint: Hint = None,
    output_topic: OutputTopic = None,
    report: Report = None,
    title: Title = "Logs",
    batch_rows: BatchRows = None,
    allow_loss: AllowLoss = False,
    running: PipelineOptions = EVERY_SECOND,
) -> None:
    """Parse log lines into a table, each exactly once, and count errors per service and window of time."""
    if context.invoked_subcommand is not None:
        return
    if table is None:
        raise CommandError("Say where the tables are to be: --table DIR.")
    options, topics = running.run_options(), topic or ["logs"]
    where = absolute(table)
    with (
        running.reported(options, "logs", where, reads=topics, writes=[where, output_topic]) as (options, reporter),
        plain_failures(),
    ):
        from ottla.spark.logs.batches import LineSettings
        from ottla.spark.logs.run import run

        outcome = run(
            options,
            topics,
            table,
            settings=LineSettings(window, delay, zone, hints(hint)),
            output_topic=output_topic,
            report=report,
            title=title,
            batch_rows=batch_rows,
            allow_loss=allow_loss,
        )
        reporter.summary = str(outcome)
    say_lines(outcome)


def hints(given: list[str] | None) -> dict[str, str]:
    from ottla.spark.logs.formats import NAMES

    found = pairs(given, "A hint")
    for service, name in found.items():
        if name not in NAMES:
            raise CommandError(f"{name!r}, for {service}, is no format: expected one of {', '.join(NAMES)}.")
    return found


@app.command(epilog="Example: ottla pipeline logs find 'connection refused' --table ./logs --since 2026-01-31 -s api")
def find(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="Text to find anywhere in a line, in upper or lower case.")
    ],
    table: Table = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Find lines at or after this time, such as 2026-01-31T08:00 (default: all)."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Find lines before this time (default: all).")
    ] = None,
    service: Annotated[
        list[str] | None,
        typer.Option("--service", "-s", help="Service whose lines to find; may be repeated (default: all)."),
    ] = None,
    level: Annotated[
        list[str] | None,
        typer.Option("--level", "-l", help="Level to find, such as ERROR; may be repeated (default: all)."),
    ] = None,
    regex: Annotated[bool, typer.Option("--regex", "-E", help="Read TEXT as a regular expression (RE2).")] = False,
    case: Annotated[bool, typer.Option("--case", help="Distinguish upper and lower case.")] = False,
    most: Annotated[
        int, typer.Option("--max-records", "-n", min=1, help="Lines to show, the earliest first (default 1000).")
    ] = 1_000,
    limit: Limit = None,
    format: Output = Format.TABLE,
) -> None:
    """Find text in the lines of a table. Needs no broker and no Spark."""
    if table is None:
        raise CommandError("Say where the table is: --table DIR.")
    with plain_failures():
        from ottla.spark.logs.find import SearchCriteria
        from ottla.spark.logs.find import find as look

        wanted = SearchCriteria(
            text,
            regex=regex,
            case=case,
            since=moment(since),
            until=moment(until),
            services=tuple(service or ()),
            levels=tuple(level or ()),
            limit=limit or most,
        )
        hits = look(table, wanted)
    if format is Format.JSON:
        print_json([{key: plain(value) for key, value in line.items()} for line in hits.lines])
    else:
        for line in hits.lines:
            say_lines(shown(line).expandtabs())
    more = f" The first {len(hits.lines):,} are shown." if hits.found > len(hits.lines) else ""
    opened, total = hits.files
    told = (
        f"{counted(hits.found, 'line')} found; {hits.read:,} read, {opened:,} of {counted(total, 'file')} opened.{more}"
    )
    say(told, err=True)
    if hits.services is not None and (unknown := sorted(set(service or ()).difference(hits.services))):
        there = ", ".join(hits.services[:SERVICES_TOLD]) or "nobody"
        rest = ", ..." if len(hits.services) > SERVICES_TOLD else ""
        say(f"No line here is of {' or '.join(unknown)}; there are lines of {there}{rest}.", err=True)


def shown(line: dict[str, Any]) -> str:
    at = line["time"] or line["timestamp"]
    when = "-" if at is None else at.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    return f"{when} {line['service']} {line['level'] or '-'} {line['raw']}"


def plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromtimestamp(parse_time(text) / 1000, UTC)
