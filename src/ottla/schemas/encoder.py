"""Encodes values that are given as JSON by the schemas of a registry, which it only reads.

A value that does not fit its schema is a sentence that names the field, and no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ottla.escaping import visible
from ottla.schemas.framing import Framed, MalformedError, numbered
from ottla.schemas.process import DecodingProcess
from ottla.schemas.registry import PROTOBUF, Bounds, Registry, Schema, SchemaUnavailableError, Version

TEXT_CHARS_MAX: Final = 1 << 20


class NotEncodedError(Exception):
    """A value cannot be encoded; the text is one sentence."""


class Chosen(NamedTuple):
    """The schema that a user wants: a version of a subject (None: the newest). `type` names a type of Protobuf in it
    ("": the first)."""

    subject: str
    version: int | None = None
    type: str = ""


class Encoded(NamedTuple):
    """A value with the id of its schema in front, and the schema: "Avro, schema 2, shop.User"."""

    data: bytes
    schema: str
    version: Version | None = None


class Encoder:
    """Encodes by the schemas of one registry, for any thread."""

    def __init__(self, registry: Registry, process: DecodingProcess) -> None:
        self._registry, self._process = registry, process

    def version(self, chosen: Chosen, bounds: Bounds) -> Version:
        """The version that is chosen now. Raises SchemaUnavailableError."""
        return self._registry.version(chosen.subject, chosen.version, bounds)

    def encoded(self, chosen: Chosen, text: str, bounds: Bounds, version: Version | None = None) -> Encoded:
        """A value of JSON in Confluent's format; of this version if it is known. Raises NotEncodedError."""
        try:
            version = version or self.version(chosen, bounds)
            schema = self._registry.schema(version.schema, bounds)
        except SchemaUnavailableError as unavailable:
            raise NotEncodedError(str(unavailable)) from None
        data, indexes, label = self._content(schema, chosen.type, text, bounds)
        return Encoded(numbered(version.schema, indexes) + data, label, version)

    def replaced(self, framed: Framed, text: str, bounds: Bounds) -> Encoded:
        """Another value of JSON for bytes that name their schema, with the same schema and type. Raises
        NotEncodedError."""
        try:
            schema = self._registry.schema(framed.schema, bounds)
            is_protobuf = schema.kind == PROTOBUF
            indexes, front = framed.message()[0] if is_protobuf else (), framed.front(is_protobuf=is_protobuf)
        except (SchemaUnavailableError, MalformedError) as unavailable:
            raise NotEncodedError(str(unavailable)) from None
        data, _, label = self._content(schema, indexes, text, bounds)
        return Encoded(front + data, label)

    def _content(
        self, schema: Schema, type: str | Sequence[int], text: str, bounds: Bounds
    ) -> tuple[bytes, Sequence[int] | None, str]:
        """The bytes without the id, the position of their type, and the schema. Raises NotEncodedError."""
        if len(text) > TEXT_CHARS_MAX:
            raise NotEncodedError(f"It has more than {TEXT_CHARS_MAX >> 20} million characters.")
        if type and isinstance(type, str) and schema.kind != PROTOBUF:
            raise NotEncodedError(f"Only schemas of Protobuf have several types, and this is {schema.label}.")
        done = self._process.encode(schema, type, text, bounds)
        if done.data is None:
            raise NotEncodedError(f"It does not fit {schema.label}: {visible(done.why)}.")
        return done.data, done.indexes, f"{schema.label}{done.name and ', ' + visible(done.name)}"
