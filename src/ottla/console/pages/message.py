"""Shows one record: key, value, headers and transaction; downloads them, and sends the record again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ottla.client.dead_letters import Letter, letter_of
from ottla.client.errors import BrokerError, ClientError
from ottla.console.browsing.decoding import Decoding
from ottla.console.browsing.filters import Filter
from ottla.console.browsing.found import Found
from ottla.console.browsing.scan import Scan
from ottla.console.encoding import KEY, VALUE, edit_fields, edited
from ottla.console.page import (
    Change,
    Context,
    Done,
    Download,
    Field,
    InputError,
    MissingError,
    Page,
    Preview,
    View,
    url,
)
from ottla.console.pages.messages import MessageRow, format_of, row_of
from ottla.console.producing import Wanted, append, preview_of
from ottla.console.reading import topic_of
from ottla.escaping import visible
from ottla.protocol.errors import ErrorCode

CHARS_MAX: Final = 200_000
SEND_BACK: Final = "Send back, on the page of the group's dead letters, sends it to its topic and counts it."


@dataclass(frozen=True, slots=True)
class Origin:
    """The share group of a dead letter, and where its record came from."""

    group: str
    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(View):
    """A record of a topic. `previous` is the address of the record before it, "" at the start. `origin`: None for a
    record that is no dead letter of a share group."""

    topic: str
    row: MessageRow
    origin: Origin | None
    leader_epoch: int
    format: str
    previous: str
    next: str


def found_at(context: Context) -> Found:
    """The record that the address names. Raises MissingError, and ClientError if it cannot be read."""
    name, partition, offset = context.need("topic"), context.number("partition", 0), context.number("offset", 0)
    topic = topic_of(context, name)
    if partition >= len(topic.partitions):
        raise MissingError(f"{visible(name)} has no partition {partition}.")
    scan = Scan(context.client, name, Filter(texts={}))
    scanned = scan.forwards({partition: offset}, {partition: offset + 1}, 1)
    if scanned.failure is not None and not is_out_of_range(scanned.failure):
        raise scanned.failure
    if not scanned.found:
        is_known = scanned.failure is not None or not scanned.troubles
        why = "It was deleted, compacted away, or not written yet." if is_known else scanned.troubles[0]
        raise MissingError(f"There is no record in {visible(name)}, partition {partition}, offset {offset}. {why}")
    return scanned.found[0]


def is_out_of_range(failure: ClientError) -> bool:
    return isinstance(failure, BrokerError) and failure.code == ErrorCode.OFFSET_OUT_OF_RANGE


def load(context: Context) -> Message:
    """The record that the address names."""
    found, format, name = found_at(context), format_of(context), context.need("topic")
    partition, offset = found.partition, found.record.offset
    consume = ("--partition", str(partition), "--offset", str(offset), "--max-records", "1", *context.consume_options)
    (decoded,) = Decoding(context.decoder).of([found])
    query, letter = dict(context.query), letter_of(partition, found.record)
    return Message(
        title=f"Message in {visible(name)}, partition {partition}, offset {offset}",
        command=context.command("consume", name, *consume),
        topic=name,
        row=row_of(found, format, decoded, CHARS_MAX, indent=True),
        origin=None
        if letter is None
        else Origin(letter.group, letter.topic, letter.source_partition, letter.source_offset),
        leader_epoch=found.leader_epoch,
        format=format,
        previous=url("/message", **(query | {"offset": offset - 1})) if offset else "",
        next=url("/message", **(query | {"offset": offset + 1})),
    )


def _file(context: Context, part: str) -> tuple[str, bytes]:
    found = found_at(context)
    content = found.record.key if part == "key" else found.record.value
    return f"{context.need('topic')}-{found.partition}-{found.record.offset}.{part}", content or b""


def copied_letter(found: Found) -> Letter | None:
    """The record as a dead letter that has a copy of the record that failed; None if it is not one."""
    letter = letter_of(found.partition, found.record)
    return None if letter is None or letter.is_bare else letter


def resend_fields(context: Context) -> Iterable[Field]:
    found = found_at(context)
    letter = copied_letter(found)
    target = context.need("topic") if letter is None else letter.topic
    partition = "" if letter is None else str(letter.source_partition)
    return (
        Field("target", "Topic", value=target, required=True),
        Field("partition", "Partition", "number", partition, hint="Empty: by the key, as Kafka's clients do."),
        *edit_fields(context, found),
    )


def resent(context: Context, found: Found) -> Wanted:
    """The key, value and headers for the topic of the form: the same, or as edited. Raises InputError."""
    if found.control:
        raise InputError("A control record cannot be sent.")
    target = context.form.get("target", "").strip()
    try:
        topic = topic_of(context, target)
    except MissingError as missing:
        raise InputError(str(missing)) from None
    parts, letter = edited(context, found), copied_letter(found)
    headers = found.record.headers if letter is None or target != letter.topic else letter.headers
    return Wanted.to(topic, context.form.get("partition", ""), parts, tuple(headers))


def resend_preview(context: Context) -> Preview:
    found = found_at(context)
    wanted, record = resent(context, found), found.record
    preview = preview_of(context, wanted, "Sends a copy of this record:")
    kept = [part for part, own in ((KEY, record.key), (VALUE, record.value)) if wanted.parts[part].data == own]
    letter = copied_letter(found)
    counted = () if letter is None else (f"The dead letter still counts as not sent back. {SEND_BACK}",)
    said = f"{' and '.join(kept).capitalize()} {'are' if kept[1:] else 'is'} sent byte for byte." if kept else ""
    return replace(
        preview,
        sentences=(*preview.sentences, *([said] if said else [])),
        warnings=("The copy gets a new offset and the present time.", *counted),
    )


def resend(context: Context) -> Done:
    """Append a copy of the record."""
    return append(context, resent(context, found_at(context)))


PAGE: Final = Page(
    name="message",
    path="/message",
    load=load,
    under="/messages",
    refresh_s=0,
    changes=(Change("resend", "Send it again", resend_preview, resend, resend_fields, is_destructive=False),),
    downloads=(
        Download("key", lambda context: _file(context, "key")),
        Download("value", lambda context: _file(context, "value")),
    ),
)
