"""Decodes values in a process of its own: requests on standard input, one answer a value on standard output.

A schema or a value may be made to break its reader: a few bytes can stand for an array of a billion elements, or for
nesting that overflows the stack. Here that costs a bounded amount of memory and CPU time, and at worst this process.

A request is a line of JSON: the key of a schema, the schema unless it was sent before, and the values in base64. An
answer is a line of JSON: the decoded value as `json` and the `name` of its type, or the reason why there is none as
`why`.
"""

from __future__ import annotations

import base64
import json
import resource
import signal
import sys
from typing import Any, Final

from ottla.schemas.avro import Avro
from ottla.schemas.protobuf import Protobuf
from ottla.schemas.registry import PROTOBUF

MEMORY_BYTES: Final = 512 << 20
CPU_S: Final = 1.0
"""CPU seconds for one value, with its schema if that is new. Then the system ends the process."""
TEXT_CHARS_MAX: Final = 4 << 20
WHY_CHARS_MAX: Final = 300


class Schemas:
    """The schemas that were sent, parsed when a value first needs them."""

    def __init__(self) -> None:
        self._sent: dict[str, dict[str, Any]] = {}
        self._parsed: dict[str, Avro | Protobuf | str] = {}

    def add(self, key: str, schema: dict[str, Any]) -> None:
        self._sent[key] = schema

    def parsed(self, key: str) -> Avro | Protobuf:
        """The schema. Raises ValueError for one that cannot be used."""
        if key not in self._parsed:
            sent = self._sent.pop(key)
            try:
                kind = Protobuf if sent["kind"] == PROTOBUF else Avro
                self._parsed[key] = kind(sent["text"], sent["references"])
            except (Exception, RecursionError) as wrong:
                self._parsed[key] = f"the schema cannot be used: {reason(wrong)}"
        found = self._parsed[key]
        if isinstance(found, str):
            raise ValueError(found)
        return found


def answer(schemas: Schemas, key: str, indexes: list[int], data: bytes) -> dict[str, str]:
    """The decoded value, or why there is none."""
    try:
        schema = schemas.parsed(key)
        if isinstance(schema, Protobuf):
            name, value = schema.name_of(indexes), schema.decoded(indexes, data)
        else:
            name, value = schema.name, schema.decoded(data)
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
        for indexes, data in asked["values"]:
            signal.setitimer(signal.ITIMER_PROF, CPU_S)  # the default of its signal ends the process
            told = answer(schemas, asked["key"], indexes, base64.b64decode(data))
            send.write(json.dumps(told).encode() + b"\n")
            send.flush()


if __name__ == "__main__":
    main()
