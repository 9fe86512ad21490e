"""Appends one record to a topic, for the forms of the pages of messages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from ottla.client.errors import ClientError
from ottla.console.browsing.partitioner import partition_of
from ottla.console.encoding import KEY, VALUE, Content
from ottla.console.page import Context, Done, InputError, Preview, url
from ottla.doctor.words import size
from ottla.escaping import visible
from ottla.protocol.records import Record, build_batch

HEADERS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """A record to append, and where."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[Any, bytes | None], ...]
    parts: Mapping[str, Content]

    @classmethod
    def to(
        cls,
        topic: Any,
        partition: str,
        parts: Mapping[str, Content],
        headers: tuple[tuple[Any, bytes | None], ...],
    ) -> Self:
        """A record for a topic of a metadata answer. An empty partition is chosen by the key. Raises InputError."""
        count, key, value = len(topic.partitions), parts[KEY].data, parts[VALUE].data
        text = partition.strip()
        if text and not (text.isascii() and text.isdigit() and int(text[:9]) < count):
            raise InputError(f"{visible(topic.name)} has the partitions 0 to {count - 1}.")
        chosen = int(text) if text else partition_of(key, count) if key is not None else 0
        return cls(topic.name, chosen, key, value, headers, parts)

    @property
    def size(self) -> int:
        parts = [self.key, self.value, *(value for _, value in self.headers)]
        return sum(len(each) for each in parts if each is not None)


def headers_in(text: str) -> tuple[tuple[str, bytes], ...]:
    """The headers of a form: one a line, name=value. Raises InputError."""
    found: list[tuple[str, bytes]] = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.strip() and (not equals or not name):
            raise InputError(f"A header is name=value, not {visible(line)[:40]!r}.")
        if line.strip():
            found.append((name, value.encode("utf-8", "surrogateescape")))
    if len(found) > HEADERS_MAX:
        raise InputError(f"A record has at most {HEADERS_MAX} headers here.")
    return tuple(found)


def preview_of(context: Context, wanted: Wanted, verb: str) -> Preview:
    """Describes the record and its place."""
    kind = "a tombstone" if wanted.value is None else "one record"
    where = f"partition {wanted.partition} of {visible(wanted.topic)}"
    encoded = {part: each for part, each in wanted.parts.items() if each.schema}
    options = [word for each in encoded.values() for word in each.options]
    options += context.registry_options if options else ()
    return Preview(
        wanted.topic,
        (
            f"{verb} {kind} of {size(wanted.size)} to {where}. Every group that reads the topic gets it.",
            *(f"The {part} is encoded by {each.schema}." for part, each in encoded.items()),
        ),
        facts=[each.schema for each in encoded.values()],
        command=context.command("produce", wanted.topic, "--partition", str(wanted.partition), *options),
    )


def append(context: Context, wanted: Wanted) -> Done:
    """Append the record now. Raises ClientError."""
    record = Record(0, int(time.time() * 1000), wanted.key, wanted.value, wanted.headers)
    appended = context.client.produce_raw(wanted.topic, wanted.partition, bytes(build_batch([record])))
    if appended is None:
        raise ClientError("The leader sent no answer.")
    offset = appended.base_offset
    target = url("/message", topic=wanted.topic, partition=wanted.partition, offset=offset)
    details = {"topic": wanted.topic, "partition": wanted.partition, "offset": offset, "bytes": wanted.size}
    return Done(
        f"Appended offset {offset} to partition {wanted.partition} of {visible(wanted.topic)}.", target, details
    )
