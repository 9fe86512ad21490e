"""kio as the oracle of the generated codec: the same values as its messages and as ours.

Knows how to make hypothesis strategies for kio's dataclasses and how to turn a kio message into the generated one.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import importlib
import io
import re
import sys
import types
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kio.schema
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from ottla.protocol import messages
from tools.generate_messages import wanted
from tools.message_schemas import Field, Message, read_internal_records, read_kio

MESSAGES = Path(messages.__path__[0])
_MESSAGE = re.compile(
    r"^class (\w+)\(Message\):\n(?:    API_KEY = .*\n)?    MIN_VERSION = (\d+)\n    MAX_VERSION = (\d+)", re.MULTILINE
)

EPOCH = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
MILLISECOND = datetime.timedelta(milliseconds=1)
_SPANS = {"timedelta_i32": 2**31 - 1, "timedelta_i64": 10**13}
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


@dataclasses.dataclass(frozen=True)
class Case:
    """One message in one version, as both sides call it: imported when it is looked at, for there are a thousand."""

    name: str
    module: str
    version: int
    is_first_or_last: bool
    """Of the versions of its message."""

    @property
    def schema(self) -> Message:
        return next(each for each in schemas()[self.module] if each.name == self.name)

    @property
    def ours(self) -> Any:
        return getattr(importlib.import_module(f"ottla.protocol.messages.{self.module}"), self.name)

    @property
    def kio(self) -> Any:
        kind = {"Request": "request", "Response": "response"}.get(
            next(iter(re.findall("(Request|Response)$", self.name)), ""), "data"
        )
        module = importlib.import_module(f"{kio.schema.__name__}.{self.module}.v{self.version}.{kind}")
        return getattr(module, self.name)

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"


@functools.cache
def schemas() -> dict[str, list[Message]]:
    """The messages that the codec has, of all that kio describes."""
    return wanted(read_kio())


def internal_records() -> dict[str, Message]:
    """The records of internal topics that the codec has, by name."""
    return {message.name: message for messages in wanted(read_internal_records()).values() for message in messages}


def cases() -> Iterator[Case]:
    """Every message of the codec that kio describes, in every version, as the codec's files name them: what kio says is
    not asked, for reading all of it takes seconds."""
    (described,) = kio.schema.__path__
    for path in sorted(MESSAGES.glob("*.py")):
        if (Path(described) / path.stem).is_dir():
            for name, first, last in _MESSAGE.findall(path.read_text()):
                for version in range(int(first), int(last) + 1):
                    yield Case(name, path.stem, version, version in (int(first), int(last)))


def _inner(annotation: Any) -> tuple[Any, bool, bool]:
    null = False
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        args = [a for a in typing.get_args(annotation) if a is not types.NoneType]
        null, annotation = True, args[0]
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True, null
    return annotation, False, null


_text = st.text(st.characters(codec="utf-8"), max_size=8)


def _scalar(kafka_type: str) -> st.SearchStrategy[Any]:
    if kafka_type in _BITS:
        bits = _BITS[kafka_type]
        return st.integers(-(2**bits), 2**bits - 1)
    if kafka_type in _SPANS:
        most = _SPANS[kafka_type]
        return st.integers(-most, most).map(lambda ms: datetime.timedelta(milliseconds=ms))
    plain: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "uint16": st.integers(0, 65535),
        "float64": st.floats(allow_nan=False, allow_infinity=False),
        "string": _text | st.just("x" * 130),
        "bytes": st.binary(max_size=8),
        "records": st.binary(max_size=140),
        "uuid": st.none() | st.uuids(),
        "error_code": st.sampled_from(ErrorCode),
        "datetime_i64": st.integers(0, 10**13).map(lambda ms: EPOCH + MILLISECOND * ms),
    }
    return plain[kafka_type]


def _field_strategy(field: Any, annotation: Any) -> st.SearchStrategy[Any]:
    inner, array, null = _inner(annotation)
    kafka_type = field.metadata.get("kafka_type")
    one = messages_of(inner) if kafka_type is None else _scalar(kafka_type)
    if array:
        if kafka_type == "uuid":
            one = st.uuids()
        one = st.lists(one, max_size=2).map(tuple)
    if null and (array or kafka_type != "uuid"):
        return st.none() | one
    return one


@functools.cache
def messages_of(cls: type) -> st.SearchStrategy[Any]:
    """Any value of one of kio's dataclasses."""
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{f.name: _field_strategy(f, hints[f.name]) for f in dataclasses.fields(cls)})


def _value(value: Any) -> Any:
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, uuid.UUID):
        return value.bytes
    return int(value) if isinstance(value, ErrorCode) else value


def _convert_field(case: Case, field: Field, value: Any) -> Any:
    if field.array and value is not None:
        return [to_ours(case, v, field.struct) if field.struct else _value(v) for v in value]
    if value is None:
        if field.array:
            return None
        return {"uuid": bytes(16), "int64": -1}.get(field.kind)
    if field.struct is None:
        return _value(value)
    struct = to_ours(case, value, field.struct)
    # the generated classes show a tagged struct of defaults as absent
    return None if field.tag is not None and struct == type(struct)() else struct


def to_ours(case: Case, message: Any, struct_name: str | None = None) -> Any:
    """The generated message with the values of a kio message."""
    name = struct_name or case.schema.name
    (struct,) = [s for s in case.schema.structs if s.name == name]
    module = sys.modules[case.ours.__module__]
    present = {f.name for f in dataclasses.fields(message)}
    values = {
        field.name: _convert_field(case, field, getattr(message, field.kio_name))
        for field in struct.fields
        if field.kio_name in present
    }
    return getattr(module, name)(**values)


def kio_bytes(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_read(cls: type, data: bytes) -> Any:
    value, size = entity_reader(cls)(data, 0)
    assert size == len(data)
    return value
