"""The records of Kafka's internal topics against bytes that Kafka 4.3.1's own classes wrote."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from ottla.protocol.coordinator_records import (
    CONSUMER_OFFSETS_TOPIC,
    UnknownRecordTypeError,
    decode_record,
    encode_key,
    encode_value,
    record_classes,
)
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages._records import RECORD_TABLE
from tests.harness.protocol.kio_oracle import internal_records
from tools.message_schemas import Field, Message, Struct

SCHEMAS = internal_records()
GOLDEN = [
    line.split()
    for line in (Path(__file__).parent / "golden" / "internal_records.txt").read_text().splitlines()
    if line.split()[0] in SCHEMAS
]


class Filling:
    """Gives every value in wire order a number of its own, as the program that wrote the golden file did."""

    def __init__(self, message: Message, version: int) -> None:
        self.module = importlib.import_module(f"ottla.protocol.messages.{message.module}")
        self.structs = {struct.name: struct for struct in message.structs}
        self.version = version
        self.number = 0

    def struct(self, struct: Struct) -> Any:
        present = [f for f in struct.fields if f.versions[0] <= self.version <= f.versions[1]]
        return getattr(self.module, struct.name)(**{f.name: self.field(f) for f in present})

    def field(self, field: Field) -> Any:
        return [self.value(field) for _ in range(2)] if field.array else self.value(field)

    def value(self, field: Field) -> Any:
        self.number += 1
        n = self.number
        if field.struct is not None:
            return self.struct(self.structs[field.struct])
        by_kind: dict[str, Any] = {
            "bool": n % 2 == 0,
            "int8": n,
            "int16": 1000 + n,
            "uint16": 1000 + n,
            "int32": 1000000 + n,
            "int64": 5000000000 + n,
            "string": f"{field.name}-{n}",
            "bytes": f"b{n}".encode(),
            "uuid": n.to_bytes(8, "big") + (n + 1).to_bytes(8, "big"),
        }
        return by_kind[field.kind]


def of_golden(name: str, version: int, variant: str) -> Any:
    message = SCHEMAS[name]
    filling = Filling(message, version)
    return filling.struct(message.top) if variant == "filled" else getattr(filling.module, name)()


@pytest.mark.parametrize(("name", "version", "variant", "hexed"), GOLDEN, ids=lambda v: str(v)[:50])
def test_bytes_are_kafkas(name: str, version: str, variant: str, hexed: str) -> None:
    message = of_golden(name, int(version), variant)
    written = encode_key(message) if name.endswith("Key") else encode_value(message, int(version))
    assert written.hex() == hexed
    decoded, end = type(message).decode(written, 2, int(version))
    assert decoded == message
    assert end == len(written)


def test_every_record_type_and_version_has_golden_bytes() -> None:
    have = {(name, int(version)) for name, version, _, _ in GOLDEN}
    assert have == {(m.name, v) for m in SCHEMAS.values() for v in range(m.versions[0], m.versions[1] + 1)}


@pytest.mark.parametrize("row", RECORD_TABLE, ids=lambda row: row[3])
def test_key_and_value_are_found_by_the_type_in_the_key(row: tuple[str, int, str, str, str]) -> None:
    topic, record_type, _, key_name, value_name = row
    key, value = of_golden(key_name, 0, "filled"), of_golden(value_name, 0, "filled")
    assert record_classes(topic, record_type) == (type(key), type(value))
    assert decode_record(topic, encode_key(key), encode_value(value, 0)) == (key, value)
    assert decode_record(topic, encode_key(key), None) == (key, None)


def test_absent_classic_metadata_is_kafkas_default_and_null_is_written() -> None:
    """Kafka's generator makes the default of a nullable tagged struct a struct, and writes null as one byte."""
    module = importlib.import_module("ottla.protocol.messages.consumer_group_member_metadata_record")
    value = module.ConsumerGroupMemberMetadataValue(classic_member_metadata=None)
    written = encode_value(value, 0)
    assert written.endswith(bytes([1, 0, 1, 0]))
    assert module.ConsumerGroupMemberMetadataValue.decode(written, 2, 0)[0].classic_member_metadata is None


def test_an_unknown_type_is_told_from_a_broken_record() -> None:
    with pytest.raises(UnknownRecordTypeError) as caught:
        decode_record(CONSUMER_OFFSETS_TOPIC, b"\x03\xe7rest", b"")
    assert caught.value.record_type == 999
    for key, value in [(b"", None), (b"\x00", None), (b"\x00\x02\x00", None), (b"\x00\x02\x00\x01g", b"\x00\x63")]:
        with pytest.raises(MalformedFrameError) as broken:
            decode_record(CONSUMER_OFFSETS_TOPIC, key, value)
        assert not isinstance(broken.value, UnknownRecordTypeError)
