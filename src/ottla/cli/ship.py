"""`ottla ship`: lines of files, as they come, to a topic.

Knows: arguments, signals. Does not know: files (ottla.ship).
"""

from __future__ import annotations

import re
import resource
import signal
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ottla.cli import output
from ottla.cli.connection import HERE, Cluster, complete_topics
from ottla.cli.options import with_shared_options
from ottla.cli.output import Failure, counted

EPILOG = "Example: ottla ship /var/log/nginx '/srv/*/logs/*.log' --topic logs"


class Multiline(StrEnum):
    """Which lines go on with the record before."""

    AUTO = "auto"
    OFF = "off"


@with_shared_options
def ship(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, directories, patterns as '*.log'.")],
    topic: Annotated[str, typer.Option("--topic", "-t", autocompletion=complete_topics)] = "logs",
    service: Annotated[str | None, typer.Option("--service", help="Whose lines these are (the file's name).")] = None,
    host: Annotated[str | None, typer.Option("--host", help="Where they come from (this machine's name).")] = None,
    state: Annotated[
        Path | None, typer.Option("--state", metavar="DIR", help="What was acknowledged (~/.local/state/ottla/ship).")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Ship what is there now, then end.")] = False,
    multiline: Annotated[
        Multiline, typer.Option("--multiline", help="Keep traces and indented lines together, or each line alone.")
    ] = Multiline.AUTO,
    starts: Annotated[
        str | None, typer.Option("--starts", metavar="REGEX", help="Records begin with lines like that, and no other.")
    ] = None,
    flush_ms: Annotated[
        int, typer.Option("--flush-ms", min=0, help="Wait so long for lines that go on with the last.")
    ] = 1_000,
    linger_ms: Annotated[
        int, typer.Option("--linger-ms", min=0, help="Follow a file so long after its name or its growth ended.")
    ] = 60_000,
    record_max: Annotated[int, typer.Option("--record-max", min=1_024, help="Bytes; what is longer is cut.")] = 524_288,
    lines_max: Annotated[int, typer.Option("--lines-max", min=1, help="Lines of one record.")] = 1_000,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but failures.")] = False,
    cluster: Cluster = HERE,
) -> None:
    """Ship lines of growing files until SIGTERM: through rotation, truncation, restarts; nothing lost or twice."""
    from ottla.ship.failures import ShipFailed
    from ottla.ship.follow import Bounds
    from ottla.ship.runner import Shipping
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
    stop = Stop()
    try:
        totals = run(shipping, say=(lambda text: None) if quiet else say, stopped=stop)
    except ShipFailed as failed:
        raise Failure(str(failed)) from None
    if not quiet:
        say(sentence(totals))


class Stop:
    """Called: whether SIGTERM or SIGINT has come."""

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


def sentence(totals: Any) -> str:
    """The counts of a run."""
    there = f" {counted(totals.already_there, 'record')} found in the topic already." if totals.already_there else ""
    open = f" {totals.unacknowledged} were not acknowledged and go out again." if totals.unacknowledged else ""
    return (
        f"{counted(totals.records, 'record')} acknowledged: {counted(totals.lines, 'line')}, "
        f"{counted(totals.bytes, 'byte')}, {counted(totals.files, 'new file')}.{there}{open}"
    )


def rule_of(multiline: Multiline, starts: str | None) -> Any:
    """Makes the rule for one file."""
    from ottla.ship.rules import Starts, Traces

    if starts is not None:
        pattern = starts.encode()
        try:
            re.compile(pattern)
        except re.error as error:
            raise Failure(f"--starts {starts!r} is no regular expression: {error}.") from None
        return lambda: Starts(pattern)
    return Traces if multiline is Multiline.AUTO else lambda: None


def settings(cluster: Cluster, record_max: int) -> dict[str, Any]:
    """librdkafka's; the broker need not be there yet."""
    given = cluster.given_properties()
    larger = {"message.max.bytes": record_max + 65_536} if record_max > 900_000 else {}
    return {"bootstrap.servers": cluster.bootstrap, "client.id": "ottla-ship", "log_level": 2, **larger, **given}


def allow_descriptors() -> None:
    """As many open files as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
