"""`ottla consume`: records of topics to standard output, as text or one JSON object a line.

Knows: where to begin, when to stop, how a record is shown. With --group the positions are the group's and are
committed as records are printed; without it nothing is left behind on the cluster. With --share each record is
acknowledged by itself (consume_share.py).
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import (
    HERE,
    Bootstrap,
    CommandConfig,
    Properties,
    client_properties,
    complete_groups,
    complete_share_groups,
    complete_topics,
    plain_errors,
    sentence,
)
from ottla.cli.consume_share import Acknowledging, ShareReading, consume_share
from ottla.cli.output import Failure
from ottla.cli.printing import Columns, Shape, Shown, of_message, printer

if TYPE_CHECKING:
    from confluent_kafka import Consumer

EPILOG = "Example: ottla consume clicks --from-beginning -n 10 --format json --exit-at-end"

POLL_S = 0.2


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)],
    group: Annotated[str | None, typer.Option("--group", "-g", autocompletion=complete_groups, help="Join it.")] = None,
    share: Annotated[
        str | None, typer.Option("--share", "-s", autocompletion=complete_share_groups, help="Join this share group.")
    ] = None,
    ack: Annotated[
        Acknowledging | None, typer.Option("--ack", help="What becomes of records that --share printed.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", "-f", help="Where there is no position yet.")
    ] = False,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="This one of one topic.")] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", "-o", metavar="N", help="earliest, latest, N, or -N: the last N. With -p.")
    ] = None,
    records: Annotated[int | None, typer.Option("--max-records", "-n", min=1, help="Stop after so many.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Stop when idle.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", "-e", help="Stop at the end of every partition.")
    ] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Show keys in text.")] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Show timestamps in text.")] = False,
    headers: Annotated[bool, typer.Option("--headers", help="Show headers in text.")] = False,
    offsets: Annotated[bool, typer.Option("--offsets", help="Show partition and offset in text.")] = False,
    format: Annotated[
        str,
        typer.Option("--format", metavar="text|json|FORMAT", help="Or kcat's: '%t %p %o %k %s\\n', with %T %h %K %S."),
    ] = Shape.TEXT,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    properties: Properties = None,
) -> None:
    """Print records as they arrive, until interrupted, or until -n, --timeout or --exit-at-end says so."""
    from confluent_kafka import Consumer

    shown = printer(format, Columns(keys, timestamps, headers, offsets))
    if share is not None:
        if group is not None or partition is not None or exit_at_end:
            raise Failure("--share goes without --group, --partition and --exit-at-end.")
        given = client_properties(bootstrap, command_config, properties)
        acked = ack or Acknowledging.ACCEPT
        count = consume_share(given, ShareReading(share, topics, acked, from_beginning, shown, records, timeout))
        print(f"{count} records.", file=sys.stderr)
        return
    if ack is not None:
        raise Failure("--ack is for --share.")
    if partition is not None and (len(topics) != 1 or group is not None):
        raise Failure("--partition is for one topic, without --group.")
    if offset is not None and partition is None:
        raise Failure("--offset is for one partition: name it with --partition.")
    settings = {
        "group.id": group or f"ottla-consume-{uuid.uuid4().hex[:12]}",
        "auto.offset.reset": "earliest" if from_beginning else "latest",
        "enable.auto.commit": group is not None,
        "enable.partition.eof": exit_at_end,
        "enable.auto.offset.store": False,
        **client_properties(bootstrap, command_config, properties),
    }
    with plain_errors():
        consumer = Consumer(settings)
        try:
            place(consumer, topics, group, partition, offset, from_beginning)
            count = print_records(consumer, shown, records, timeout, exit_at_end)
        finally:
            consumer.close()
    print(f"{count} records.", file=sys.stderr)


def place(
    consumer: Consumer, topics: list[str], group: str | None, partition: int | None, offset: str | None, earliest: bool
) -> None:
    """Subscribe as a member of the group; without one, take every partition, or the one that was named."""
    from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

    known = {name: consumer.list_topics(name, timeout=30).topics.get(name) for name in topics}
    absent = [name for name, topic in known.items() if topic is None or topic.error is not None]
    if absent:
        raise Failure(f"There is no topic {', '.join(absent)}.")
    if group is not None:
        consumer.subscribe(topics)
        return
    start = OFFSET_BEGINNING if earliest else OFFSET_END
    if partition is None:
        chosen = [
            TopicPartition(name, each, start) for name, topic in known.items() if topic for each in topic.partitions
        ]
    else:
        topic = known[topics[0]]
        if topic is None or partition not in topic.partitions:
            raise Failure(f"{topics[0]} has no partition {partition}.")
        chosen = [TopicPartition(topics[0], partition, start)]
        if offset is not None:
            chosen[0].offset = position(consumer, chosen[0], offset)
    consumer.assign(chosen)


def position(consumer: Consumer, partition: Any, text: str) -> int:
    """The offset that earliest, latest, N or -N means in this partition."""
    low, high = consumer.get_watermark_offsets(partition, timeout=30)
    if text in ("earliest", "latest"):
        return low if text == "earliest" else high
    try:
        number = int(text)
    except ValueError:
        raise Failure(f"{text!r} is no offset: expected earliest, latest, N or -N.") from None
    return max(low, high + number) if text.startswith("-") else number


def print_records(
    consumer: Consumer, shown: Callable[[Shown], str], most: int | None, timeout: float | None, exit_at_end: bool
) -> int:
    """Print records until it is time to stop, and say how many there were."""
    from confluent_kafka import KafkaError, KafkaException

    count, last, ended = 0, time.monotonic(), set[tuple[str, int]]()
    while most is None or count < most:
        message = consumer.poll(POLL_S)
        if message is None:
            sys.stdout.flush()
            if timeout is not None and time.monotonic() - last >= timeout:
                break
            continue
        error = message.error()
        place = (str(message.topic()), int(message.partition() or 0))
        if error is None:
            ended.discard(place)
            sys.stdout.write(shown(of_message(message)))
            consumer.store_offsets(message)
            count, last = count + 1, time.monotonic()
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(place)
            if exit_at_end and ended >= {(each.topic, each.partition) for each in consumer.assignment()}:
                break
        elif error.fatal() or not error.retriable():
            raise KafkaException(error)
        else:
            print(sentence(error), file=sys.stderr)
    sys.stdout.flush()
    return count
