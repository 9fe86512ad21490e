"""`ottla pipeline archive`: archive, verify, restore, compact, vacuum.

ottla.spark.archive does the work; this module has the options and prints the results.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import Output, complete_topics
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, counted, print_json, print_rows, say, say_lines
from ottla.cli.pipeline.options import (
    EVERY_TEN_SECONDS,
    ONE_JOB,
    JobOptions,
    PipelineOptions,
    absolute,
    one_of,
    plain_failures,
    reach,
    regex,
    session_of,
)
from ottla.cli.plans import DryRun, Execute, choose_one, tell_unchanged

if TYPE_CHECKING:
    from ottla.spark.archive.verification import Verdict

app = typer.Typer(
    help="Archive topics to a lake table, exactly once, and restore them.",
    epilog="Example: ottla pipeline archive --topic clicks --table ./lake/clicks --once",
    invoke_without_command=True,
)

Table = Annotated[str, typer.Option("--table", metavar="DIR", help="Directory of the archive.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", "-t", autocompletion=complete_topics, help="Topic of the archive; may be repeated (default: all)."
    ),
]


@app.callback()
@with_shared_options
def archive(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", autocompletion=complete_topics, help="Topic to archive; may be repeated."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--topics-matching", metavar="REGEX", help="Regular expression of the topics to archive, new ones too."
        ),
    ] = None,
    table: Annotated[str, typer.Option("--table", metavar="DIR", help="Directory of the table.")] = "",
    format: Annotated[
        str, typer.Option("--format", help="Format of a new table: delta or parquet (default delta).")
    ] = "delta",
    starting: Annotated[
        str, typer.Option("--starting", help="Where a new table begins: earliest or latest (default earliest).")
    ] = "earliest",
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Leave out records of aborted transactions.")
    ] = False,
    allow_loss: Annotated[
        bool,
        typer.Option("--allow-loss", help="Continue after records that the log has dropped before they were archived."),
    ] = False,
    batch_rows: Annotated[
        int,
        typer.Option(
            "--batch-rows", min=1, metavar="ROWS", help="Approximate limit of rows in a commit (default 4000000)."
        ),
    ] = 4_000_000,
    compression: Annotated[
        str, typer.Option("--compression", help="Compression: zstd, snappy, lz4 or none (default zstd).")
    ] = "zstd",
    running: PipelineOptions = EVERY_TEN_SECONDS,
) -> None:
    """Archive topics into a lake table until stopped, each record exactly once; or prove, restore and tidy up one."""
    if context.invoked_subcommand is not None:
        return
    require(table, "--table DIR")
    chosen = topics_of(topic, pattern)
    one_of(format, ("delta", "parquet"), "--format")
    one_of(starting, ("earliest", "latest"), "--starting")
    one_of(compression, ("zstd", "snappy", "lz4", "none"), "--compression")
    options = running.run_options()
    from ottla.spark.archive import run

    reads = topic or [f"topics matching {pattern}"]
    where = absolute(table)
    with (
        running.reported(options, "archive", where, reads=reads, writes=[where]) as (options, reporter),
        plain_failures(),
    ):
        archived = run(
            options,
            chosen,
            table,
            format=format,
            starting=starting,
            read_committed=read_committed,
            batch_rows=batch_rows,
            compression=compression,
            allow_loss=allow_loss,
        )
        reporter.summary = str(archived)
    say_lines(archived)


def topics_of(topics: list[str] | None, pattern: str | None) -> list[str] | re.Pattern[str]:
    if bool(topics) == bool(pattern):
        raise CommandError("Say what to archive: --topic NAME (again and again) or --topics-matching REGEX.")
    return topics or regex(pattern or "")


def require(value: str, option: str) -> None:
    if not value:
        raise CommandError(f"Say where the table is: {option}.")


@app.command(epilog="Example: ottla pipeline archive verify --table ./lake/clicks --content")
@with_shared_options
def verify(
    table: Table,
    topic: Topics = None,
    content: Annotated[bool, typer.Option("--content", help="Compare keys, values, headers and times too.")] = False,
    job: JobOptions = ONE_JOB,
    format: Output = Format.TABLE,
) -> None:
    """Prove for each partition that the table has every offset once, by its commits and the log. Exit code 1 if not."""
    options = job.run_options()
    with plain_failures():
        from ottla.spark.archive import open_table
        from ottla.spark.archive.verification import verify as prove

        lake = open_table(table)
    reach(options)
    with session_of("ottla-archive-verify", options) as session:
        verdict = prove(session, options, lake, topics=topic, content=content)
    print_verdict(verdict, format)


def print_verdict(verdict: Verdict, output: Format) -> None:
    """Print the figures, then one line; raises CommandError with the errors found."""
    if output is Format.JSON:
        partitions = [asdict(each) for each in verdict.partitions]
        print_json(
            {
                "partitions": partitions,
                "rows": verdict.rows,
                "compared": verdict.compared,
                "contents": verdict.contents,
                "problems": list(verdict.problems),
            }
        )
    else:
        print_rows(
            ("TOPIC", "PARTITION", "ARCHIVED", "LOG", "ROWS", "TWICE", "MISSING", "HOLES", "LOST", "GONE-FROM-LOG"),
            [row_of(each) for each in verdict.partitions],
            output,
        )
    if verdict.problems:
        shown = verdict.problems[:20]
        more = len(verdict.problems) - len(shown)
        raise CommandError("\n".join([str(verdict), *shown, *([f"And {more} more."] if more else [])]))
    if output is Format.TABLE:
        say_lines(verdict)


def row_of(one: Any) -> tuple[Any, ...]:
    log = None if one.log_first is None else f"{one.log_first}..{one.log_until}"
    figures = (one.rows, one.duplicates, one.missing, one.holes, one.lost, one.gone)
    return (one.topic, one.partition, f"{one.first}..{one.until}", log, *figures)


@app.command(epilog="Example: ottla pipeline archive restore --table ./lake/clicks --to-topic clicks-again")
@with_shared_options
def restore(
    table: Table,
    to_topic: Annotated[
        str,
        typer.Option(
            "--to-topic", autocompletion=complete_topics, help="Existing target topic with as many partitions."
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Topic to restore, if the archive has several (default: the only one)."),
    ] = None,
    offset_header: Annotated[
        str | None,
        typer.Option("--offset-header", metavar="NAME", help="Header for each record's old offset (default: none)."),
    ] = None,
    job: JobOptions = ONE_JOB,
) -> None:
    """Write an archived topic to a topic: same partitions, order, times and headers, each record once.

    After a kill, run the command again to complete it.
    """
    options = job.run_options()
    with plain_failures():
        from ottla.spark.archive import open_table
        from ottla.spark.archive import restore as write_back
        from ottla.spark.archive.restore import only_topic
        from ottla.spark.running.run import require_topics

        lake = open_table(table)
        topic = only_topic(lake, topic)
        require_topics(options, [to_topic])
    with session_of("ottla-archive-restore", options) as session:
        say_lines(write_back(session, options, lake, to_topic, topic=topic, offset_header=offset_header))


@app.command(epilog="Example: ottla pipeline archive compact --table ./lake/clicks")
def compact(
    table: Table,
    target_mb: Annotated[
        int, typer.Option("--target-mb", min=1, help="Approximate size of the new files in MB (default 128).")
    ] = 128,
) -> None:
    """Merge small files, also while the archive runs. `vacuum` then removes the old ones."""
    with plain_failures():
        from ottla.spark.archive import open_table

        removed, made = open_table(table).compact(target_mb << 20)
    say(f"Put {counted(removed, 'file')} together into {made}." if removed else "Nothing to put together.")


@app.command(epilog="Example: ottla pipeline archive vacuum --table ./lake/clicks --execute")
def vacuum(
    table: Table,
    hours: Annotated[
        float,
        typer.Option(
            "--hours",
            min=0,
            help="Hours for which unused files are kept, for readers and batches in progress (default 168).",
        ),
    ] = 168.0,
    execute: Execute = False,
    dry_run: DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Allow less than one hour; no archive may be running.")
    ] = False,
) -> None:
    """Remove files of killed batches and files that were merged; shows them unless --execute is given."""
    choose_one(execute, dry_run)
    if hours < 1 and execute and not force:
        raise CommandError(
            "Less than 1 hour may remove files of a batch in progress: --force confirms that no archive is running."
        )
    with plain_failures():
        from ottla.spark.archive import open_table

        found = open_table(table).vacuum(hours, dry_run=not execute)
    for path in found:
        say(path)
    say(f"{'Removed' if execute else 'Would remove'} {counted(len(found), 'file')}.")
    tell_unchanged(execute, Format.TABLE)
