"""Values that Confluent's serializers wrote, decoded by the schemas that they registered."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from ottla.schemas.decoder import Decoded, Decoder
from ottla.schemas.framing import framed
from ottla.schemas.nesting import DEPTH_MAX
from ottla.schemas.registry import Bounds
from tests.harness.schemas.registry import SmallRegistry
from tests.harness.schemas.serializers import Serializers, order_types

ITEM = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "item", "type": "shop.Item"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
        {"name": "raw", "type": "bytes"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
    ],
}
VALUE = {
    "item": {"sku": "<b>"},
    "note": None,
    "tags": {"a": [1.5, float("inf")]},
    "raw": b"\x00\xff",
    "at": datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC),
    "price": Decimal("12.30"),
    "state": "PAID",
}
SHOWN = {
    "item": {"sku": "<b>"},
    "note": None,
    "tags": {"a": [1.5, "inf"]},
    "raw": "\x00ÿ",
    "at": "2026-01-31T12:00:00+00:00",
    "price": "12.30",
    "state": "PAID",
}


@pytest.fixture(scope="module")
def serializers(registry: SmallRegistry) -> Serializers:
    made = Serializers(registry.address)
    made.register("item", ITEM)
    return made


def one(decoder: Decoder, data: bytes, headers: Any = (), *, is_key: bool = False) -> Decoded:
    (found,) = decoder.decoded([framed(data, headers, is_key=is_key)], Bounds())
    assert found is not None
    return found


def content(found: Decoded) -> Any:
    assert found.json is not None, found.why
    return json.loads(found.json)


def test_avro_with_a_reference_and_logical_types(decoder: Decoder, serializers: Serializers) -> None:
    found = one(decoder, serializers.avro(ORDER, VALUE, ("shop.Item", "item", 1)))
    assert content(found) == SHOWN
    assert found.schema == "Avro, schema 2, shop.Order"


def test_an_id_in_a_header(decoder: Decoder, serializers: Serializers, registry: SmallRegistry) -> None:
    headers: list[tuple[str, bytes]] = []
    data = serializers.avro(ORDER, VALUE, ("shop.Item", "item", 1), headers=headers)
    assert data[0] != 0
    assert content(one(decoder, data, headers)) == SHOWN
    Order, _ = order_types()
    headers = []
    data = serializers.protobuf(Order(id="7"), topic="headed", headers=headers)
    assert content(one(decoder, data, headers))["id"] == "7"
    assert registry.guid(2) in one(decoder, data, [("__value_schema_id", b"\1" + bytes(15) + b"\2")]).schema


def test_a_plain_type_as_key(decoder: Decoder, serializers: Serializers) -> None:
    found = one(decoder, serializers.avro({"type": "string"}, "ann", is_key=True), is_key=True)
    assert (found.json, found.schema.endswith(", string")) == (b'"ann"', True)


def test_a_union_that_refers_to_another_schema(decoder: Decoder, registry: SmallRegistry) -> None:
    union = registry.add(json.dumps(["null", "shop.Item"]), references=[{"name": "i", "subject": "item", "version": 1}])
    found = one(decoder, b"\0" + union.to_bytes(4, "big") + b"\2\2q")
    assert (content(found), found.schema.endswith(", union")) == ({"sku": "q"}, True)


@pytest.mark.parametrize("serializes", [True, False])
def test_protobuf_with_imports_and_a_nested_type(
    decoder: Decoder, serializers: Serializers, registry: SmallRegistry, serializes: bool
) -> None:
    """Apicurio gives schemas as this serializer registers them, which are descriptors too."""
    registry.serializes = serializes
    Order, Line = order_types()
    order = Order(id=f"x{serializes}", lines=[Line(sku="q", count=2)])
    order.at.seconds, order.total.cents = 1_000_000_000, 5
    found = one(decoder, serializers.protobuf(order, topic=f"orders{serializes}"))
    assert content(found) == {
        "id": f"x{serializes}",
        "at": "2001-09-09T01:46:40Z",
        "total": {"cents": "5"},
        "lines": [{"sku": "q", "count": 2}],
    }
    assert found.schema.endswith(", shop.Order")
    found = one(decoder, serializers.protobuf(Line(sku="w"), topic=f"lines{serializes}"))
    assert (content(found), found.schema[-10:]) == ({"sku": "w", "count": 0}, "Order.Line")
    registry.serializes = True


def test_protobuf_as_source_text(decoder: Decoder, registry: SmallRegistry) -> None:
    """As Apicurio and old versions of Redpanda give it."""
    registry.serializes = False
    registry.add('syntax = "proto3"; package a; message Price { int64 cents = 1; }', "PROTOBUF", "price")
    text = 'syntax = "proto3"; import "p/price.proto"; message Sale { a.Price of = 1; google.protobuf.Duration t = 2; }'
    text = text.replace("message", 'import "google/protobuf/duration.proto"; message')
    sale = registry.add(text, "PROTOBUF", "sale", [{"name": "p/price.proto", "subject": "price", "version": 1}])
    found = one(decoder, b"\0" + sale.to_bytes(4, "big") + b"\0\x0a\2\x08\7\x12\2\x08\1")
    assert content(found) == {"of": {"cents": "7"}, "t": "1s"}
    for name in ("../up.proto", "/absolute.proto", "missing.proto"):
        refers = [{"name": name, "subject": "price", "version": 1}] if "/" in name else []
        text = f'syntax = "proto3"; import "{name}"; message M {{}}'
        wrong = registry.add(text, "PROTOBUF", name, refers)
        assert "schema cannot be used" in one(decoder, b"\0" + wrong.to_bytes(4, "big") + b"\0").why
    option = [{"name": "--print_free_field_numbers", "subject": "price", "version": 1}]
    wrong = registry.add('syntax = "proto3"; message N {}', "PROTOBUF", "option", option)
    assert "odd name" in one(decoder, b"\0" + wrong.to_bytes(4, "big") + b"\0").why, "protoc takes it for an option"
    registry.serializes = True


def test_json_schema(decoder: Decoder, registry: SmallRegistry) -> None:
    number = registry.add('{"type": "object"}', "JSON", "json")
    front = b"\0" + number.to_bytes(4, "big")
    assert one(decoder, front + b'{"a": 1}') == Decoded(b'{"a": 1}', f"JSON Schema, schema {number}", "")
    for content in (b"{", b'{"a": "\xff"}', '"a"'.encode("utf-16"), b"\xef\xbb\xbf1"):
        assert one(decoder, front + content).why == "It is not JSON."
    for depth in (DEPTH_MAX + 1, 10_000):
        assert one(decoder, front + b"[" * depth + b"]" * depth).why == "It is nested too deep."
    assert one(decoder, front + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX).json is not None


def test_a_value_of_avro_that_could_not_be_written_as_json_again(decoder: Decoder, registry: SmallRegistry) -> None:
    chain = {"type": "record", "name": "Chain", "fields": [{"name": "next", "type": ["null", "Chain"]}]}
    front = b"\0" + registry.add(json.dumps(chain)).to_bytes(4, "big")
    assert one(decoder, front + b"\2" * (DEPTH_MAX - 1) + b"\0").json is not None
    assert one(decoder, front + b"\2" * DEPTH_MAX + b"\0").why == "It is nested too deep."


def test_a_time_that_python_cannot_hold(decoder: Decoder, registry: SmallRegistry) -> None:
    number = registry.add('{"type": "long", "logicalType": "timestamp-millis"}')
    data = b"\0" + number.to_bytes(4, "big") + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1"
    assert content(one(decoder, data)) == (1 << 63) - 1


def test_bytes_that_do_not_fit_their_schema(decoder: Decoder, registry: SmallRegistry) -> None:
    front = b"\0" + registry.add('"string"').to_bytes(4, "big")
    assert one(decoder, front + b"\2aX").why == "It has 1 byte more than its schema says."
    assert one(decoder, front + b"\x08a").why == "It is too short."
    assert "registry has no schema 9999" in one(decoder, b"\0\0\0\x27\x0f").why


def test_a_schema_is_asked_for_once(decoder: Decoder, registry: SmallRegistry) -> None:
    front = b"\0" + registry.add('{"type": "int"}').to_bytes(4, "big")
    found = decoder.decoded([framed(front + b"\2"), None, framed(front + b"\4")], Bounds())
    assert [None if each is None else each.json for each in found] == [b"1", None, b"2"]
    asked = len(registry.asked)
    assert content(one(decoder, front + b"\6")) == 3
    assert len(registry.asked) == asked


def test_a_large_value(decoder: Decoder, registry: SmallRegistry) -> None:
    number, count = registry.add('{"type": "array", "items": "boolean"}'), 500_000
    data = b"\0" + number.to_bytes(4, "big") + b"\xc0\x84\x3d" + b"\1" * count + b"\0"
    assert content(one(decoder, data)) == [True] * count
