"""Prints records as text, as one JSON object a line, or by a format string.

The formats are those of kafka-console-consumer.sh and kcat.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.output import UsageError, json_text

if TYPE_CHECKING:
    from confluent_kafka import Message

    from ottla.client.share_member import Delivered
    from ottla.schemas.decoder import Decoded

TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")


class Shape(StrEnum):
    """How a record is shown."""

    TEXT = "text"
    JSON = "json"


class Columns(NamedTuple):
    """The parts of a record that the text format prints besides its value."""

    keys: bool
    timestamps: bool
    headers: bool
    offsets: bool


class Shown(NamedTuple):
    """A record to print. `timestamp_type` indexes TIMESTAMP_TYPES."""

    topic: str
    partition: int
    offset: int
    timestamp_type: int
    timestamp_ms: int
    headers: Sequence[tuple[str | bytes, str | bytes | None]]
    key: bytes | str | None
    value: bytes | str | None
    delivery_count: int | None = None
    """How often a share group has delivered it, including this delivery; None without a share group."""
    decoded_key: Decoded | None = None
    decoded_value: Decoded | None = None
    """Key and value as their schemas decode them; None for one without a schema."""


def of_message(message: Message) -> Shown:
    """A message of confluent-kafka."""
    place = str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)
    headers: Any = message.headers() or ()  # a list of pairs, despite the declared type
    return Shown(*place, *message.timestamp(), headers, message.key(), message.value())


def of_delivered(each: Delivered) -> Shown:
    """A record that a share group's member has acquired."""
    record = each.record
    place = each.topic, each.place[1], record.offset
    parts = each.timestamp_type + 1, record.timestamp_ms, record.headers, record.key, record.value
    return Shown(*place, *parts, each.delivery_count)


def printer(format: str, columns: Columns) -> Callable[[Shown], str]:
    """A function that formats a record, including the line end, as "text", "json", or a format string with %s and other
    fields. Raises UsageError for any other format."""
    if format == Shape.JSON:
        return lambda record: as_json(record) + "\n"
    if format == Shape.TEXT:
        return lambda record: as_text(record, columns) + "\n"
    return compiled(format)


def as_json(record: Shown) -> str:
    """A record as one line of JSON; bytes that are not UTF-8 text are {"base64": ...}."""
    delivered = {} if record.delivery_count is None else {"delivery_count": record.delivery_count}
    schemas = {"key_schema": record.decoded_key, "value_schema": record.decoded_value}
    return json_text(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp_ms,
            "timestamp_type": TIMESTAMP_TYPES[record.timestamp_type],
            "headers": [[plain(name), plain(value)] for name, value in record.headers],
            "key": content(record.key, record.decoded_key),
            "value": content(record.value, record.decoded_value),
            **{name: each.schema for name, each in schemas.items() if each is not None},
            **delivered,
        }
    )


def content(value: bytes | str | None, decoded: Decoded | None) -> Any:
    """The decoded value, or else the value itself."""
    return plain(value) if decoded is None or decoded.json is None else json.loads(decoded.json)


def plain(value: bytes | str | None) -> str | dict[str, str] | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def as_text(record: Shown, columns: Columns) -> str:
    """A record as kafka-console-consumer.sh prints it: tabs between its parts, `null` for a missing one."""
    parts: list[str] = []
    if columns.timestamps:
        parts.append(f"{TIMESTAMP_TYPES[record.timestamp_type]}:{record.timestamp_ms}")
    if columns.offsets:
        parts += [f"Partition:{record.partition}", f"Offset:{record.offset}"]
    if columns.headers:
        parts.append(",".join(f"{text(name)}:{text(value)}" for name, value in record.headers) or "NO_HEADERS")
    if columns.keys:
        parts.append(text(record.key, decoded=record.decoded_key))
    return "\t".join((*parts, text(record.value, decoded=record.decoded_value)))


def text(value: bytes | str | None, null: str = "null", decoded: Decoded | None = None) -> str:
    if value is None:
        return null
    if decoded is not None and decoded.json is not None:
        return decoded.json.decode("utf-8", "replace")
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


# ---- format strings ------------------------------------------------------------------------------------------------


FIELDS: dict[str, Callable[[Shown], str]] = {
    "t": lambda record: record.topic,
    "p": lambda record: str(record.partition),
    "o": lambda record: str(record.offset),
    "k": lambda record: text(record.key, "", record.decoded_key),
    "s": lambda record: text(record.value, "", record.decoded_value),
    "K": lambda record: str(size(record.key)),
    "S": lambda record: str(size(record.value)),
    "T": lambda record: str(record.timestamp_ms),
    "h": lambda record: ",".join(f"{text(name)}={text(value, '')}" for name, value in record.headers),
    "%": lambda record: "%",
}
"""kcat's fields: topic, partition, offset, key, value, sizes of key and value (-1: none), timestamp, headers."""

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\"}
PIECE = re.compile(r"%(?P<field>.?)|\\(?P<escape>.?)|[^%\\]+", re.DOTALL)


def size(value: bytes | str | None) -> int:
    return -1 if value is None else len(value.encode() if isinstance(value, str) else value)


def compiled(format: str) -> Callable[[Shown], str]:
    """A format string of kcat's as a function; raises UsageError for an unknown field."""
    if "%" not in format:
        raise UsageError(f"{format!r} is no format: expected text, json, or one like '%t %p %o %k %s\\n'.")
    pieces: list[Callable[[Shown], str]] = []
    for found in PIECE.finditer(format):
        field, escape, literal = found["field"], found["escape"], found[0]
        if field is not None:
            if field not in FIELDS:
                raise UsageError(f"{literal!r} in the format is no field: expected %{', %'.join(FIELDS)}.")
            pieces.append(FIELDS[field])
        else:
            literal = literal if escape is None else ESCAPES.get(escape, literal)
            pieces.append(lambda record, literal=literal: literal)
    return lambda record: "".join(piece(record) for piece in pieces)
