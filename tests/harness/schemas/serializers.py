"""Serializes and deserializes values with Confluent's own classes, so that the bytes are a real client's."""

from __future__ import annotations

import json
from typing import Any, Final

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_FIELDS: Final = FieldDescriptorProto


class Serializers:
    """Serializers for a registry. Each returns the bytes, and adds to the headers if it puts the id there."""

    def __init__(self, address: str) -> None:
        self.client = SchemaRegistryClient({"url": address})

    def register(self, subject: str, schema: Any, *references: tuple[str, str, int]) -> None:
        """Register a schema in Avro to which others refer by (name, subject, version)."""
        refers = [SchemaReference(*each) for each in references]
        self.client.register_schema(subject, Schema(json.dumps(schema), "AVRO", refers))

    def avro(
        self,
        schema: Any,
        value: Any,
        *references: tuple[str, str, int],
        topic: str = "t",
        headers: list[tuple[str, bytes]] | None = None,
        is_key: bool = False,
    ) -> bytes:
        described = Schema(json.dumps(schema), "AVRO", [SchemaReference(*each) for each in references])
        serializer = AvroSerializer(self.client, described, conf=_conf(headers))
        return _done(serializer(value, _context(topic, headers, is_key)))

    def protobuf(self, message: Any, *, topic: str = "t", headers: list[tuple[str, bytes]] | None = None) -> bytes:
        serializer = ProtobufSerializer(type(message), self.client, {"use.deprecated.format": False, **_conf(headers)})
        return _done(serializer(message, _context(topic, headers, False)))


class Deserializers:
    """Confluent's deserializers for a registry."""

    def __init__(self, address: str) -> None:
        self._client = SchemaRegistryClient({"url": address})

    def avro(self, data: bytes) -> Any:
        return AvroDeserializer(self._client)(data, _context("t", None, False))

    def protobuf(self, kind: Any, data: bytes) -> Any:
        made = ProtobufDeserializer(kind, {"use.deprecated.format": False}, self._client)
        return made(data, _context("t", None, False))

    def json(self, schema: str, data: bytes) -> Any:
        return JSONDeserializer(schema, schema_registry_client=self._client)(data, _context("t", None, False))


def _conf(headers: list[tuple[str, bytes]] | None) -> dict[str, Any]:
    return {} if headers is None else {"schema.id.serializer": header_schema_id_serializer}


def _context(topic: str, headers: list[tuple[str, bytes]] | None, is_key: bool) -> SerializationContext:
    return SerializationContext(topic, MessageField.KEY if is_key else MessageField.VALUE, headers)


def _done(data: bytes | None) -> bytes:
    assert data is not None
    return data


def order_types() -> tuple[Any, Any]:
    """Message types of Protobuf: shop.Order, which uses a file of its own and one of Google's, and shop.Order.Line."""
    money = FileDescriptorProto(name="money.proto", package="shop", syntax="proto3")
    price = money.message_type.add(name="Price")
    price.field.add(name="cents", number=1, type=_FIELDS.TYPE_INT64, label=_FIELDS.LABEL_OPTIONAL)
    orders = FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    orders.dependency.extend(["money.proto", "google/protobuf/timestamp.proto"])
    orders.message_type.add(name="Empty")
    order = orders.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=_FIELDS.TYPE_STRING, label=_FIELDS.LABEL_OPTIONAL)
    for number, (name, kind, label) in enumerate(
        (
            ("at", ".google.protobuf.Timestamp", _FIELDS.LABEL_OPTIONAL),
            ("total", ".shop.Price", _FIELDS.LABEL_OPTIONAL),
            ("lines", ".shop.Order.Line", _FIELDS.LABEL_REPEATED),
        ),
        2,
    ):
        order.field.add(name=name, number=number, type=_FIELDS.TYPE_MESSAGE, type_name=kind, label=label)
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=_FIELDS.TYPE_STRING, label=_FIELDS.LABEL_OPTIONAL)
    line.field.add(name="count", number=2, type=_FIELDS.TYPE_INT32, label=_FIELDS.LABEL_OPTIONAL)
    from google.protobuf import timestamp_pb2

    pool = DescriptorPool()
    googles = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(googles)
    for each in (googles, money, orders):
        pool.Add(each)
    names = ("shop.Order", "shop.Order.Line")
    first, second = (GetMessageClass(pool.FindMessageTypeByName(each)) for each in names)
    return first, second
