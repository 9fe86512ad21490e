"""Decodes and encodes values in a process of its own: requests on standard input, one answer a value on its output.

A schema or a value may be made to break its reader: a few bytes can stand for an array of a billion elements, or for
nesting that overflows the stack. Here that costs a bounded amount of memory and CPU time, and at worst this process.

A request is a line of JSON: the key of a schema, the schema unless it was sent before, and the `values` to decode, in
base64, or the `texts` to encode, in JSON. For Protobuf each has the position of its type, or a text its name. An answer
is a line of JSON: the decoded value as `json`, or the encoded one as `data` and `indexes`, and the `name` of its type;
or the reason why there is none as `why`.
"""

from __future__ import annotations

import base64
import json
import resource
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.schemas.avro import Avro
from ottla.schemas.nesting import is_too_deep
from ottla.schemas.protobuf import Protobuf
from ottla.schemas.registry import JSON, PROTOBUF

if TYPE_CHECKING:
    from ottla.schemas.json_schema import JsonSchema

Parsed: TypeAlias = "Avro | Protobuf | JsonSchema"
JSON_MODULE: Final = "ottla.schemas.json_schema"
MEMORY_BYTES: Final = 512 << 20
CPU_S: Final = 1.0
"""CPU seconds for one value, with its schema if that is new. Then the system ends the process."""
TEXT_CHARS_MAX: Final = 4 << 20
WHY_CHARS_MAX: Final = 300


class Schemas:
    """The schemas that were sent, parsed when a value first needs them."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[str, Any]] = {}
        self._parsed: dict[str, Parsed | str] = {}

    def add(self, key: str, schema: dict[str, Any]) -> None:
        if schema["kind"] == JSON:
            import_module(JSON_MODULE)  # here, because it may take more CPU time than a value has
        self._sent[key] = schema

    def parsed(self, key: str) -> Parsed:
        """The schema. Raises ValueError for one that cannot be used."""
        if key not in self._parsed:
            sent = self._sent.pop(key)
            try:
                self._parsed[key] = _kind(sent["kind"])(sent["text"], sent["references"])
            except (Exception, RecursionError) as wrong:
                self._parsed[key] = f"the schema cannot be used: {reason(wrong)}"
        found = self._parsed[key]
        if isinstance(found, str):
            raise ValueError(found)
        return found


def _kind(name: str) -> Any:
    """The class of a kind of schemas."""
    if name == JSON:
        return import_module(JSON_MODULE).JsonSchema
    return Protobuf if name == PROTOBUF else Avro


def _refuse(constant: str) -> None:
    raise ValueError(f"JSON has no {constant}")


def encoded(schemas: Schemas, key: str, type: str | list[int], text: str) -> dict[str, Any]:
    """The bytes of a value that is given as JSON, or why it cannot be encoded."""
    try:
        schema = schemas.parsed(key)
        try:
            value = json.loads(text, parse_constant=_refuse)
        except json.JSONDecodeError as wrong:
            place = f"line {wrong.lineno}, column {wrong.colno}"
            return {"why": f"it is not JSON ({wrong.msg} at {place}); a text needs double quotes"}
        indexes: list[int] | None = None
        if isinstance(schema, Protobuf):
            indexes = (schema.indexes_of(type) if type else [0]) if isinstance(type, str) else type
            name, data = schema.name_of(indexes), schema.encoded(indexes, value)
        elif isinstance(schema, Avro):
            name, data = schema.name, schema.encoded(value)
        else:
            schema.require_fit(value)
            name, data = "", text.strip().encode()
    except MemoryError:
        return {"why": "it needs too much memory"}
    except (Exception, RecursionError) as wrong:
        return {"why": reason(wrong)}
    return {"data": base64.b64encode(data).decode(), "indexes": indexes, "name": name}


def answer(schemas: Schemas, key: str, indexes: list[int], data: bytes) -> dict[str, str]:
    """The decoded value, or why there is none."""
    try:
        schema = schemas.parsed(key)
        if isinstance(schema, Protobuf):
            name, value = schema.name_of(indexes), schema.decoded(indexes, data)
        elif isinstance(schema, Avro):
            name, value = schema.name, schema.decoded(data)
        else:
            name, value = "", json.loads(data)
        if is_too_deep(value):
            raise RecursionError
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except MemoryError:
        return {"why": "it needs too much memory"}
    except (Exception, RecursionError) as wrong:
        return {"why": reason(wrong)}
    if len(text) > TEXT_CHARS_MAX:
        return {"why": f"it has more than {TEXT_CHARS_MAX >> 20} million characters"}
    return {"json": text, "name": name}


def reason(wrong: BaseException) -> str:
    """An error of a library as part of a sentence."""
    if isinstance(wrong, RecursionError):
        return "it is nested too deep"
    if isinstance(wrong, EOFError):
        return "it is too short"
    return (str(wrong) or type(wrong).__name__).strip().rstrip(".")[:WHY_CHARS_MAX]


def main() -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    schemas = Schemas()
    send = sys.stdout.buffer
    send.write(b"{}\n")
    send.flush()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["schema"] is not None:
            schemas.add(asked["key"], asked["schema"])
        decode: list[tuple[Callable[..., dict[str, Any]], Any, Any]] = [
            (answer, indexes, base64.b64decode(data)) for indexes, data in asked.get("values", ())
        ]
        encode = [(encoded, type, text) for type, text in asked.get("texts", ())]
        for work, type, content in (*decode, *encode):
            signal.setitimer(signal.ITIMER_PROF, CPU_S)  # the default of its signal ends the process
            told = work(schemas, asked["key"], type, content)
            send.write(json.dumps(told).encode() + b"\n")
            send.flush()


if __name__ == "__main__":
    main()
