"""`ottla ship`: lines of growing files to a topic.

It handles arguments and signals; ottla.ship reads the files.
"""

from __future__ import annotations

import re
import resource
import signal
import socket
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli import output
from ottla.cli.connection import HERE, Cluster, complete_topics, own_clients
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, counted
from ottla.cli.reporting import NO_REPORTS, TIMEOUT_S, ReportOptions, reporting

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.ship.runner import Totals

EPILOG = "Example: ottla ship /var/log/nginx '/srv/*/logs/*.log' --topic logs"


class Multiline(StrEnum):
    """How lines are joined to records."""

    AUTO = "auto"
    OFF = "off"


Paths = Annotated[
    list[str], typer.Argument(metavar="PATH...", help="Files, directories and patterns such as '*.log' to follow.")
]
TopicOption = Annotated[
    str, typer.Option("--topic", "-t", autocompletion=complete_topics, help="Topic to write to (default logs).")
]
ServiceOption = Annotated[
    str | None, typer.Option("--service", help="Service that wrote the lines (default: the file's name).")
]
HostOption = Annotated[
    str | None, typer.Option("--host", help="Host that the lines come from (default: this machine's name).")
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        help="Directory that keeps what was acknowledged (default ~/.local/state/ottla/ship).",
    ),
]
MultilineOption = Annotated[
    Multiline,
    typer.Option("--multiline", help="Whether traces and indented lines are one record: auto or off (default auto)."),
]
StartsOption = Annotated[
    str | None,
    typer.Option(
        "--starts",
        metavar="REGEX",
        help="Regular expression of the first line of a record (default: --multiline decides).",
    ),
]
FlushMs = Annotated[
    int,
    typer.Option("--flush-ms", min=0, help="Milliseconds to wait for a further line of a record (default 1000)."),
]
LingerMs = Annotated[
    int,
    typer.Option(
        "--linger-ms",
        min=0,
        help="Milliseconds to follow a file that was renamed or stopped growing (default 60000).",
    ),
]
RecordMax = Annotated[
    int, typer.Option("--record-max", min=1_024, help="Bytes after which a record is cut (default 524288).")
]
LinesMax = Annotated[int, typer.Option("--lines-max", min=1, help="Lines after which a record ends (default 1000).")]


@with_shared_options
def ship(
    paths: Paths,
    topic: TopicOption = "logs",
    service: ServiceOption = None,
    host: HostOption = None,
    state: State = None,
    once: Annotated[bool, typer.Option("--once", help="Ship the lines that exist now, then end.")] = False,
    multiline: MultilineOption = Multiline.AUTO,
    starts: StartsOption = None,
    flush_ms: FlushMs = 1_000,
    linger_ms: LingerMs = 60_000,
    record_max: RecordMax = 524_288,
    lines_max: LinesMax = 1_000,
    reports: ReportOptions = NO_REPORTS,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print failures only.")] = False,
    cluster: Cluster = HERE,
) -> None:
    """Send lines of growing files to a topic until SIGTERM, exactly once, through rotation, truncation and restarts."""
    from ottla.ship.failures import ShipFailedError
    from ottla.ship.follow import Bounds
    from ottla.ship.runner import Shipping, Totals
    from ottla.ship.runner import ship as run
    from ottla.ship.state import default_directory

    shipping = Shipping(
        patterns=paths,
        topic=topic,
        settings=settings(cluster, record_max),
        state=state or default_directory(),
        host=host or socket.gethostname(),
        service=service,
        once=once,
        rule=rule_of(multiline, starts),
        bounds=Bounds(record_max=record_max, lines_max=lines_max, flush_ms=flush_ms, linger_ms=linger_ms),
    )
    allow_descriptors()
    stop, totals = Stop(), Totals()

    def connect() -> Client:
        return own_clients(shipping.settings, TIMEOUT_S)()

    with reporting(reports, "ship", topic, connect, reads=paths, writes=[topic]) as reporter:
        reporter.measures.append(lambda: measured(totals))
        try:
            run(shipping, say=(lambda text: None) if quiet else say, stopped=stop, totals=totals)
        except ShipFailedError as failed:
            raise CommandError(str(failed)) from None
        reporter.summary = sentence(totals)
    if not quiet:
        say(sentence(totals))


class Stop:
    """A callable that returns whether SIGTERM or SIGINT was received."""

    __slots__ = ("come",)

    def __init__(self) -> None:
        self.come = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.note)

    def note(self, number: int, frame: Any) -> None:
        self.come = True

    def __call__(self) -> bool:
        return self.come


def say(text: str) -> None:
    output.say(f"ottla ship: {text}", err=True)


def measured(totals: Totals) -> dict[str, float]:
    """The figures of a run for its reports."""
    figures = asdict(totals)
    return {"rows": figures.pop("records"), **figures}


def sentence(totals: Any) -> str:
    """The result of a run, as a sentence."""
    there = f" {counted(totals.already_there, 'record')} found in the topic already." if totals.already_there else ""
    open = f" {totals.unacknowledged} were not acknowledged and go out again." if totals.unacknowledged else ""
    return (
        f"{counted(totals.records, 'record')} acknowledged: {counted(totals.lines, 'line')}, "
        f"{counted(totals.bytes, 'byte')}, {counted(totals.files, 'new file')}.{there}{open}"
    )


def rule_of(multiline: Multiline, starts: str | None) -> Any:
    """A function that makes the rule for one file."""
    from ottla.ship.rules import Starts, Traces

    if starts is not None:
        pattern = starts.encode()
        try:
            re.compile(pattern)
        except re.error as error:
            raise CommandError(f"--starts {starts!r} is no regular expression: {error}.") from None
        return lambda: Starts(pattern)
    return Traces if multiline is Multiline.AUTO else lambda: None


def settings(cluster: Cluster, record_max: int) -> dict[str, Any]:
    """librdkafka's properties; the broker need not be available yet."""
    given = cluster.given_properties()
    larger = {"message.max.bytes": record_max + 65_536} if record_max > 900_000 else {}
    return {"bootstrap.servers": cluster.bootstrap, "client.id": "ottla-ship", "log_level": 2, **larger, **given}


def allow_descriptors() -> None:
    """Raise the limit of open files to the system's maximum for this process."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
