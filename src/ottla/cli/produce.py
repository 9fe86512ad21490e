"""`ottla produce`: one record per line of a file or of standard input.

Knows: lines, key separators, headers. Every record is acknowledged, or the command fails and says how many were.
Memory stays bounded: librdkafka's queue is, and the command waits while it is full.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import (
    HERE,
    Bootstrap,
    CommandConfig,
    Properties,
    client_properties,
    complete_topics,
    pairs,
    sentence,
)
from ottla.cli.output import Failure

if TYPE_CHECKING:
    from confluent_kafka import Producer

EPILOG = "Example: printf 'a:1\\nb:2\\n' | ottla produce clicks --key-separator : --compression zstd"

UNKNOWN_PARTITION = -1


class Compression(StrEnum):
    """What batches are compressed with."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)],
    input: Annotated[Path | None, typer.Option("--input", "-i", help="Read this file, not standard input.")] = None,
    key_separator: Annotated[str | None, typer.Option("--key-separator", "-K", help="What ends a line's key.")] = None,
    null_value: Annotated[
        str | None, typer.Option("--null-value", help="A value that means none: a tombstone.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", "-H", metavar="KEY=VALUE", help="On every record.")
    ] = None,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Else by key, or spread.")] = None,
    compression: Annotated[Compression, typer.Option("--compression", "-z")] = Compression.NONE,
    acks: Annotated[str, typer.Option("--acks", help="0, 1 or all.")] = "all",
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    properties: Properties = None,
) -> None:
    """Produce one record per line. Without --input the lines come from standard input."""
    from confluent_kafka import KafkaException, Producer

    headers = [(key, value.encode()) for key, value in pairs(header, "A header").items()]
    settings = client_properties(bootstrap, command_config, properties)
    settings = {"compression.type": compression.value, "acks": acks, "linger.ms": 5, **settings}
    try:
        producer = Producer(settings)
    except KafkaException as error:
        raise Failure(sentence(error.args[0])) from None
    deliveries = Deliveries()
    fields: dict[str, Any] = {"headers": headers or None}
    if partition is not None:
        fields["partition"] = partition
    with ExitStack() as stack:
        for key, value in records(lines(input, stack), key_separator, null_value):
            send(producer, topic, deliveries, key=key, value=value, **fields)
            if deliveries.failure is not None:
                break
        producer.flush()
    if deliveries.failure is not None:
        raise Failure(f"{deliveries.acknowledged} records were acknowledged, then: {sentence(deliveries.failure)}")
    print(f"{deliveries.acknowledged} records acknowledged.", file=sys.stderr)


class Deliveries:
    """How many records were acknowledged, and the first error."""

    __slots__ = ("acknowledged", "failure")

    def __init__(self) -> None:
        self.acknowledged = 0
        self.failure: Any = None

    def __call__(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        elif self.failure is None:
            self.failure = error


def lines(path: Path | None, stack: ExitStack) -> Iterator[bytes]:
    """The lines of a file or of standard input, without their ends; bytes, for a line need not be text."""
    if path is None:
        return (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    try:
        opened = stack.enter_context(path.open("rb"))
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}.") from None
    return (line.rstrip(b"\r\n") for line in opened)


def records(
    given: Iterator[bytes], key_separator: str | None, null_value: str | None
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """(key, value) of each line; raises Failure where a line has no key and ought to."""
    separator = key_separator.encode() if key_separator else None
    null = None if null_value is None else null_value.encode()
    for number, line in enumerate(given, 1):
        key: bytes | None = None
        value = line
        if separator is not None:
            key, found, value = line.partition(separator)
            if not found:
                raise Failure(f"Line {number} holds no key separator {key_separator!r}.")
        yield key, None if value == null else value


def send(producer: Producer, topic: str, deliveries: Deliveries, **record: Any) -> None:
    """Queue one record; wait while the queue is full."""
    from confluent_kafka import KafkaException

    while True:
        try:
            producer.produce(topic, on_delivery=deliveries, **record)
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)
        except KafkaException as error:
            raise Failure(sentence(error.args[0])) from None
