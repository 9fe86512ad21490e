"""Defines the options that all pipelines share, and converts them for the pipelines.

It does not import Spark until a pipeline runs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import HERE, Cluster, pairs
from ottla.cli.output import CommandError, UsageError
from ottla.cli.reporting import NO_REPORTS, ReportOptions, reporting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.client import Client
    from ottla.client.reporting import Reporter
    from ottla.spark.running.run import RunOptions

Master = Annotated[
    str | None,
    typer.Option(
        "--master", metavar="URL", help="Spark's master (default: the one of spark-defaults, otherwise local[*])."
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Directory of the progress (default TABLE/_checkpoint)."),
]
Once = Annotated[bool, typer.Option("--once", help="Process the records that exist now, then end.")]
Trigger = Annotated[
    float,
    typer.Option(
        "--trigger",
        min=0,
        metavar="SECONDS",
        help="Seconds between checks for new records (default 1 or 10, by pipeline).",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Setting of Spark; may be repeated (default: none)."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")]
Report = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="File of a page with charts, written at the end of the run (default: none).",
    ),
]
Title = Annotated[
    str, typer.Option("--title", metavar="TEXT", help="Title of the page (default: the pipeline's name).")
]
AllowLoss = Annotated[
    bool, typer.Option("--allow-loss", help="Continue after records that the log has dropped before they were read.")
]
Wait = Annotated[
    float | None,
    typer.Option(
        "--wait", min=0, metavar="SECONDS", help="Seconds to wait for a broker that is down (default: unlimited)."
    ),
]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of every command that runs a Spark job."""

    master: Master = None
    conf: Conf = None
    cluster: Cluster = HERE
    wait: Wait = None

    def run_options(self) -> RunOptions:
        """The options in the form for pipelines. Raises CommandError, also if PySpark is missing."""
        require_spark()
        from ottla.spark.running.run import RunOptions

        kafka = self.cluster.given_properties()
        return RunOptions(
            bootstrap=kafka.pop("bootstrap.servers", self.cluster.bootstrap),
            checkpoint=None,
            master=self.master,
            conf=pairs(self.conf, "A setting"),
            kafka=kafka,
            broker_wait_s=self.wait,
        )


ONE_JOB = JobOptions()


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """Options of every pipeline: it runs until it is stopped, or with `once` until all is done."""

    checkpoint: Checkpoint = None
    once: Once = False
    trigger: Trigger = 1.0
    job: JobOptions = ONE_JOB
    reports: ReportOptions = NO_REPORTS
    quiet: Quiet = False

    def run_options(self) -> RunOptions:
        """The options in the form for pipelines. Raises CommandError, also if PySpark is missing."""
        return replace(
            self.job.run_options(),
            checkpoint=self.checkpoint,
            once=self.once,
            trigger_s=self.trigger,
            quiet=self.quiet,
        )

    @contextmanager
    def reported(
        self,
        options: RunOptions,
        kind: str,
        subject: str,
        *,
        reads: Sequence[str] = (),
        writes: Iterable[str | None] = (),
    ) -> Iterator[tuple[RunOptions, Reporter]]:
        """Report on a pipeline from here to its end, if the user asked for it. Yields the options to run it with."""
        from ottla.spark.running.run import connection_of

        def connect() -> Client:
            return connection_of(options).connect()

        with reporting(self.reports, kind, subject, connect, reads=reads, writes=writes) as reporter:
            yield replace(options, reporter=reporter), reporter


def absolute(table: str) -> str:
    """The path of a table for reports, the same from every working directory."""
    from ottla.spark.platform.paths import local_path

    local = local_path(table)
    return table if local is None else str(local.absolute())


EVERY_SECOND = PipelineOptions()
EVERY_TEN_SECONDS = PipelineOptions(trigger=10.0)


def regex(text: str) -> re.Pattern[str]:
    """The compiled regular expression. Raises CommandError for an invalid one."""
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is no regular expression: {error}.") from None


def one_of(value: str, allowed: tuple[str, ...], option: str) -> None:
    if value not in allowed:
        raise UsageError(f"{option} must be one of {', '.join(allowed)}, not {value!r}.")


def reach(options: RunOptions) -> None:
    """Wait for a broker."""
    with plain_failures():
        from ottla.spark.running.run import wait_for_broker

        client = wait_for_broker(options)
        if client is not None:
            client.close()


NEVER_MISSING = {"", "ottla", *sys.stdlib_module_names}
"""Modules of Ottla and Python: a missing one is a bug. All other modules come with the extra `spark`."""

MISSING = 'Pipelines need {module}, which is not installed. `pip install ".[spark]"` in a clone of Ottla installs it.'


def require_spark() -> None:
    """Raise CommandError if PySpark is not installed."""
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise CommandError(MISSING.format(module="Spark"))


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turn the errors of a pipeline, of Spark and of a missing PySpark into sentences. A signal ends any Spark job in
    this context with KeyboardInterrupt."""
    from ottla.spark.platform.failures import OptionsRefusedError, PipelineFailedError, is_sparks, sentence, text_of
    from ottla.spark.reader.losses import ADVICE
    from ottla.spark.running.signals import ended_by_signals

    try:
        with ended_by_signals():
            yield
    except OptionsRefusedError as refused:
        raise UsageError(str(refused)) from refused
    except PipelineFailedError as failed:
        raise CommandError(str(failed)) from failed
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in NEVER_MISSING:
            raise
        raise CommandError(MISSING.format(module=error.name)) from error
    except Exception as error:
        if not is_sparks(error):
            raise
        text = text_of(error).replace(ADVICE, "run it again")
        raise CommandError(sentence("run", "of this run", text, "command")) from error


@contextmanager
def session_of(name: str, options: RunOptions) -> Iterator[SparkSession]:
    """A Spark session for one command, stopped at its end."""
    from ottla.spark.platform.session import pipeline_session

    with plain_failures():
        session = pipeline_session(name, master=options.master, conf=options.conf)
        try:
            yield session
        finally:
            session.stop()
