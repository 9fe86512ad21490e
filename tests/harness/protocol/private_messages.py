"""The definitions of Ottla's own requests, and messages with a value of its own in every field."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import count
from typing import Any

from tools.message_schemas import Field, Message, Struct, read_private


def private_messages() -> Iterator[Message]:
    """Every request and response."""
    for messages in read_private().values():
        yield from messages


def filled(message: Message, version: int) -> Any:
    """The message with two elements in each array, and other values in each field."""
    module = importlib.import_module(f"ottla.protocol.messages.{message.module}")
    structs = {struct.name: struct for struct in message.structs}
    numbers = count(1)

    def of_struct(struct: Struct) -> Any:
        present = [field for field in struct.fields if field.versions[0] <= version <= field.versions[1]]
        return getattr(module, struct.name)(**{field.name: of_field(field) for field in present})

    def of_field(field: Field) -> Any:
        return [value(field), value(field)] if field.array else value(field)

    def value(field: Field) -> Any:
        number = next(numbers)
        if field.struct is not None:
            return of_struct(structs[field.struct])
        by_kind: dict[str, Any] = {
            "bool": number % 2 == 0,
            "int8": number % 100,
            "int16": 1_000 + number,
            "uint16": 1_000 + number,
            "int32": 1_000_000 + number,
            "int64": 5_000_000_000 + number,
            "float64": number / 8,
            "string": f"{field.name}-{number}",
            "bytes": f"b{number}".encode(),
            "uuid": number.to_bytes(16, "big"),
        }
        return by_kind[field.kind]

    return of_struct(message.top)
