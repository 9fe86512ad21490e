"""Decodes keys and values by the schemas of a registry, within bounds.

If a value cannot be decoded, the caller gets a sentence that says why, and shows the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final, NamedTuple

from ottla.escaping import visible
from ottla.schemas.encoder import Encoder
from ottla.schemas.framing import Framed, MalformedError
from ottla.schemas.nesting import is_too_deep
from ottla.schemas.process import Content, DecodingProcess, Reply
from ottla.schemas.registry import (
    JSON,
    PROTOBUF,
    Bounds,
    OutOfBoundsError,
    Registry,
    RegistrySettings,
    Schema,
    SchemaUnavailableError,
)

VALUE_BYTES_MAX: Final = 1 << 20
"""A longer key or value is not decoded."""
TOO_DEEP: Final = "It is nested too deep."
NEEDED: Final = ("fastavro", "google.protobuf", "grpc_tools", "jsonschema")


class Decoded(NamedTuple):
    """A key or value as JSON, and the schema that decoded it; or why it is not decoded. `is_late`: for want of time.

    The JSON is UTF-8, and not too deep (`nesting`) to be read and written again."""

    json: bytes | None
    schema: str
    why: str
    is_late: bool = False


class Decoder:
    """Decodes by the schemas of one registry, for any thread; `encoder` encodes by them."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._registry = Registry(settings)
        self._process = DecodingProcess()
        self.encoder = Encoder(self._registry, self._process)

    def close(self) -> None:
        self._process.close()

    def decoded(self, framed: Sequence[Framed | None], bounds: Bounds) -> list[Decoded | None]:
        """The decoded keys or values; None for one without a schema."""
        results: list[Decoded | None] = [None] * len(framed)
        by_schema: dict[int | str, list[int]] = {}
        for place, each in enumerate(framed):
            if each is not None and len(each.content) > VALUE_BYTES_MAX:
                results[place] = _undecoded(each, f"It has more than {VALUE_BYTES_MAX >> 20} MB.")
            elif each is not None:
                by_schema.setdefault(each.schema, []).append(place)
        for id, places in by_schema.items():
            wanted = [each for place in places if (each := framed[place]) is not None]
            for place, result in zip(places, self._of_schema(id, wanted, bounds), strict=True):
                results[place] = result
        return results

    def _of_schema(self, id: int | str, wanted: Sequence[Framed], bounds: Bounds) -> list[Decoded]:
        """The values of one schema."""
        try:
            bounds.require_time()
            schema = self._registry.schema(id, bounds)
        except SchemaUnavailableError as failure:
            is_late = isinstance(failure, OutOfBoundsError) and bounds.seconds_left <= 0
            return [Decoded(None, f"schema {id}", str(failure), is_late)] * len(wanted)
        if schema.kind == JSON:
            return [_of_json(schema, each) for each in wanted]
        results: list[Decoded] = []
        contents: list[Content] = []
        malformed: dict[int, str] = {}
        for place, each in enumerate(wanted):
            try:
                contents.append(Content(*each.message()) if schema.kind == PROTOBUF else Content((), each.content))
            except MalformedError as wrong:
                malformed[place] = str(wrong)
        replies = iter(self._process.decode(schema, contents, bounds))
        for place in range(len(wanted)):
            if place in malformed:
                results.append(Decoded(None, schema.label, malformed[place]))
            else:
                results.append(_of_reply(schema, next(replies)))
        return results


def missing_library() -> str | None:
    """The name of a library of the extra `schemas` that is not installed."""
    for name in NEEDED:
        try:
            if find_spec(name) is None:
                return name
        except ModuleNotFoundError:  # of the package above it
            return name
    return None


def _undecoded(framed: Framed, why: str) -> Decoded:
    return Decoded(None, f"schema {framed.schema}", why)


def _of_reply(schema: Schema, reply: Reply | None) -> Decoded:
    if reply is None:
        return Decoded(None, schema.label, "There was no time left to decode it.", is_late=True)
    if reply.json is None:
        why = visible(reply.why)
        return Decoded(None, schema.label, f"{why[:1].upper()}{why[1:]}.")
    return Decoded(reply.json.encode("utf-8", "replace"), f"{schema.label}, {visible(reply.name)}", "")


def _of_json(schema: Schema, framed: Framed) -> Decoded:
    """A value of a JSON Schema, which is text already; it is not checked against the schema."""
    try:
        why = TOO_DEEP if is_too_deep(json.loads(framed.content.decode())) else ""
    except RecursionError:
        why = TOO_DEEP
    except ValueError:
        why = "It is not JSON."
    return Decoded(None if why else framed.content, schema.label, why)
