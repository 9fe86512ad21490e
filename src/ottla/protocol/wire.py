"""Reads and writes the primitives of Kafka's wire format, for the generated messages.

It handles integers, strings, byte blocks, array lengths, tagged fields and unsigned varints, in the old and the
flexible (KIP-482) encoding. Source: Kafka's protocol guide and ByteBufferAccessor.java.

Invariants: a reader takes `(view, pos)` and returns `(value, next position)`. Every length and count is checked against
the remaining bytes before anything of that size is allocated, so a false length claims no memory. Short input raises
MalformedFrameError, struct.error or IndexError; the generated `decode` turns all of them into MalformedFrameError. As
in Kafka, any negative length of a nullable field means null.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, ClassVar, TypeAlias, cast

from ottla.protocol.errors import MalformedFrameError

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)
NEVER_FLEXIBLE = 32767
"""FLEXIBLE_SINCE of a message that has no flexible version."""

EMPTY: list[Any] = []
"""Means "a new empty list" in a signature. Never changed, never stored."""

UNSET: Any = object()
"""Means "a new struct with defaults" in a signature where None means null."""

SHORT_INPUT = (struct.error, IndexError, UnicodeDecodeError)
"""The exceptions, besides MalformedFrameError, that readers raise for short input and for text that is not UTF-8."""

_STRING_LENGTH_MAX = 0x7FFF

TAGS_MAX = 1000
"""More tagged fields in one section are rejected: no message has more than a few, and each takes time."""

ELEMENTS_MAX = 1 << 20
"""More elements in one array are rejected: ten times the partitions that a node may have."""

MANY = 9
"""Arrays shorter than this have precompiled formats; half of all arrays of numbers have one element."""

_unpack_int16 = struct.Struct(">h").unpack_from
_unpack_int32 = struct.Struct(">i").unpack_from
_pack_int16 = struct.Struct(">h").pack
_pack_int32 = struct.Struct(">i").pack


class Struct:
    """A struct of the protocol: slots in wire order, compared and printed by value."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def encode(self, out: bytearray, version: int) -> None:
        """Append this struct in the encoding of `version`. Fields that the version lacks are left out."""
        raise NotImplementedError


class Message(Struct):
    """A request, a response or a stored record: a struct that may be decoded from outside."""

    __slots__ = ()
    API_KEY: ClassVar[int] = -1
    RECORD_TYPE: ClassVar[int] = -1
    """The number in the key of a record of an internal topic."""
    MIN_VERSION: ClassVar[int]
    MAX_VERSION: ClassVar[int]
    FLEXIBLE_SINCE: ClassVar[int]

    @staticmethod
    def decode(view: Buffer, pos: int, version: int) -> tuple[Any, int]:
        """(message, next position). Raises only MalformedFrameError; `records` fields remain slices of `view`."""
        raise NotImplementedError


def has_elements(message: Struct, count: int) -> bool:
    """Whether the arrays of a message, at all depths, have more than `count` elements in total."""
    left = count
    structs: list[Any] = [message]
    while structs:
        struct = structs.pop()
        for name in struct.__slots__:
            value = getattr(struct, name)
            if isinstance(value, list):
                values = cast("list[Any]", value)
                left -= len(values)
                if left < 0:
                    return True
                if values and isinstance(values[0], Struct):
                    structs += values
            elif isinstance(value, Struct):
                structs.append(value)
    return False


class Encoded(Struct):
    """Represents a struct that is already encoded, in the version in which the message will be written."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def encode(self, out: bytearray, version: int) -> None:
        out += self.content


# ---- unsigned varints ----------------------------------------------------------------------------------------------


def read_uvarint(view: memoryview, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 31 bits in at most five bytes. Raises MalformedFrameError."""
    byte = view[pos]
    if byte < 0x80:
        return byte, pos + 1
    value = byte & 0x7F
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = view[pos]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0x7FFFFFFF:
                break
            return value, pos + 1
    raise MalformedFrameError(f"a varint before byte {pos + 1} is too long")


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# ---- strings -------------------------------------------------------------------------------------------------------


def read_string(view: memoryview, pos: int) -> tuple[str, int]:
    (length,) = _unpack_int16(view, pos)
    pos += 2
    end = pos + length
    if length < 0 or end > len(view):
        raise _bad_length("string", length, pos)
    return view[pos:end].tobytes().decode(), end


def read_nullable_string(view: memoryview, pos: int) -> tuple[str | None, int]:
    (length,) = _unpack_int16(view, pos)
    pos += 2
    if length < 0:
        return None, pos
    end = pos + length
    if end > len(view):
        raise _bad_length("string", length, pos)
    return view[pos:end].tobytes().decode(), end


def read_compact_string(view: memoryview, pos: int) -> tuple[str, int]:
    length = view[pos] - 1
    pos += 1
    if length > 126:
        length, pos = _long_string(view, pos - 1)
    end = pos + length
    if length < 0 or end > len(view):
        raise _bad_length("string", length, pos)
    return view[pos:end].tobytes().decode(), end


def read_compact_nullable_string(view: memoryview, pos: int) -> tuple[str | None, int]:
    length = view[pos] - 1
    pos += 1
    if length > 126:
        length, pos = _long_string(view, pos - 1)
    elif length < 0:
        return None, pos
    end = pos + length
    if end > len(view):
        raise _bad_length("string", length, pos)
    return view[pos:end].tobytes().decode(), end


def _long_string(view: memoryview, pos: int) -> tuple[int, int]:
    length, pos = read_uvarint(view, pos)
    if not 0 < length <= _STRING_LENGTH_MAX + 1:
        raise _bad_length("string", length - 1, pos)
    return length - 1, pos


def write_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    out += _pack_int16(len(encoded))
    out += encoded


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
    else:
        encoded = value.encode()
        out += _pack_int16(len(encoded))
        out += encoded


def write_compact_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    length = len(encoded)
    if length < 127:
        out.append(length + 1)
    elif length > _STRING_LENGTH_MAX:
        raise ValueError(f"a string of {length} bytes is too long for the protocol")
    else:
        write_uvarint(out, length + 1)
    out += encoded


def write_compact_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_compact_string(out, value)


# ---- blocks of bytes: `bytes` fields are copied, `records` fields are slices of the frame --------------------------


def _block(view: memoryview, pos: int) -> tuple[int, int, int]:
    (length,) = _unpack_int32(view, pos)
    pos += 4
    end = pos + length
    if end > len(view):
        raise _bad_length("block of bytes", length, pos)
    return length, pos, end


def _compact_block(view: memoryview, pos: int) -> tuple[int, int, int]:
    length = view[pos] - 1
    pos += 1
    if length > 126:
        length, pos = read_uvarint(view, pos - 1)
        length -= 1
    end = pos + length
    if end > len(view):
        raise _bad_length("block of bytes", length, pos)
    return length, pos, end


def read_bytes(view: memoryview, pos: int) -> tuple[bytes, int]:
    length, pos, end = _block(view, pos)
    if length < 0:
        raise _bad_length("block of bytes", length, pos)
    return bytes(view[pos:end]), end


def read_nullable_bytes(view: memoryview, pos: int) -> tuple[bytes | None, int]:
    length, pos, end = _block(view, pos)
    return (None, pos) if length < 0 else (bytes(view[pos:end]), end)


def read_compact_bytes(view: memoryview, pos: int) -> tuple[bytes, int]:
    length, pos, end = _compact_block(view, pos)
    if length < 0:
        raise _bad_length("block of bytes", length, pos)
    return bytes(view[pos:end]), end


def read_compact_nullable_bytes(view: memoryview, pos: int) -> tuple[bytes | None, int]:
    length, pos, end = _compact_block(view, pos)
    return (None, pos) if length < 0 else (bytes(view[pos:end]), end)


def read_records(view: memoryview, pos: int) -> tuple[memoryview, int]:
    length, pos, end = _block(view, pos)
    if length < 0:
        raise _bad_length("block of records", length, pos)
    return view[pos:end], end


def read_nullable_records(view: memoryview, pos: int) -> tuple[memoryview | None, int]:
    length, pos, end = _block(view, pos)
    return (None, pos) if length < 0 else (view[pos:end], end)


def read_compact_records(view: memoryview, pos: int) -> tuple[memoryview, int]:
    length, pos, end = _compact_block(view, pos)
    if length < 0:
        raise _bad_length("block of records", length, pos)
    return view[pos:end], end


def read_compact_nullable_records(view: memoryview, pos: int) -> tuple[memoryview | None, int]:
    length, pos = read_uvarint(view, pos)
    if length == 0:
        return None, pos
    end = pos + length - 1
    if end > len(view):
        raise _bad_length("block of records", length - 1, pos)
    return view[pos:end], end


def write_bytes(out: bytearray, value: Buffer) -> None:
    out += _pack_int32(len(value))
    out += value


def write_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    else:
        out += _pack_int32(len(value))
        out += value


def write_compact_bytes(out: bytearray, value: Buffer) -> None:
    write_uvarint(out, len(value) + 1)
    out += value


def write_compact_nullable_bytes(out: bytearray, value: Buffer | None) -> None:
    if value is None:
        out.append(0)
    else:
        write_uvarint(out, len(value) + 1)
        out += value


# ---- arrays --------------------------------------------------------------------------------------------------------


def read_array_length(view: memoryview, pos: int, element_size: int) -> tuple[int, int]:
    """The count of an array whose elements take at least `element_size` bytes each; negative for null."""
    (count,) = _unpack_int32(view, pos)
    pos += 4
    if count > ELEMENTS_MAX or count * element_size > len(view) - pos:
        raise _bad_length("array", count, pos)
    return count, pos


def read_compact_array_length(view: memoryview, pos: int, element_size: int) -> tuple[int, int]:
    count = view[pos] - 1
    pos += 1
    if count > 126:
        count, pos = read_uvarint(view, pos - 1)
        count -= 1
    if count > ELEMENTS_MAX or count * element_size > len(view) - pos:
        raise _bad_length("array", count, pos)
    return count, pos


def read_uuids(view: memoryview, pos: int, count: int) -> list[bytes]:
    """`count` uuids; the caller has checked that the bytes are present."""
    return [bytes(view[at : at + 16]) for at in range(pos, pos + 16 * count, 16)]


def unpackers_of(fmt: str) -> tuple[Callable[[memoryview, int], tuple[Any, ...]], ...]:
    """Functions that unpack an array of n numbers, for n below MANY."""
    return tuple(struct.Struct(f">{count}{fmt}").unpack_from for count in range(MANY))


def packers_of(fmt: str) -> tuple[Callable[..., bytes], ...]:
    return tuple(struct.Struct(f">{count}{fmt}").pack for count in range(MANY))


def write_array_length(out: bytearray, count: int) -> None:
    out += _pack_int32(count)


def null_array(pos: int) -> MalformedFrameError:
    return MalformedFrameError(f"the array before byte {pos} may not be null")


# ---- tagged fields -------------------------------------------------------------------------------------------------


def skip_tags(view: memoryview, pos: int) -> int:
    """Skip a section of unknown tagged fields."""
    count, pos = read_tag_count(view, pos)
    for _ in range(count):
        _, pos, end = read_tag(view, pos)
        pos = end
    return pos


def read_tag_count(view: memoryview, pos: int) -> tuple[int, int]:
    count, pos = read_uvarint(view, pos)
    if count > TAGS_MAX or count * 2 > len(view) - pos:
        raise _bad_length("section of tagged fields", count, pos)
    return count, pos


def read_tag(view: memoryview, pos: int) -> tuple[int, int, int]:
    """(tag, start of its value, end of its value)."""
    tag, pos = read_uvarint(view, pos)
    size, pos = read_uvarint(view, pos)
    end = pos + size
    if end > len(view):
        raise _bad_length("tagged field", size, pos)
    return tag, pos, end


def bad_tag(tag: int, end: int) -> MalformedFrameError:
    return MalformedFrameError(f"tagged field {tag} does not end at byte {end} as it claims")


def write_tags(out: bytearray, tagged: list[tuple[int, bytearray]]) -> None:
    """Append the tagged fields that have a value, in ascending order of their tags."""
    write_uvarint(out, len(tagged))
    for tag, value in tagged:
        write_uvarint(out, tag)
        write_uvarint(out, len(value))
        out += value


def _bad_length(what: str, length: int, pos: int) -> MalformedFrameError:
    if length < 0:
        return MalformedFrameError(f"the {what} before byte {pos} may not be null")
    return MalformedFrameError(
        f"the {what} of length {length} at byte {pos} is longer than the input or the protocol allows"
    )
