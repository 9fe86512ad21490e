"""`ottla transactions`: list, describe, find-hanging, abort.

Shows what kafka-transactions.sh shows, under its column names. A transaction is ended by its coordinator: `abort`
fences the producer. A hanging transaction, which no coordinator knows (KIP-664), gets an abort marker.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import HERE, Cluster, Output, client, complete_topics, named
from ottla.cli.existing import require_topics
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, print_done, print_rows
from ottla.cli.plans import DryRun, Execute, Yes, choose_one, confirm

if TYPE_CHECKING:
    from ottla.client import Client

app = typer.Typer(
    help="Show open transactions and their producers; find hanging ones; abort them.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="TRANSACTIONAL-ID", callback=named, help="Transactional id.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        autocompletion=complete_topics,
        help="Topic to search; may be repeated (default: all).",
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option("--state", metavar="STATE", help="State to list, such as Ongoing; may be repeated (default: all)."),
]
LongerThan = Annotated[
    int,
    typer.Option(
        "--longer-than-ms",
        min=0,
        max=2**63 - 1,
        metavar="MS",
        help="List only transactions that have been open for more milliseconds than this (default 0: all).",
    ),
]
STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead")
HANGING_COLUMNS = ("TOPIC", "PARTITION", "PRODUCER-ID", "EPOCH", "COORDINATOR-EPOCH", "START-OFFSET", "IDLE-MS")
ABORT_NAMES = "Name a transactional id, or --topic, --partition and --start-offset."
IDLE_MS_MIN = 900_000
"""A transaction written to within this time is not called hanging: coordinators allow open transactions for up to this
long."""


@app.command("list", epilog="Example: ottla transactions list --state Ongoing --longer-than-ms 60000")
@with_shared_options
def list_(
    states: States = None,
    longer_than_ms: LongerThan = 0,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """List the transactional ids that coordinators know, and their states."""
    from ottla.client.transactions import UNDER_WAY, list_transactions

    for state in states or ():
        if state not in STATES:
            raise UsageError(f"{state!r} is no state of a transaction: choose of {', '.join(STATES)}.")
    with client(cluster) as asked:
        found = list_transactions(asked, states or (), longer_than_ms=longer_than_ms or -1)
    rows = [
        (each.name, each.coordinator, each.producer_id, each.state)
        for each in found
        if not longer_than_ms or each.state in UNDER_WAY  # brokers measure ended transactions from their start
    ]
    print_rows(("TRANSACTIONAL-ID", "COORDINATOR (ID)", "PRODUCER-ID", "STATE"), rows, format)


@app.command(epilog="Example: ottla transactions describe payments")
@with_shared_options
def describe(
    name: Name,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Show the producer of a transaction, how long it has been open and the partitions that it writes to."""
    from ottla.client.transactions import UNDER_WAY

    with client(cluster) as asked:
        state = _described(asked, name)
    partitions = [f"{topic.topic}-{index}" for topic in state.topics for index in topic.partitions]
    open_ms = None
    if state.transaction_state in UNDER_WAY:
        open_ms = max(0, int(time.time() * 1000) - state.transaction_start_time_ms)
    columns = ("TRANSACTIONAL-ID", "PRODUCER-ID", "EPOCH", "STATE", "TIMEOUT-MS", "OPEN-MS", "PARTITIONS")
    row = (
        name,
        state.producer_id,
        state.producer_epoch,
        state.transaction_state,
        state.transaction_timeout_ms,
        open_ms,
        ",".join(sorted(partitions)),
    )
    print_rows(columns, [row], format)


def _described(asked: Client, name: str) -> Any:
    """The TransactionState of an existing transactional id."""
    from ottla.client import BrokerError
    from ottla.client.transactions import describe_transaction

    try:
        return describe_transaction(asked, name)
    except BrokerError as answer:
        if answer.name != "TRANSACTIONAL_ID_NOT_FOUND":
            raise
        raise CommandError(
            f"There is no transactional id {name}. `ottla transactions list` shows the existing ones."
        ) from None


@app.command(epilog="Example: ottla transactions find-hanging --topic orders")
@with_shared_options
def find_hanging(
    topics: Topics = None,
    idle_ms: Annotated[
        int,
        typer.Option(
            "--idle-ms",
            min=0,
            metavar="MS",
            help="Milliseconds without a write after which a transaction may hang (default 900000).",
        ),
    ] = IDLE_MS_MIN,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Find transactions that block readers and that no coordinator will end."""
    from ottla.client.transactions import hanging, open_transactions

    with client(cluster) as asked:
        there = [each.name for each in asked.topics()]
        require_topics(topics or [], there)
        now = int(time.time() * 1000)
        looked_at = dict.fromkeys(topics or there)
        opened = [each for each in open_transactions(asked, looked_at) if now - each.last_ms >= idle_ms]
        found = hanging(asked, opened)
    rows = [
        (
            each.topic,
            each.partition,
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.start_offset,
            now - each.last_ms,
        )
        for each in found
    ]
    print_rows(HANGING_COLUMNS, rows, format)


@app.command(epilog="Example: ottla transactions abort payments --yes")
@with_shared_options
def abort(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRANSACTIONAL-ID]", callback=named, help="Transactional id whose open transaction is aborted."
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            autocompletion=complete_topics,
            help="Topic of the transaction, instead of a transactional id.",
        ),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, metavar="N", help="Partition of the transaction.")
    ] = None,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, help="First offset of the transaction, as find-hanging shows it."),
    ] = None,
    execute: Execute = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Abort an open transaction: by its transactional id, or by its topic, partition and offset.

    If a coordinator knows the transaction, this fences its producer: a producer that is still running can neither write
    nor commit until you restart it. The command asks for confirmation first, unless you pass --yes. A hanging
    transaction, which no coordinator knows, gets an abort marker in this one partition. By topic, partition and offset
    the command only shows what it would do, unless --execute is given.
    """
    from ottla.client.transactions import OpenTransaction, abort_transaction, coordinated, open_transactions

    choose_one(execute, dry_run)
    if name is not None:
        if topic is not None or partition is not None or start_offset is not None:
            raise UsageError(ABORT_NAMES)
        with client(cluster) as asked:
            _fence(asked, _described(asked, name), yes=yes, dry_run=dry_run, format=format)
        return
    if topic is None or partition is None or start_offset is None:
        raise UsageError(ABORT_NAMES)
    with client(cluster) as asked:
        require_topics([topic], (each.name for each in asked.topics()))
        found: OpenTransaction | None = None
        for each in open_transactions(asked, [topic]):
            if (each.partition, each.start_offset) == (partition, start_offset):
                found = each
        if found is None:
            raise CommandError(f"No transaction is open in {topic}-{partition} since offset {start_offset}.")
        state = coordinated(asked, [found]).get(found)
        if state is not None:
            _fence(asked, state, yes=yes, dry_run=not execute, format=format)
            return
        if execute:
            abort_transaction(asked, found)
    done = "Aborted" if execute else "Would abort, with --execute,"
    whose = f"the transaction of producer {found.producer_id} in {topic}-{partition} since offset {start_offset}"
    print_done(f"{done} {whose}.", format, topic=topic, partition=partition, aborted=execute)


def _fence(asked: Client, state: Any, *, yes: bool, dry_run: bool, format: Format) -> None:
    """Abort the transaction of an id that its coordinator knows, unless it is already committing or aborting."""
    from ottla.client.transactions import fence_producer

    name, now_ms = state.transactional_id, int(time.time() * 1000)
    if state.transaction_state != "Ongoing":
        raise CommandError(f"{name} has no open transaction: it is in state {state.transaction_state}.")
    open_ms = max(0, now_ms - state.transaction_start_time_ms)
    left_ms = max(0, state.transaction_timeout_ms - open_ms)
    whose = f"the transaction of {name} (producer {state.producer_id}, epoch {state.producer_epoch})"
    if dry_run:
        sentence = f"Would abort {whose} and fence its producer."
    else:
        confirm(
            f"Abort {whose}, open for {open_ms // 1000} s? Its coordinator aborts it by itself in {left_ms // 1000} s. "
            "If its producer is alive, it is fenced: it has to be restarted.",
            yes,
        )
        fence_producer(asked, name, state.transaction_timeout_ms)
        sentence = f"Aborted {whose} and fenced its producer."
    print_done(sentence, format, transactional_id=name, producer_id=state.producer_id, aborted=not dry_run)
