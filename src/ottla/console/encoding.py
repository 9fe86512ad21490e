"""Encodes keys and values that the user types by the schemas of a registry, for the forms that send records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from ottla.console.browsing.decoding import Decoding
from ottla.console.browsing.found import Found
from ottla.console.page import Context, Field, InputError
from ottla.escaping import visible
from ottla.schemas.encoder import Chosen, NotEncodedError
from ottla.schemas.framing import framed
from ottla.schemas.registry import Bounds, SchemaUnavailableError

KEY, VALUE = "key", "value"
PLAIN: Final = "Empty: no schema, and the text is sent as it is."
EDITED_CHARS_MAX: Final = 100_000
"""A longer key or value cannot be edited in a form."""


@dataclass(frozen=True, slots=True)
class Content:
    """A key or value to send. `schema` describes the schema that encoded it, "" without one; `options` name it on the
    command line."""

    data: bytes | None
    schema: str = ""
    options: tuple[str, ...] = ()


# ---- produce -------------------------------------------------------------------------------------------------------


def schema_fields(context: Context, topic: str, part: str) -> tuple[Field, ...]:
    """The fields that choose a schema: the subject of the topic if the registry has it. None without a registry."""
    if context.decoder is None:
        return ()
    subject, hint = f"{topic}-{part}", PLAIN
    if not context.form:  # afterwards the form has the values of the user
        try:
            newest = context.decoder.encoder.version(Chosen(subject), Bounds())
            hint = f"Version {newest.version} is the newest. The {part} is JSON then. {PLAIN}"
        except SchemaUnavailableError as unavailable:
            subject, hint = "", f"{unavailable} {PLAIN}"
    return (
        Field(f"{part}_subject", f"Subject of the {part}'s schema", value=subject, hint=hint),
        Field(f"{part}_version", f"Version of the {part}'s schema", "number", hint="Empty: the newest."),
        Field(f"{part}_type", f"Message type of the {part}", hint="For Protobuf. Empty: the first of the schema."),
    )


def typed(context: Context, part: str, text: str) -> Content:
    """A key or value as the form wants it: encoded by a schema, or else its bytes. Raises InputError."""
    form = context.form
    subject = form.get(f"{part}_subject", "").strip()
    if context.decoder is None or not subject:
        return Content(text.encode("utf-8", "surrogateescape"))
    version = form.get(f"{part}_version", "").strip()
    if version and not (version.isascii() and version.isdigit() and 0 < int(version[:10]) < 1 << 31):
        raise InputError("A version is a number from 1; empty for the newest.")
    chosen = Chosen(subject, int(version) if version else None, form.get(f"{part}_type", "").strip())
    try:
        done = context.decoder.encoder.encoded(chosen, text, Bounds())
    except NotEncodedError as refused:
        raise _refusal(part, refused) from None
    assert done.version is not None
    where = f"{visible(subject)} version {done.version.version}"
    return Content(done.data, f"{done.schema} ({where})", (f"--{part}-schema", f"{subject}:{done.version.version}"))


def _refusal(part: str, refused: NotEncodedError) -> InputError:
    return InputError(f"The {part} cannot be sent, and nothing was sent. {refused}")


# ---- send again ----------------------------------------------------------------------------------------------------


def edit_fields(context: Context, found: Found) -> tuple[Field, ...]:
    """The key and value of a record as fields, of those that can be edited as text."""
    texts = _texts(context, found)
    return tuple(
        Field(part, part.capitalize(), "textarea", text, hint=schema and f"As JSON; edited, {schema} encodes it again.")
        for part, (text, schema) in texts.items()
    )


def edited(context: Context, found: Found) -> dict[str, Content]:
    """The key and value of a record: its own bytes, or what the user has made of them, encoded with the same schema.
    Raises InputError."""
    record, texts = found.record, _texts(context, found)
    parts = {KEY: Content(record.key), VALUE: Content(record.value)}
    for part, own in parts.items():
        given = context.form.get(part)
        if given is None:
            continue
        if part not in texts:
            raise InputError(f"The {part} cannot be edited now: the schema registry gives no answer. Try again.")
        text = given.replace("\r\n", "\n")
        if text != texts[part][0]:
            parts[part] = _replaced(context, found, part, own.data, text)
    return parts


def _texts(context: Context, found: Found) -> dict[str, tuple[str, str]]:
    """The text of the key and value and its schema; without those that a form cannot carry."""
    of_key, of_value = Decoding(context.decoder).of([found])[0]
    texts: dict[str, tuple[str, str]] = {}
    for part, data, by_schema in ((KEY, found.record.key, of_key), (VALUE, found.record.value, of_value)):
        content = data if by_schema is None else by_schema.json
        if content is None or len(content) > 4 * EDITED_CHARS_MAX:
            continue
        try:
            text = content.decode()
        except UnicodeDecodeError:
            continue
        if by_schema is not None and data is not None and not data.endswith(content):  # JSON is left as it was written
            text = json.dumps(json.loads(text), ensure_ascii=False, indent=2)
        if len(text) <= EDITED_CHARS_MAX and "\r" not in text and "\0" not in text:
            texts[part] = text, "" if by_schema is None else by_schema.schema
    return texts


def _replaced(context: Context, found: Found, part: str, data: bytes | None, text: str) -> Content:
    """An edited key or value. Raises InputError."""
    by_schema = framed(data, found.record.headers, is_key=part == KEY)
    if by_schema is None or context.decoder is None:
        return Content(text.encode("utf-8", "surrogateescape"))
    try:
        done = context.decoder.encoder.replaced(by_schema, text, Bounds())
    except NotEncodedError as refused:
        raise _refusal(part, refused) from None
    return Content(done.data, done.schema)
