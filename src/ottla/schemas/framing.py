"""Finds the id of the schema with which a key or value was written, and writes it.

Confluent's serializers write the id in front: a zero byte and four bytes. Since version 8 they can put it into a header
instead, as a GUID: a byte 1 and sixteen bytes. For Protobuf the position of the message's type in its file follows.

Source: Confluent's wire format; SchemaId.java of Schema Registry 8.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

KEY_HEADER: Final = "__key_schema_id"
VALUE_HEADER: Final = "__value_schema_id"
_BY_NUMBER: Final = 0
_BY_GUID: Final = 1
_NUMBER_END: Final = 5
_GUID_END: Final = 17
INDEXES_MAX: Final = 32
"""Types are nested less deep than this."""


class MalformedError(ValueError):
    """The bytes in front of the content cannot be read; the text is one sentence."""


@dataclass(frozen=True, slots=True)
class Framed:
    """A key or value with a schema. `schema` is its number or its GUID. `prefix` is the rest of the header that named
    the schema, None if the id is in front of the content."""

    schema: int | str
    prefix: bytes | None
    content: bytes

    def front(self, *, is_protobuf: bool) -> bytes:
        """The bytes in front of the content or message. Raises MalformedError."""
        if self.prefix is not None:
            return b""
        at = _indexes(self.content)[1] if is_protobuf else 0
        assert isinstance(self.schema, int)
        return numbered(self.schema) + self.content[:at]

    def message(self) -> tuple[tuple[int, ...], bytes]:
        """Of Protobuf: the position of the type in its file, and the message. Raises MalformedError."""
        if self.prefix is None:
            indexes, after = _indexes(self.content)
            return indexes, self.content[after:]
        return _indexes(self.prefix)[0], self.content


def framed(data: bytes | None, headers: Iterable[tuple[Any, Any]] = (), *, is_key: bool = False) -> Framed | None:
    """The parts of a key or value that names a schema; None for any other."""
    if data is None:
        return None
    wanted = KEY_HEADER if is_key else VALUE_HEADER
    for name, value in headers:
        if name in (wanted, wanted.encode()) and isinstance(value, bytes):
            found = _id_in(value)
            return None if found is None else Framed(found[0], value[found[1] :], data)
    found = _id_in(data)
    return None if found is None or isinstance(found[0], str) else Framed(found[0], None, data[found[1] :])


def numbered(schema: int, indexes: Sequence[int] | None = None) -> bytes:
    """The bytes in front of a value: the number of its schema, and for Protobuf the position of its type."""
    front = bytes((_BY_NUMBER,)) + schema.to_bytes(4, "big")
    if indexes is None:
        return front
    if list(indexes) == [0]:
        return front + b"\0"
    return front + b"".join(map(_varint_of, (len(indexes), *indexes)))


def _varint_of(value: int) -> bytes:
    """A number from 0 in zigzag."""
    found, rest = bytearray(), value << 1
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*found, rest))


def _id_in(data: bytes) -> tuple[int | str, int] | None:
    """The id at the start, and where it ends. Registries count from 1."""
    if len(data) >= _NUMBER_END and data[0] == _BY_NUMBER:
        number = int.from_bytes(data[1:_NUMBER_END], "big")
        return (number, _NUMBER_END) if 0 < number < 1 << 31 else None
    if len(data) >= _GUID_END and data[0] == _BY_GUID:
        return str(uuid.UUID(bytes=data[1:_GUID_END])), _GUID_END
    return None


def _indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The list of indexes at the start, and where it ends. An empty list stands for the first type."""
    count, at = _varint(data, 0)
    if not 0 <= count <= INDEXES_MAX:
        raise MalformedError(f"The position of its type has {count} parts.")
    found: list[int] = []
    for _ in range(count):
        index, at = _varint(data, at)
        found.append(index)
    return tuple(found) or (0,), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag number and where it ends."""
    value = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value >> 1 ^ -(value & 1), at
    raise MalformedError("The position of its type cannot be read.")
