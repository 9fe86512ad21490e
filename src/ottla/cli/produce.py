"""`ottla produce`: one record per line of a file or of standard input.

It reads lines, key separators, headers, and the JSON that `ottla consume --format json` prints. However the command
ends, it reports how many records were acknowledged, and fails unless all were. Memory is bounded: librdkafka's queue
has a limit, and the command waits while it is full.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

import typer

from ottla.cli.connection import HERE, Cluster, client_properties, complete_topics, pairs
from ottla.cli.deliveries import Deliveries
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, UsageError, counted, say
from ottla.cli.printing import Shape
from ottla.cli.schemas import KeySchema, SchemaRegistry, ValueSchema, encoding

EPILOG = "Example: printf 'a:1\\nb:2\\n' | ottla produce clicks --key-separator : --compression zstd"


class Compression(StrEnum):
    """The compression codecs of batches."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@with_shared_options
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics, help="Topic to write to.")],
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="File to read, one record a line (default: standard input).")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of every record (default: none).")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator", "-K", help="Text between key and value of a line (default: a line is a value)."
        ),
    ] = None,
    null_value: Annotated[
        str | None,
        typer.Option("--null-value", help="Value to send as null, a tombstone (default: none)."),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header", "-H", metavar="KEY=VALUE", help="Header of every record; may be repeated (default: none)."
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Target partition (default: by key, otherwise round-robin)."),
    ] = None,
    format: Annotated[
        Shape, typer.Option("--format", help="Format of the lines: values, or the JSON of consume (default text).")
    ] = Shape.TEXT,
    key_schema: KeySchema = None,
    value_schema: ValueSchema = None,
    schema_registry: SchemaRegistry = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-z", help="Compression of batches (default none).")
    ] = Compression.NONE,
    acks: Annotated[
        str, typer.Option("--acks", help="Replicas that must have a record: 0, 1 or all (default all).")
    ] = "all",
    cluster: Cluster = HERE,
) -> None:
    """Produce one record per line. Without --input the lines come from standard input."""
    if key is not None and key_separator is not None:
        raise UsageError("Choose one of --key and --key-separator.")
    if format is Shape.JSON and (key_separator is not None or null_value is not None):
        raise UsageError("--key-separator and --null-value are for lines of text, not for --format json.")
    fixed: dict[str, Any] = {}
    headers = [(name, value.encode()) for name, value in pairs(header, "A header").items()]
    if headers:
        fixed["headers"] = headers
    if partition is not None:
        fixed["partition"] = partition
    if key is not None:
        fixed["key"] = key.encode()
    schemas = {name: text for name, text in (("key", key_schema), ("value", value_schema)) if text is not None}
    reader = partial(from_json, texts=schemas) if format is Shape.JSON else FromText(key_separator, null_value)
    settings = {"compression.type": compression.value, "acks": acks, "linger.ms": 5, **SPREAD}
    with ExitStack() as stack:
        given = lines(input, stack)
        if schemas:
            encode = encoding(cluster, schema_registry, schemas, stack)
            reader = Encoded(reader, encode)
            try:
                fixed = encode(fixed)
            except ValueError as wrong:
                raise UsageError(f"A record {wrong}") from None
        settings |= client_properties(cluster)
        send_all(Deliveries(settings), topic, given, reader, fixed)


SPREAD = {"sticky.partitioning.linger.ms": 0}
"""Distribute records without a key one by one; by default those of the same 10 ms go to the same partition."""


INTERRUPTED_S = 2.0
"""How long an interrupted command waits for records in flight."""


def send_all(deliveries: Deliveries, topic: str, given: Iterator[bytes], reader: Reader, fixed: dict[str, Any]) -> None:
    """Send one record per line, and always report how many were acknowledged. Raises CommandError unless all were."""
    stopped: CommandError | None = None
    try:
        try:
            send_lines(deliveries, topic, given, reader, fixed)
        except CommandError as failure:
            stopped = failure
        deliveries.finish()
    except KeyboardInterrupt:
        deliveries.finish(INTERRUPTED_S)
        say(f"ottla: interrupted: {so_far(deliveries)}", err=True)
        raise
    said = [str(stopped), "It and what follows it was not sent."] if stopped else []
    if deliveries.failure is not None:
        said += [so_far(deliveries), f"The first that was not is line {deliveries.failure[0]}: {deliveries.reason}"]
    elif stopped is not None:
        said.append(so_far(deliveries))
    if said:
        raise CommandError(" ".join(said))
    say(f"{counted(deliveries.acknowledged, 'record')} acknowledged.", err=True)


def send_lines(
    deliveries: Deliveries, topic: str, given: Iterator[bytes], reader: Reader, fixed: dict[str, Any]
) -> None:
    """Queue one record per line until one fails. Raises CommandError for an invalid line."""
    for number, line in enumerate(given, 1):
        try:
            record = reader(line)
        except ValueError as error:
            raise CommandError(f"Line {number} {error}") from None
        deliveries.send(topic, number, **(record | fixed))
        if deliveries.failure is not None:
            return


def so_far(deliveries: Deliveries) -> str:
    return f"{deliveries.acknowledged} of {deliveries.sent} records were acknowledged."


# ---- lines ---------------------------------------------------------------------------------------------------------


def lines(path: Path | None, stack: ExitStack) -> Iterator[bytes]:
    """The lines of a file or of standard input, without line ends; bytes, because a line need not be text.

    Raises CommandError if they cannot be read.
    """
    if path is None:
        return without_ends(sys.stdin.buffer, "Standard input")
    try:
        return without_ends(stack.enter_context(path.open("rb")), str(path))
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}.") from None


def without_ends(given: BinaryIO, name: str) -> Iterator[bytes]:
    try:
        for line in given:
            yield line.rstrip(b"\r\n")
    except OSError as error:
        raise CommandError(f"{name} cannot be read: {error.strerror}.") from None


Reader: TypeAlias = Callable[[bytes], dict[str, Any]]
"""The parts of a record in a line, as arguments for confluent-kafka. Raises ValueError with the rest of a sentence that
begins with the line's number."""


class FromText:
    """A line is a value, or a key, a separator and a value."""

    def __init__(self, key_separator: str | None, null_value: str | None) -> None:
        self._separator = key_separator.encode() if key_separator else None
        self._null = None if null_value is None else null_value.encode()

    def __call__(self, line: bytes) -> dict[str, Any]:
        if self._separator is None:
            return {"value": None if line == self._null else line}
        key, found, value = line.partition(self._separator)
        if not found:
            raise ValueError(f"holds no key separator {self._separator.decode()!r}.")
        return {"key": key, "value": None if value == self._null else value}


class Encoded:
    """Encodes the records of another reader by schemas."""

    def __init__(self, reader: Reader, encode: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._reader, self._encode = reader, encode

    def __call__(self, line: bytes) -> dict[str, Any]:
        return self._encode(self._reader(line))


def from_json(line: bytes, texts: Container[str] = ()) -> dict[str, Any]:
    """Parse an object with optional value, key, headers and timestamp; other fields, such as the record's origin, are
    ignored. Of `texts`, key and value, it returns the JSON itself."""

    def part(name: str) -> bytes | None:
        value = given.get(name)
        return json.dumps(value).encode() if name in texts and value is not None else as_bytes(value)

    try:
        given = json.loads(line)
        if not isinstance(given, dict):
            raise ValueError
        record: dict[str, Any] = {"value": part("value"), "key": part("key")}
        headers = [(str(name), as_bytes(value)) for name, value in given.get("headers") or ()]
        timestamp = given.get("timestamp")
        if timestamp is not None and not isinstance(timestamp, int):
            raise ValueError
    except (ValueError, TypeError, binascii.Error):
        raise ValueError("is no record in JSON, as `ottla consume --format json` prints it.") from None
    if headers:
        record["headers"] = headers
    if timestamp is not None and timestamp >= 0:
        record["timestamp"] = timestamp
    return record


def as_bytes(value: Any) -> bytes | None:
    """The inverse of `printing.plain` for bytes. Raises ValueError for any other value."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"], validate=True)
    raise ValueError
