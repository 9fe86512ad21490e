"""Schemas and values that are made to break their reader: each becomes a sentence, and the next value is decoded."""

from __future__ import annotations

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from ottla.schemas.decoder import Decoder
from ottla.schemas.framing import framed
from ottla.schemas.registry import Bounds
from tests.harness.schemas.registry import SmallRegistry

BILLION = b"\x80\xa8\xd6\xb9\x07"
"""A count of 1,000,000,000 in Avro."""
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


def bomb() -> str:
    """Records in records, a thousand each: a value of no bytes has a billion fields."""
    kinds = "null"
    for level in range(3):
        fields: list[dict] = [{"name": "first", "type": kinds}]
        known = kinds if isinstance(kinds, str) else kinds["name"]
        fields += [{"name": f"f{each}", "type": known} for each in range(1_000)]
        kinds = {"type": "record", "name": f"Level{level}", "fields": fields}
    return json.dumps(kinds)


def deep_types(levels: int) -> str:
    kind = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return json.dumps(kind)


def recursive_message() -> str:
    """A descriptor in base64 of a message that holds itself."""
    file = FileDescriptorProto(name="n.proto", syntax="proto3")
    node = file.message_type.add(name="Node")
    node.field.add(
        name="next",
        number=1,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=".Node",
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    return base64.b64encode(file.SerializeToString()).decode()


def nested_messages(levels: int) -> bytes:
    data = b""
    for _ in range(levels):
        size, length = len(data), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        data = b"\x0a" + length + bytes([size]) + data
    return data


CASES = {
    "a billion nulls": ('{"type": "array", "items": "null"}', "AVRO", BILLION),
    "a string of a billion characters": ('"string"', "AVRO", BILLION),
    "a list of a million links": (json.dumps(NODE), "AVRO", b"\2" * 1_000_000),
    "a schema that multiplies": (bomb(), "AVRO", b""),
    "a schema nested deep": (deep_types(300), "AVRO", b"\0"),
    "a schema that json cannot read": ("[" * 100_000, "AVRO", b"\0"),
    "a schema of other JSON": ('{"type": ["x", {"y": []}]}', "AVRO", b"\0"),
    "messages nested deep": (recursive_message(), "PROTOBUF", b"\0" + nested_messages(10_000)),
    "no descriptor": (base64.b64encode(b"\xff\xff").decode(), "PROTOBUF", b"\0"),
    "a type that is missing": (recursive_message(), "PROTOBUF", b"\2\x0e"),
    "an odd kind": ("x", "<b>", b""),
    "a long value": ('"bytes"', "AVRO", bytes(10 << 20)),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_values_become_sentences(decoder: Decoder, registry: SmallRegistry, case: str) -> None:
    schema, kind, data = CASES[case]
    good = b"\0" + registry.add('{"type": "boolean"}').to_bytes(4, "big") + b"\1"
    bad = b"\0" + registry.add(schema, kind, subject=case).to_bytes(4, "big") + data
    bounds = Bounds(seconds_left=60)  # of the machine's time, which may be busy
    found = decoder.decoded([framed(each) for each in (bad, good, bad)], bounds)
    assert [None if each is None else each.json for each in found] == [None, b"true", None]
    assert all(each is not None and (each.json or each.why.endswith(".")) for each in found)


def test_without_time_nothing_is_decoded(decoder: Decoder, registry: SmallRegistry) -> None:
    data = framed(b"\0" + registry.add('{"type": "float"}').to_bytes(4, "big") + bytes(4))
    (late,) = decoder.decoded([data], Bounds(seconds_left=0))
    assert late is not None
    assert (late.json, late.is_late) == (None, True)
    (found,) = decoder.decoded([data], Bounds())
    assert found is not None
    assert found.json == b"0.0"


def test_many_schemas_that_end_the_process_cost_bounded_time(decoder: Decoder, registry: SmallRegistry) -> None:
    links = b"\2" * 1_000_000
    numbers = [registry.add(json.dumps({**NODE, "doc": str(each)})) for each in range(20)]
    bounds = Bounds(seconds_left=1.0)
    found = decoder.decoded([framed(b"\0" + each.to_bytes(4, "big") + links) for each in numbers], bounds)
    assert sum(each is not None and not each.is_late for each in found) <= 2
    assert all(each is not None and each.json is None for each in found)
