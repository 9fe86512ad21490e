"""Decodes values in Avro with fastavro as values of JSON, and encodes them.

Values of unions have no name of their branch. Bytes are text in ISO 8859-1, as in Avro's own JSON. Logical types are
written as people read them: times in ISO 8601, decimals and UUIDs as text.

Only the worker process imports this module.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from fastavro import parse_schema
from fastavro.read import LOGICAL_READERS, schemaless_reader
from fastavro.write import schemaless_writer

from ottla.schemas.fitting import Fitting
from ottla.schemas.nesting import DEPTH_MAX, is_too_deep
from ottla.wording import counted

_RECORD: Final = "ottla_value_of_the_schema"


class Avro:
    """A schema, with those that it refers to. Raises ValueError, or an error of fastavro, if it cannot be read."""

    def __init__(self, text: str, references: Iterable[tuple[str, str]]) -> None:
        named: dict[str, Any] = {}
        for _, each in references:
            parse_schema(_json(each), named, _force=True)
        # In a record, which adds no byte: fastavro finds the names of referred schemas from records only.
        fields = [{"name": "value", "type": _json(text)}]
        record = {"type": "record", "name": _RECORD, "fields": fields}
        self._schema: Any = parse_schema(record, named, _force=True)
        kind: Any = self._schema["fields"][0]["type"]
        if isinstance(kind, dict):
            kind = kind.get("name") or kind["type"]
        self._fitting = Fitting(named)
        self.name = kind if isinstance(kind, str) else "union"

    def decoded(self, data: bytes) -> Any:
        """The value of JSON. Raises ValueError, or an error of fastavro."""
        stream = io.BytesIO(data)
        value: Any = schemaless_reader(stream, self._schema, None)
        left = len(data) - stream.tell()
        if left:
            raise ValueError(f"it has {counted(left, 'byte')} more than its schema says")
        return plain(value["value"])

    def encoded(self, value: Any) -> bytes:
        """The bytes of a value of JSON. Raises MisfitError, or an error of fastavro."""
        stream = io.BytesIO()
        fitted = self._fitting.fitted(self._schema["fields"][0]["type"], value, "")
        schemaless_writer(stream, self._schema, {"value": fitted})
        return stream.getvalue()


def _json(text: str) -> Any:
    """The JSON of a schema. A schema that is nested too deep would overflow the stack of compiled code."""
    value = json.loads(text)
    if is_too_deep(value):
        raise ValueError(f"the schema is nested deeper than {DEPTH_MAX} levels")
    return value


def plain(value: Any) -> Any:
    """A value of fastavro as a value of JSON."""
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.decode("iso-8859-1")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _lenient(read: Callable[..., Any]) -> Callable[..., Any]:
    """A reader of a logical type that keeps the bare value where Python has none, for example a time after 9999."""

    def read_or_keep(data: Any, writer_schema: Any = None, reader_schema: Any = None) -> Any:
        try:
            return read(data, writer_schema, reader_schema)
        except (ValueError, OverflowError, ArithmeticError):
            return data

    return read_or_keep


LOGICAL_READERS.update({name: _lenient(read) for name, read in LOGICAL_READERS.items()})
