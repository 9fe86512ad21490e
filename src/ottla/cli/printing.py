"""Records as text or as one JSON object a line.

Knows messages of confluent-kafka and how kafka-console-consumer.sh prints them. Does not know where they come from.
"""

from __future__ import annotations

import base64
import json
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from confluent_kafka import Message

TIMESTAMP_TYPES = ("NoTimestampType", "CreateTime", "LogAppendTime")


class Shape(StrEnum):
    """How a record is shown."""

    TEXT = "text"
    JSON = "json"


class Columns:
    """Which parts of a record are shown in text beside its value."""

    __slots__ = ("headers", "keys", "offsets", "timestamps")

    def __init__(self, keys: bool, timestamps: bool, headers: bool, offsets: bool) -> None:
        self.keys = keys
        self.timestamps = timestamps
        self.headers = headers
        self.offsets = offsets


def as_json(message: Message) -> str:
    """A record as one line of JSON; bytes that are no UTF-8 text come as {"base64": ...}."""
    kind, timestamp = message.timestamp()
    return json.dumps(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp": timestamp,
            "timestamp_type": TIMESTAMP_TYPES[kind],
            "headers": [[name, plain(value)] for name, value in message.headers() or []],
            "key": plain(message.key()),
            "value": plain(message.value()),
        },
        ensure_ascii=False,
    )


def plain(value: bytes | str | None) -> str | dict[str, str] | None:
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def as_text(message: Message, shown: Columns) -> str:
    """A record as kafka-console-consumer.sh prints it: tabs between its parts, null for none."""
    parts: list[str] = []
    if shown.timestamps:
        kind, timestamp = message.timestamp()
        parts.append(f"{TIMESTAMP_TYPES[kind]}:{timestamp}")
    if shown.offsets:
        parts += [f"Partition:{message.partition()}", f"Offset:{message.offset()}"]
    if shown.headers:
        parts.append(",".join(f"{name}:{text(value)}" for name, value in message.headers() or []) or "NO_HEADERS")
    if shown.keys:
        parts.append(text(message.key()))
    return "\t".join((*parts, text(message.value())))


def text(value: bytes | str | None) -> str:
    if value is None:
        return "null"
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
