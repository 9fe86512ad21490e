"""Values of JSON, encoded by schemas of a registry and read by Confluent's own deserializers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.decoder import Decoder
from ottla.schemas.encoder import Chosen, Encoded, NotEncodedError
from ottla.schemas.framing import framed
from ottla.schemas.registry import Bounds
from tests.harness.schemas.registry import SmallRegistry
from tests.harness.schemas.serializers import Deserializers, Serializers, order_types
from tests.schemas.test_decoding import ITEM, ORDER, SHOWN, VALUE

CARD = {"type": "record", "name": "Card", "namespace": "shop", "fields": [{"name": "number", "type": "string"}]}
CASH = {"type": "record", "name": "Cash", "namespace": "shop", "fields": [{"name": "number", "type": "string"}]}
UUID = "00000000-0000-0000-0000-000000000001"
KINDS = {
    "type": "record",
    "name": "Kinds",
    "fields": [
        {"name": "pay", "type": ["null", CARD, CASH, {"type": "map", "values": "int"}], "default": None},
        {"name": "number", "type": ["double", "long", "bytes", "string"], "default": 1.5},
        {"name": "day", "type": [{"type": "int", "logicalType": "date"}, "null"], "default": 0},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}, "default": 0},
        {
            "name": "id",
            "type": {"type": "string", "logicalType": "uuid"},
            "default": UUID,
        },
        {"name": "pair", "type": {"type": "fixed", "name": "Pair", "size": 2}, "default": "\u00ff\u0000"},
        {"name": "next", "type": ["null", "Kinds"], "default": None},
    ],
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "at": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name"],
}


@pytest.fixture(scope="module")
def deserializers(registry: SmallRegistry) -> Deserializers:
    Serializers(registry.address).register("item", ITEM)
    registry.add(json.dumps(ORDER), subject="order", references=[{"name": "i", "subject": "item", "version": 1}])
    registry.add(json.dumps(KINDS), subject="kinds")
    registry.add('"string"', subject="text")
    registry.add(json.dumps(PERSON), "JSON", subject="person")
    return Deserializers(registry.address)


def encoded(decoder: Decoder, subject: str, value: Any, version: int | None = None, type: str = "") -> Encoded:
    return decoder.encoder.encoded(Chosen(subject, version, type), json.dumps(value), Bounds())


def refusal(decoder: Decoder, subject: str, value: Any, type: str = "") -> str:
    with pytest.raises(NotEncodedError) as refused:
        encoded(decoder, subject, value, type=type)
    return str(refused.value)


def test_avro_as_it_is_shown(decoder: Decoder, deserializers: Deserializers) -> None:
    done = encoded(decoder, "order", SHOWN)
    assert deserializers.avro(done.data) == VALUE
    assert (done.schema, done.version and done.version.version) == ("Avro, schema 2, shop.Order", 1)
    assert deserializers.avro(encoded(decoder, "text", "ann").data) == "ann"


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"number": 5}, 5),
        ({"number": 5.0}, 5.0),
        ({"number": "x"}, "x"),
        ({"number": {"bytes": "x"}}, b"x"),
        ({"pay": {"number": "7"}}, {"number": "7"}),
        ({"pay": {"shop.Cash": {"number": "7"}}}, {"number": "7"}),
        ({"pay": {"a": 7}}, {"a": 7}),
        ({"next": {"pair": "ab"}}, None),
    ],
)
def test_branches_of_unions_and_defaults(
    decoder: Decoder, deserializers: Deserializers, given: dict, read: object
) -> None:
    found = deserializers.avro(encoded(decoder, "kinds", given).data)
    assert found["pair"] == b"\xff\0"
    if read is None:
        assert found["next"]["pair"] == b"ab"
    else:
        (name,) = given
        assert (found[name], type(found[name])) == (read, type(read))


@pytest.mark.parametrize(
    ("subject", "value", "sentence"),
    [
        ("kinds", {"nam": 1}, "the field nam is unknown: the schema has pay, number, day, at, id, pair, next."),
        ("kinds", {"next": {"pair": "abc"}}, "the field next.pair must have 2 bytes, not 3."),
        ("kinds", {"day": "tomorrow"}, 'the field day must be a date such as 2026-01-31, not "tomorrow".'),
        (
            "kinds",
            {"at": "12:00:00.0001"},
            'the field at must be a time-millis such as 12:00:00.5, not "12:',
        ),
        ("kinds", {"pay": 5}, "the field pay must be one of null, shop.Card, shop.Cash, map, not 5."),
        ("kinds", {"id": "x"}, 'the field id must be a UUID, not "x".'),
        ("order", SHOWN | {"item": {}}, "the field item.sku is missing, and has no default."),
        (
            "order",
            SHOWN | {"price": "1.234"},
            "price must be a decimal number of at most 6 digits, 2 of them after",
        ),
        (
            "order",
            SHOWN | {"price": "12345"},
            "price must be a decimal number of at most 6 digits, 2 of them after",
        ),
        ("order", SHOWN | {"tags": {"a": [1, "b"]}}, 'the field tags.a[1] must be a number, not "b".'),
        ("order", SHOWN | {"state": "LOST"}, 'the field state must be one of NEW, PAID, not "LOST".'),
        ("order", SHOWN | {"raw": "€"}, 'the field raw must be bytes as text in ISO 8859-1, not "€".'),
        ("text", 5, "it must be text, not 5."),
        ("person", {"at": []}, "'name' is a required property."),
        ("person", {"name": "a", "at": [1, "b"]}, "the field at[1]: 'b' is not of type 'integer'."),
    ],
)
def test_a_misfit_is_a_sentence_that_names_the_field(
    decoder: Decoder, deserializers: Deserializers, subject: str, value: object, sentence: str
) -> None:
    found = refusal(decoder, subject, value)
    assert found.startswith("It does not fit ")
    assert sentence in found


def test_protobuf_by_the_name_of_its_type(
    decoder: Decoder, deserializers: Deserializers, registry: SmallRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "serializes", False)  # as this deserializer wants references
    Order, Line = order_types()
    Serializers(registry.address).protobuf(Line(sku="q"), topic="lines")
    line = {"sku": "q", "count": 2}
    for type in ("shop.Order.Line", "Order.Line"):
        done = encoded(decoder, "lines-value", line, type=type)
        assert deserializers.protobuf(Line, done.data) == Line(sku="q", count=2)
    assert done.schema.endswith(", shop.Order.Line")
    value = {"id": "7", "at": "2001-09-09T01:46:40Z", "total": {"cents": "5"}, "lines": [line]}
    done = encoded(decoder, "lines-value", value, type="Order")
    order = deserializers.protobuf(Order, done.data)
    assert (order.id, order.at.seconds, order.total.cents, order.lines[0].sku) == ("7", 1_000_000_000, 5, "q")
    assert encoded(decoder, "lines-value", {}).data[5:] == b"\0"  # the first type, without a field
    for wrong, sentence in (
        ({"total": {"cents": "x"}}, "the field total.cents: "),
        ({"lines": [{"sku": "q"}, {"sk": 1}]}, "the field lines.sk is unknown in shop.Order.Line."),
        (5, "it must be an object."),
    ):
        assert sentence in refusal(decoder, "lines-value", wrong, "Order")
    assert "the schema has no type Lost, but shop.Empty, shop.Order, shop.Order.Line." in refusal(
        decoder, "lines-value", {}, "Lost"
    )


def test_json_schema(decoder: Decoder, deserializers: Deserializers) -> None:
    done = encoded(decoder, "person", {"name": "ann", "at": [1]})
    assert deserializers.json(json.dumps(PERSON), done.data) == {"name": "ann", "at": [1]}


def test_what_the_registry_lacks_and_what_is_no_json(decoder: Decoder, deserializers: Deserializers) -> None:
    assert refusal(decoder, "nowhere", 1) == "The registry has no subject nowhere."
    with pytest.raises(NotEncodedError, match=r"no subject text, version 2\."):
        encoded(decoder, "text", "x", 2)
    with pytest.raises(NotEncodedError, match=r"it is not JSON .* a text needs double quotes"):
        decoder.encoder.encoded(Chosen("text"), "ann", Bounds())
    assert "Only schemas of Protobuf have several types" in refusal(decoder, "text", "x", "T")


def test_a_version_is_the_newest_or_the_chosen_one(decoder: Decoder, registry: SmallRegistry) -> None:
    first, second = registry.add('"int"', subject="grows"), registry.add('"long"', subject="grows")
    assert framed_id(encoded(decoder, "grows", 1)) == second
    assert framed_id(encoded(decoder, "grows", 1, version=1)) == first


def framed_id(done: Encoded) -> object:
    found = framed(done.data)
    assert found is not None
    return found.schema


def test_another_value_keeps_schema_and_type(decoder: Decoder, registry: SmallRegistry) -> None:
    Order, Line = order_types()
    serializers = Serializers(registry.address)
    for kind, name in ((Line, "sku"), (Order, "id")):
        for headers in (None, []):
            before, after = (
                serializers.protobuf(kind(**{name: text}), topic=f"again-{name}", headers=headers) for text in "ab"
            )
            parts = framed(before, headers or ())
            assert parts is not None
            assert decoder.encoder.replaced(parts, json.dumps({name: "b"}), Bounds()).data == after
