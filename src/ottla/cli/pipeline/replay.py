"""`ottla pipeline replay`: reads a range of topics again, from the log, an archive, or both.

It parses the ranges; ottla.spark.replay finds the records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import Output, complete_topics
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, counted, print_rows, say
from ottla.cli.pipeline.options import ONE_JOB, JobOptions, one_of, plain_failures, session_of
from ottla.cli.times import time_or_none

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from ottla.spark.archive import Table
    from ottla.spark.running.run import RunOptions

EPILOG = "Example: ottla pipeline replay -t clicks --table ./lake/clicks --from 2026-01-31 --to-topic clicks-again"
Edge = tuple[int | None, dict[tuple[str, int], int]]
"""A time in ms, or offsets per partition: at most one of the two."""


TopicOption = Annotated[
    list[str], typer.Option("--topic", "-t", autocompletion=complete_topics, help="Topic to read; may be repeated.")
]
TableOption = Annotated[
    str | None, typer.Option("--table", metavar="DIR", help="Archive of these topics (default: read the log only).")
]
ArchiveOnly = Annotated[bool, typer.Option("--archive-only", help="Read the archive only, and contact no broker.")]
Since = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="TIME|OFFSETS",
        help="Begin: ISO time, ms, PARTITION:OFFSET or JSON; may be repeated (default: first record).",
    ),
]
Until = Annotated[
    list[str] | None,
    typer.Option(
        "--until",
        metavar="TIME|OFFSETS",
        help="End, not included, in the same forms; may be repeated (default: last record).",
    ),
]
Where = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="SQL condition on the columns (default: all records).")
]
ToTable = Annotated[str | None, typer.Option("--to-table", metavar="DIR", help="New table to write the records to.")]
FormatOption = Annotated[
    str, typer.Option("--table-format", help="Format of the new table: delta or parquet (default delta).")
]
CountOption = Annotated[bool, typer.Option("--count", help="Count the records of each partition, and write nothing.")]
Staging = Annotated[
    str | None,
    typer.Option(
        "--staging",
        metavar="DIR",
        help="Directory of progress, to repeat --to-topic after a kill (default: none).",
    ),
]
AllowGaps = Annotated[bool, typer.Option("--allow-gaps", help="Leave out records that neither log nor archive holds.")]


@with_shared_options
def replay(
    topic: TopicOption,
    table: TableOption = None,
    archive_only: ArchiveOnly = False,
    since: Since = None,
    until: Until = None,
    where: Where = None,
    to_topic: Annotated[str | None, typer.Option("--to-topic", help="Topic to write the records to.")] = None,
    to_table: ToTable = None,
    format: FormatOption = "delta",
    count: CountOption = False,
    staging: Staging = None,
    allow_gaps: AllowGaps = False,
    output: Output = Format.TABLE,
    job: JobOptions = ONE_JOB,
) -> None:
    """Read a range of time or offsets again, each offset once.

    Each offset is read from the archive if the archive has it, otherwise from the log.
    """
    if sum((to_topic is not None, to_table is not None, count)) != 1:
        raise CommandError("Choose a target for the records: one of --to-topic NAME, --to-table DIR and --count.")
    one_of(format, ("delta", "parquet"), "--table-format")
    begin, end = edge(since, topic, "--from"), edge(until, topic, "--until")
    options = job.run_options()
    lake = prepared(options, topic, table, to_topic, to_table, archive_only)
    from ottla.spark.replay import replay as records

    with session_of("ottla-replay", options) as session:
        frame = records(
            session,
            None if archive_only else options.bootstrap,
            topic,
            archive=lake,
            since=begin[0],
            until=end[0],
            first=begin[1],
            end=end[1],
            kafka=options.kafka,
            allow_gaps=allow_gaps,
        )
        frame = chosen(frame, where)
        if count:
            print_counts(frame, output)
        elif to_table is not None:
            from ottla.spark.archive.export import export

            say(f"Wrote {counted(export(frame, to_table, format), 'record')} to {to_table}.")
        else:
            assert to_topic is not None
            wrote = counted(write_back(frame, options, to_topic, staging), "record")
            say(f"Wrote {wrote} to {to_topic}, counted there.")


def prepared(
    options: RunOptions,
    topics: Sequence[str],
    table: str | None,
    to_topic: str | None,
    to_table: str | None,
    archive_only: bool,
) -> Table | None:
    """The archive, after all checks that need no Spark: the archive may contain a topic that no longer exists. Raises
    Failure."""
    if archive_only and table is None:
        raise CommandError("Say which archive: --archive-only needs --table DIR.")
    with plain_failures():
        from ottla.spark.archive import open_table
        from ottla.spark.archive.export import require_new
        from ottla.spark.running.run import require_topics

        lake = None if table is None else open_table(table)
        if to_table is not None:
            require_new(to_table)
        wanted = [*(topics if lake is None else ()), *(() if to_topic is None else (to_topic,))]
        if wanted or not archive_only:
            require_topics(options, wanted)
    return lake


def edge(given: list[str] | None, topics: Sequence[str], option: str) -> Edge:
    """Parse --from or --until. Raises CommandError."""
    offsets: dict[tuple[str, int], int] = {}
    time_ms: int | None = None
    for text in given or ():
        time = time_or_none(text)
        place = re.fullmatch(r"(?:(.+)[-:])?(\d+):(\d+)", text)
        if time is not None and time_ms is not None:
            raise CommandError(f"{option} has two times: {text!r} is the second.")
        if time is not None:
            time_ms = time
        elif text.startswith("{"):
            offsets |= offsets_of(text, option)
        elif place is not None and (place[1] or len(topics) == 1):
            offsets[place[1] or topics[0], int(place[2])] = int(place[3])
        else:
            raise CommandError(
                f"{option} {text!r} is no time (2026-01-31T08:00:00Z, or ms since 1970) and no offset "
                "(PARTITION:OFFSET; "
                'with several topics TOPIC:PARTITION:OFFSET, or JSON {"clicks": {"0": 23}}).'
            )
    return time_ms, offsets


def offsets_of(text: str, option: str) -> dict[tuple[str, int], int]:
    try:
        found: dict[str, dict[str, Any]] = json.loads(text)
        return {(topic, int(part)): int(at) for topic, each in found.items() for part, at in each.items()}
    except (ValueError, TypeError, AttributeError):
        raise CommandError(f'{option} must look like {{"clicks": {{"0": 23}}}}, not {text}.') from None


def chosen(frame: DataFrame, where: str | None) -> DataFrame:
    if where is None:
        return frame
    from pyspark.errors import PySparkException

    from ottla.spark.platform.failures import reason

    try:
        return frame.where(where)
    except PySparkException as error:
        said = reason(str(error)).rstrip(".;")
        raise CommandError(f"--where {where!r} is no condition on the columns: {said}.") from None


def print_counts(frame: DataFrame, output: Format) -> None:
    """Print the records per partition; raises CommandError if an offset occurs twice."""
    from ottla.spark.archive.verification import seen_in

    seen = sorted(seen_in(frame).items())
    rows = [
        (topic, part, int(each.runs.first[0]), int(each.runs.until[-1]) - 1, each.rows, each.rows - each.runs.total)
        for (topic, part), each in seen
    ]
    print_rows(("TOPIC", "PARTITION", "FIRST", "LAST", "ROWS", "TWICE"), rows, output)
    if any(row[-1] for row in rows):
        raise CommandError("Some offsets came twice.")
    if output is Format.TABLE:
        total = counted(sum(row[4] for row in rows), "record")
        say(f"{total} in {counted(len(rows), 'partition')}, each offset once.")


def write_back(frame: DataFrame, options: RunOptions, topic: str, staging: str | None) -> int:
    """Write the records to a topic; returns how many it received."""
    import tempfile

    from ottla.spark.archive.restore import bounds_of, write_topic

    before = {place: end for place, (_, end) in bounds_of(options, topic).items()}
    with tempfile.TemporaryDirectory(prefix="ottla-replay-") as own:
        write_id = None if staging is None else "replay"
        write_topic(frame, options, topic, staging=staging or own, write_id=write_id)
    return sum(end - before[place] for place, (_, end) in bounds_of(options, topic).items())
