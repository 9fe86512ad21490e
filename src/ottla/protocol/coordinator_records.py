"""Encodes and decodes the records in Kafka's internal topics.

A key starts with its type, a two-byte number; a value starts with the two-byte version in which it was written. A
generated message follows.

Source: CoordinatorRecordSerde.java, CoordinatorRecordType.java of the group, transaction and share coordinators.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from struct import Struct as Format
from typing import Any, TypeVar

from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages._records import RECORD_TABLE
from ottla.protocol.wire import Buffer, Message

MessageT = TypeVar("MessageT", bound=Message)

CONSUMER_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"

_pack_int16 = Format(">h").pack
_unpack_int16 = Format(">h").unpack_from

_KINDS: dict[tuple[str, int], tuple[str, str, str]] = {
    (topic, record_type): (module, key, value) for topic, record_type, module, key, value in RECORD_TABLE
}
_loaded: dict[tuple[str, int], tuple[Any, Any]] = {}


class UnknownRecordTypeError(MalformedFrameError):
    """A key of a type that this version does not know. Replay skips such records, as Kafka's does."""

    def __init__(self, record_type: int) -> None:
        super().__init__(f"unknown type of record: {record_type}")
        self.record_type = record_type


def record_classes(topic: str, record_type: int) -> tuple[Any, Any]:
    """The message classes of key and value. Raises UnknownRecordTypeError."""
    kind = (topic, record_type)
    if kind not in _loaded:
        if kind not in _KINDS:
            raise UnknownRecordTypeError(record_type)
        module, key, value = _KINDS[kind]
        loaded = import_module(f"ottla.protocol.messages.{module}")
        _loaded[kind] = getattr(loaded, key), getattr(loaded, value)
    return _loaded[kind]


def encode_key(key: Message) -> bytes:
    out = bytearray(_pack_int16(key.RECORD_TYPE))
    key.encode(out, 0)
    return bytes(out)


def encode_value(value: Message, version: int) -> bytes:
    out = bytearray(_pack_int16(version))
    value.encode(out, version)
    return bytes(out)


def type_of(key: Buffer) -> int:
    """A record's type, the number at the beginning of its key. Raises MalformedFrameError."""
    if len(key) < 2:
        raise MalformedFrameError("the key of a coordinator record is cut short")
    record_type: int = _unpack_int16(key, 0)[0]
    return record_type


def decode_key(key_class: type[MessageT], key: Buffer) -> MessageT:
    """A key of the type of this class. Raises MalformedFrameError."""
    return key_class.decode(key, 2, 0)[0]


def decode_value(value_class: type[MessageT], value: Buffer) -> MessageT:
    """A value in whichever version it was written. Raises MalformedFrameError."""
    if len(value) < 2:
        raise MalformedFrameError("the value of a coordinator record is cut short")
    (version,) = _unpack_int16(value, 0)
    if not value_class.MIN_VERSION <= version <= value_class.MAX_VERSION:
        raise MalformedFrameError(f"{value_class.__name__} has no version {version}")
    return value_class.decode(value, 2, version)[0]


def decode_record(topic: str, key: Buffer, value: Buffer | None) -> tuple[Any, Any]:
    """(key, value) as messages; the value is None for a tombstone.

    Raises UnknownRecordTypeError for a key of a later version, MalformedFrameError for anything else that cannot be
    read.
    """
    key_class, value_class = record_classes(topic, type_of(key))
    decoded_key = decode_key(key_class, key)
    return decoded_key, None if value is None else decode_value(value_class, value)


@lru_cache(maxsize=4096)  # a hash costs as much as an append to a log, and the same few ids recur
def partition_of(key: str, partitions: int) -> int:
    """The partition of a coordinator's topic that holds the records of this group or id.

    The absolute of Java's String.hashCode (UTF-16 units, 32 bits; its minimum counts as 0) modulo the partitions.
    """
    code = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        code = (31 * code + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    if code >= 1 << 31:
        code = ((1 << 32) - code) & 0x7FFFFFFF
    return code % partitions
