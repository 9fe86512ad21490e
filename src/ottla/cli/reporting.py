"""Lets long-running commands report to a topic: their options, and the reports from their start to their end."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import complete_topics, named
from ottla.cli.output import say

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.reporting import Reporter

TOPIC = "ottla.reports"
"""The topic that readers use unless told otherwise; `client/reports.py` says the same, but it takes time to load."""
TIMEOUT_S = 5.0

ReportsFrom = Annotated[
    str,
    typer.Option(
        "--reports-from",
        autocompletion=complete_topics,
        callback=named,
        metavar="TOPIC",
        help=f"Topic of the reports of pipelines (default {TOPIC}).",
    ),
]
ReportsTo = Annotated[
    str | None,
    typer.Option(
        "--reports-to",
        envvar="OTTLA_REPORTS_TO",
        autocompletion=complete_topics,
        metavar="TOPIC",
        help=f"Topic for a report every 5 seconds, such as {TOPIC}; created if missing (default: none).",
    ),
]
ReportAs = Annotated[
    str | None,
    typer.Option(
        "--report-as", metavar="NAME", help="Name in the reports; one per pipeline (default KIND:SUBJECT@HOST)."
    ),
]


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Options of every command that reports."""

    reports_to: ReportsTo = None
    report_as: ReportAs = None


NO_REPORTS = ReportOptions()
_SECRET = re.compile(r"((?:password|secret|token|jaas|user\.info|key)[^=]*=).+", re.IGNORECASE | re.DOTALL)
_LOGIN = re.compile(r"(://)[^/@]*@")


def command_line(arguments: Sequence[str]) -> str:
    """The command that starts this process again, without secrets in it: reports are for all readers of their topic."""
    shown = [_LOGIN.sub(r"\1...@", _SECRET.sub(r"\1...", each)) for each in arguments]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(('ottla', *shown))}"


@contextmanager
def reporting(
    options: ReportOptions,
    kind: str,
    subject: str,
    connect: Callable[[], Client],
    *,
    reads: Sequence[str] = (),
    writes: Iterable[str | None] = (),
) -> Iterator[Reporter]:
    """Report on the command from here to its end, if it was asked to. `subject` tells pipelines of a kind apart."""
    from ottla.client.reporting import Reporter, about

    written = [each for each in writes if each]
    described = about(
        kind, subject, name=options.report_as, reads=reads, writes=written, command=command_line(sys.argv[1:])
    )
    with Reporter(connect, options.reports_to, described, say=lambda text: say(text, err=True)) as reporter:
        yield reporter
