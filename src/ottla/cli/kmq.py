"""`ottla kmq`: create, tracker, stats, redrive.

Operators' commands for queues with start and end markers (ottla.kmq). They need no Ottla node: any Kafka will do.
"""

from __future__ import annotations

import gc
import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import (
    HERE,
    Cluster,
    Output,
    address,
    client_properties,
    complete_groups,
    complete_topics,
    connect,
    named,
    own_clients,
    pairs,
    plain_errors,
)
from ottla.cli.existing import PARTITIONS_MAX, REPLICAS_MAX
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, counted, field, print_done, print_json, print_rows, say
from ottla.cli.plans import DryRun, Execute, Limit, MaxRecords, choose_one, tell_unchanged
from ottla.cli.reporting import NO_REPORTS, TIMEOUT_S, ReportOptions, reporting
from ottla.cli.times import parse_time, shown_time

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.kmq import KmqConfig
    from ottla.kmq.metrics import Tracking
    from ottla.kmq.redrive import Letter, Outcome

app = typer.Typer(
    help="Queues on any Kafka by start and end markers, compatible with softwaremill/kmq.", no_args_is_help=True
)

Queue = Annotated[
    str, typer.Argument(metavar="QUEUE", callback=named, autocompletion=complete_topics, help="Topic of the messages.")
]
Markers = Annotated[str, typer.Option("--markers", metavar="TOPIC", help="Markers topic (default QUEUE__markers).")]
DeadLetters = Annotated[
    str, typer.Option("--dead-letters", metavar="TOPIC", help="Dead-letter topic (default QUEUE__undelivered).")
]
Group = Annotated[
    str,
    typer.Option(
        "--group", "-g", autocompletion=complete_groups, help="Consumer group of the workers (default kmq-QUEUE)."
    ),
]
TrackerGroup = Annotated[
    str, typer.Option("--tracker-group", help="Consumer group of the trackers (default kmq-QUEUE-tracker).")
]
MaxRedeliveries = Annotated[
    int,
    typer.Option(
        "--max-redeliveries", min=0, help="Redeliveries after which a message becomes a dead letter (default 3)."
    ),
]
BackoffMs = Annotated[
    int, typer.Option("--backoff-ms", min=0, help="Milliseconds to wait before the first redelivery (default 0).")
]
BackoffMultiplier = Annotated[
    float,
    typer.Option(
        "--backoff-multiplier", min=1, help="Factor by which the back-off grows with each redelivery (default 2)."
    ),
]
BackoffMaxMs = Annotated[
    int, typer.Option("--backoff-max-ms", min=0, help="Longest back-off in milliseconds (default 300000).")
]
UseNowAfterMs = Annotated[
    int,
    typer.Option(
        "--use-now-after-ms",
        min=0,
        help="Milliseconds without a marker after which the tracker uses its own clock (default 1000).",
    ),
]
CountHeader = Annotated[
    str, typer.Option("--count-header", help="Header with the number of redeliveries (default kmq-redelivery-count).")
]
Metrics = Annotated[
    str | None,
    typer.Option("--metrics", metavar="HOST:PORT", help="Address at which to serve metrics (default: none)."),
]


@contextmanager
def refusals() -> Iterator[None]:
    """Turn KmqRefusedError and Kafka's errors into sentences."""
    from ottla.kmq import KmqRefusedError

    with plain_errors():
        try:
            yield
        except KmqRefusedError as refused:
            raise CommandError(str(refused)) from None


def config_of(queue: str, **settings: Any) -> KmqConfig:
    """The config, with KmqConfig's defaults for empty names."""
    from ottla.kmq import KmqConfig

    with refusals():
        return KmqConfig(queue=queue, **{name: value for name, value in settings.items() if value != ""})


@dataclass(frozen=True, slots=True)
class RedeliveryOptions:
    """Options of both trackers: the names of a queue, and how its messages are redelivered."""

    markers: Markers = ""
    dead_letters: DeadLetters = ""
    group: Group = ""
    tracker_group: TrackerGroup = ""
    max_redeliveries: MaxRedeliveries = 3
    backoff_ms: BackoffMs = 0
    backoff_multiplier: BackoffMultiplier = 2
    backoff_max_ms: BackoffMaxMs = 300_000
    use_now_after_ms: UseNowAfterMs = 1_000
    count_header: CountHeader = ""

    def config(self, queue: str, **settings: Any) -> KmqConfig:
        """The queue's config. Raises CommandError."""
        return config_of(
            queue,
            markers=self.markers,
            dead_letters=self.dead_letters,
            group_id=self.group,
            tracker_group_id=self.tracker_group,
            max_redeliveries=self.max_redeliveries,
            backoff_ms=self.backoff_ms,
            backoff_multiplier=self.backoff_multiplier,
            backoff_ms_max=self.backoff_max_ms,
            use_now_after_ms=self.use_now_after_ms,
            count_header=self.count_header,
            **settings,
        )


KIND = "kmq-tracker"
"""The kind of both trackers in their reports."""
BY_DEFAULT = RedeliveryOptions()
"""The defaults of both trackers."""


@app.command(epilog="Example: ottla kmq create jobs --partitions 4")
@with_shared_options
def create(
    queue: Queue,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=PARTITIONS_MAX, help="Partitions of the queue, if it is new (default 1)."
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            min=1,
            max=REPLICAS_MAX,
            help="Replicas of each new topic (default: the cluster's).",
        ),
    ] = None,
    markers: Markers = "",
    dead_letters: DeadLetters = "",
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Create the three topics of a queue, unless they exist: messages, markers, dead letters."""
    from ottla.kmq import create_topics
    from ottla.kmq.topics import differences

    config = config_of(queue, markers=markers, dead_letters=dead_letters)
    with refusals():
        admin = connect(cluster)
        differing = differences(admin, config, partitions=partitions, replication_factor=replication_factor)
        made = create_topics(admin, config, partitions=partitions or 1, replication_factor=replication_factor or -1)
    sentence = f"Created {', '.join(made)}." if made else "Nothing was missing."
    print_done(" ".join((sentence, *differing)), format, created=made, differs=differing)


@app.command(epilog="Example: ottla kmq tracker jobs --max-redeliveries 5 --backoff-ms 1000 --metrics 127.0.0.1:9200")
@with_shared_options
def tracker(
    queue: Queue,
    redelivery: RedeliveryOptions = BY_DEFAULT,
    open_max: Annotated[
        int,
        typer.Option("--open-max", min=1, help="Messages in work that are kept for each partition (default 200000)."),
    ] = 200_000,
    metrics: Metrics = None,
    reports: ReportOptions = NO_REPORTS,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log warnings only.")] = False,
    cluster: Cluster = HERE,
) -> None:
    """Redeliver messages that workers did not finish, until SIGTERM or SIGINT. Run two for fail-over."""
    from ottla.kmq import RedeliveryTracker

    config = redelivery.config(queue, open_max=open_max)
    gc.set_threshold(100_000, 20, 20)  # markers arrive in thousands, and none of them is cyclic garbage
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("ottla.kmq").setLevel(logging.WARNING if quiet else logging.INFO)
    with refusals():
        given = client_properties(cluster)

    def connect() -> Client:
        return own_clients(given, TIMEOUT_S)()

    topics = config.queue, config.dead_letters
    with reporting(reports, KIND, queue, connect, reads=[config.markers], writes=topics) as reporter, refusals():
        made = RedeliveryTracker(given, config)
        reporter.measures.append(lambda: {"rows": made.figures.markers_read, **measured(made)})
        with stopped_by_signals(made.stop), serving(made, metrics):
            made.run()


def measured(tracker: Tracking) -> dict[str, float]:
    """The figures of a tracker for its reports."""
    figures, partitions = tracker.figures, tracker.partitions
    due = [each.oldest_due_ms for each in partitions if each.oldest_due_ms is not None]
    return {
        "open_messages": sum(each.open for each in partitions),
        "overdue_ms": max(0, time.time_ns() // 1_000_000 - min(due)) if due else 0,
        "redelivered": figures.redelivered,
        "dead_lettered": sum(figures.dead_lettered.values()),
        "write_failures": figures.write_failures,
    }


@contextmanager
def stopped_by_signals(stop: Any) -> Iterator[None]:
    """On SIGTERM and SIGINT, stop cleanly: commit positions and leave the group."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda number, frame: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def serving(made: Any, where: str | None) -> Iterator[None]:
    """Serve metrics over HTTP meanwhile."""
    if where is None:
        yield
        return
    from ottla.kmq.metrics import serve_metrics
    from ottla.loopback import is_loopback

    host, port = address(where)
    if not is_loopback(host):
        say(f"Metrics at {where} can be read by other machines: they have neither TLS nor a password.", err=True)
    try:
        _, stop = serve_metrics(made, host, port)
    except OSError as error:
        raise CommandError(f"Metrics can't be served at {where}: {error.strerror or error}.") from None
    try:
        yield
    finally:
        stop()


@app.command(epilog="Example: ottla kmq stats jobs --format json")
@with_shared_options
def stats(
    queue: Queue,
    markers: Markers = "",
    dead_letters: DeadLetters = "",
    group: Group = "",
    tracker_group: TrackerGroup = "",
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show how many messages wait, are in work or overdue, and the number of dead letters."""
    from ottla.kmq import stats as kmq_stats
    from ottla.kmq.redrive import redrive_group

    config = config_of(
        queue, markers=markers, dead_letters=dead_letters, group_id=group, tracker_group_id=tracker_group
    )
    given = client_properties(cluster)
    with refusals():
        found = kmq_stats.standings(given, config)
        letters = kmq_stats.dead_letters(given, config, redrive_group(config))
    columns = ("QUEUE", "PARTITION", "WAITING", "OPEN", "OVERDUE", "OVERDUE-MS", "MARKERS-LAG")
    rows = [
        (queue, each.partition, each.waiting, each.open, each.overdue, each.overdue_ms, each.markers_lag)
        for each in found
    ]
    total, to_send = letters or (0, 0)
    if format is Format.JSON:
        partitions = [dict(zip(map(field, columns[1:]), row[1:], strict=True)) for row in rows]
        print_json({"queue": queue, "partitions": partitions, "dead_letters": total, "not_redriven": to_send})
        return
    print_rows(columns, rows, format)
    say(f"{config.dead_letters}: {counted(total, 'dead letter')}, {to_send} not read by a redrive.")


Partition = Annotated[
    int | None,
    typer.Option(
        "--partition", "-p", min=0, help="Redrive only dead letters of this partition of QUEUE (default: all)."
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(
        "--reason", help="Redrive only timed-out, failed, rejected or lost messages (default: all).", metavar="REASON"
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Redrive only dead letters at or after this time (default: all)."),
]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="Redrive only dead letters before this time (default: all)."),
]
Key = Annotated[str | None, typer.Option("--key", "-k", help="Redrive only messages with this key (default: all).")]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="NAME=VALUE",
        help="Redrive only messages with this header; may be repeated (default: all).",
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", min=0.001, help="Messages per second (default: unlimited).")]


@app.command(
    epilog="Example: ottla kmq redrive jobs --reason timed-out --since 2026-01-31T08:00:00Z --rate 100 --execute"
)
@with_shared_options
def redrive(
    queue: Queue,
    partition: Partition = None,
    reason: ReasonOption = None,
    since: Since = None,
    until: Until = None,
    key: Key = None,
    header: HeaderOption = None,
    most: MaxRecords = None,
    limit: Limit = None,
    rate: Rate = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    markers: Markers = "",
    dead_letters: DeadLetters = "",
    tracker_group: TrackerGroup = "",
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Send dead letters back to their partitions, each once; shows them unless --execute is given.

    They keep their headers, and get a new count.
    """
    from ottla.kmq.redrive import Choice, Redrive

    choose_one(execute, dry_run)
    config = config_of(queue, markers=markers, dead_letters=dead_letters, tracker_group_id=tracker_group)
    choice = Choice(
        partition=partition,
        reason=reason_of(reason),
        since_ms=None if since is None else parse_time(since),
        until_ms=None if until is None else parse_time(until),
        key=None if key is None else key.encode(),
        headers=tuple((name, value.encode()) for name, value in pairs(header, "A header").items()),
    )
    shown: list[tuple[Any, ...]] = []
    with (
        refusals(),
        Redrive(
            client_properties(cluster),
            config,
            choice,
            rate=rate,
            limit=most or limit,
            dry_run=not execute,
            on_letter=lambda letter: shown.append(row_of(letter)),
        ) as walk,
    ):
        outcome = walk.run()
    print_rows(("PARTITION", "OFFSET", "SOURCE", "KEY", "REASON", "DELIVERIES", "AT", "MESSAGE"), shown, format)
    if format is Format.TABLE:
        say(sentence_of(outcome, not execute), err=True)
    tell_unchanged(execute, format)
    if outcome.scattered:
        raise CommandError(
            f"Stopped early in partition {', '.join(map(str, outcome.scattered))} of {config.dead_letters}: the "
            "dead letters"
            " chosen are too scattered to remember which were sent. Send back some of those between them too, or all."
        )


def sentence_of(outcome: Outcome, dry_run: bool) -> str:
    did = "Would send" if dry_run else "Sent"
    lost = f" {outcome.lost} were lost: nothing to send." if outcome.lost else ""
    return f"{did} {outcome.sent} back, left {outcome.not_chosen}.{lost}"


def reason_of(text: str | None) -> Any:
    from ottla.kmq.events import Reason

    if text is None:
        return None
    try:
        return Reason(text)
    except ValueError:
        raise UsageError(f"{text!r} is no reason: expected {', '.join(each.value for each in Reason)}.") from None


def row_of(letter: Letter) -> tuple[Any, ...]:
    source = letter.source
    key = letter.key
    came = f"{source.topic}-{source.partition}@{source.offset}" if source.topic else None
    return (
        letter.partition,
        letter.offset,
        came,
        None if key is None else key.decode(errors="backslashreplace"),
        source.reason,
        source.delivery_count,
        shown_time(source.at_ms),
        source.text,
    )
