"""`ottla records`: delete records from the head of partitions."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import existing, resets
from ottla.cli.connection import (
    HERE,
    REQUEST_TIMEOUT_S,
    Cluster,
    Output,
    complete_topics,
    connect,
    named,
    plain_errors,
    wait,
)
from ottla.cli.options import with_shared_options
from ottla.cli.output import Format, print_rows

app = typer.Typer(help="Delete records.", no_args_is_help=True)

END = -1
"""In DeleteRecords: the high watermark."""


@app.callback()
def records() -> None:
    """Delete records."""


@app.command(epilog="Example: ottla records delete clicks --partition 0 --before 1000")
@with_shared_options
def delete(
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", callback=named, autocompletion=complete_topics, help="Name of the topic.")
    ],
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET", help="New first offset, or end for the end of the log.")
    ],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Partition to delete from; may be repeated (default: all)."),
    ] = None,
    internal: existing.Internal = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Delete every record before an offset; without --partition, in all partitions."""
    from confluent_kafka import TopicPartition

    offset = END if before == "end" else resets.parse_offset(before, "a number or end")
    if not internal:
        existing.refuse_internal([topic], "emptied")
    admin = connect(cluster)
    named = topic if partition is None else f"{topic}:{','.join(map(str, partition))}"
    chosen = resets.partitions(admin, [named], False, {})
    with plain_errors():
        asked = [TopicPartition(name, each, offset) for name, each in chosen]
        futures = admin.delete_records(asked, request_timeout=REQUEST_TIMEOUT_S)
        done = wait({f"{key.topic}:{key.partition}": future for key, future in futures.items()})
    rows = [(name, each, done[f"{name}:{each}"].low_watermark) for name, each in chosen]
    print_rows(("TOPIC", "PARTITION", "LOW-WATERMARK"), rows, format)
