"""Turns a value of JSON into one that fastavro writes, and finds the field that does not fit the schema.

It accepts what `avro` makes of a value: members of unions without the name of their branch, bytes as ISO 8859-1,
logical types as text. A branch may also be named, as Avro's own JSON does: {"shop.Card": {...}}.

Only the worker process imports this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from ottla.schemas.nesting import DEPTH_MAX

_SHOWN_CHARS: Final = 40
_DIGITS_MAX: Final = 10_000
_WHOLE: Final = {"int": 31, "long": 63}
_NUMBERS_IN_TEXT: Final = ("nan", "inf", "-inf", "infinity", "-infinity")
_LAST: Final[Mapping[type, tuple[str, ...]]] = {int: ("float", "double"), str: ("bytes", "fixed"), dict: ("map",)}
"""Branches of a union that are tried last for a value of this type, because others suit it better."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FINEST: Final = {"millis": timedelta(milliseconds=1), "micros": timedelta(microseconds=1)}


class MisfitError(ValueError):
    """A value that does not fit its schema; the text is part of a sentence, and names the field."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{f'the field {path}' if path else 'it'} {why}")


class Fitting:
    """Fits values to one schema. `named` are the schemas of named types."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._by_kind: dict[str, Callable[[Any, Any, str, int], Any]] = {
            "record": self._record,
            "error": self._record,
            "array": self._array,
            "map": self._map,
        }

    def fitted(self, schema: Any, value: Any, path: str, depth: int = 0) -> Any:
        """The value for fastavro. Raises MisfitError."""
        if depth > DEPTH_MAX:
            raise MisfitError(path, "is nested too deep")
        if isinstance(schema, list):
            return self._union(schema, value, path, depth)
        schema = self._resolved(schema)
        kind = schema["type"]
        if isinstance(kind, (list, dict)):
            return self.fitted(kind, value, path, depth + 1)
        within = self._by_kind.get(kind)
        return _plain(schema, kind, value, path) if within is None else within(schema, value, path, depth)

    def _resolved(self, schema: Any) -> Any:
        if isinstance(schema, str):
            return self._named.get(schema) or {"type": schema}
        return schema

    def _record(self, schema: Any, value: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        names = [each["name"] for each in schema["fields"]]
        for name in value:
            if name not in names:
                raise MisfitError(_under(path, name), f"is unknown: the schema has {', '.join(names) or 'no fields'}")
        found: dict[str, Any] = {}
        for each in schema["fields"]:
            name = each["name"]
            if name not in value and "default" not in each:
                raise MisfitError(_under(path, name), "is missing, and has no default")
            given = value[name] if name in value else each["default"]
            found[name] = self.fitted(each["type"], given, _under(path, name), depth + 1)
        return found

    def _array(self, schema: Any, value: Any, path: str, depth: int) -> list[Any]:
        if not isinstance(value, list):
            raise _wrong(path, "an array", value)
        return [self.fitted(schema["items"], each, f"{path}[{at}]", depth + 1) for at, each in enumerate(value)]

    def _map(self, schema: Any, value: Any, path: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        return {
            name: self.fitted(schema["values"], each, _under(path, name), depth + 1) for name, each in value.items()
        }

    def _union(self, branches: list[Any], value: Any, path: str, depth: int) -> tuple[str, Any]:
        """The name of the branch that the value fits, and the value for it."""
        named = [(self._name_of(each), each) for each in branches]
        last = _LAST.get(type(value), ())
        misfits: list[MisfitError] = []
        for name, each in sorted(named, key=lambda pair: self._resolved(pair[1])["type"] in last):
            try:
                return name, self.fitted(each, value, path, depth + 1)
            except MisfitError as misfit:
                if name != "null":
                    misfits.append(misfit)
        if isinstance(value, dict) and len(value) == 1:
            ((given, content),) = value.items()
            for name, each in named:
                if name == given:
                    return name, self.fitted(each, content, path, depth + 1)
        if len(misfits) == 1:
            raise misfits[0]
        raise _wrong(path, f"one of {', '.join(name for name, _ in named)}", value)

    def _name_of(self, branch: Any) -> str:
        if isinstance(branch, str):
            return branch
        return str(branch.get("name") or branch["type"])


def _under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _wrong(path: str, wanted: str, value: Any) -> MisfitError:
    text = json.dumps(value, ensure_ascii=False)
    return MisfitError(path, f"must be {wanted}, not {text[:_SHOWN_CHARS]}{'…' if text[_SHOWN_CHARS:] else ''}")


def _plain(schema: Any, kind: str, value: Any, path: str) -> Any:
    """A value without parts."""
    logical = schema.get("logicalType")
    if kind == "null":
        fits, wanted = value is None, "null"
    elif kind == "boolean":
        fits, wanted = isinstance(value, bool), "true or false"
    elif kind in _WHOLE:
        return _whole(logical, kind, value, path)
    elif kind in ("float", "double"):
        return _number(value, path)
    elif kind in ("bytes", "fixed"):
        return _decimal(schema, value, path) if logical == "decimal" else _bytes(schema, kind, value, path)
    elif kind == "enum":
        fits, wanted = value in schema["symbols"], f"one of {', '.join(schema['symbols'])}"
    elif kind == "string" and logical == "uuid":
        fits, wanted = _is_uuid(value), "a UUID"
    elif kind == "string":
        fits, wanted = isinstance(value, str), "text"
    else:
        raise MisfitError(path, f"has the type {kind}, which is unknown")
    if not fits:
        raise _wrong(path, wanted, value)
    return value


def _whole(logical: str | None, kind: str, value: Any, path: str) -> int:
    """A whole number, or a date or time as text."""
    bits = _WHOLE[kind]
    wanted = f"a whole number from {-(1 << bits):,} to {(1 << bits) - 1:,}"
    if isinstance(value, str) and logical is not None:
        example = _EXAMPLES.get(logical.partition("-")[0])
        if example is None:
            raise _wrong(path, wanted, value)
        try:
            value = _time(logical, value)
        except ValueError:
            raise _wrong(path, f"a {logical} such as {example}", value) from None
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << bits) <= value < 1 << bits:
        raise _wrong(path, wanted, value)
    return value


_EXAMPLES: Final = {
    "date": "2026-01-31",
    "time": "12:00:00.5",
    "timestamp": "2026-01-31T12:00:00Z",
    "local": "2026-01-31T12:00:00",
}
"""Texts of logical types of numbers, by the beginning of their names."""


def _time(logical: str, text: str) -> int:
    """The number that stands for a date or time, which is UTC without a zone. Raises ValueError."""
    if logical == "date":
        return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()
    finest = _FINEST.get(logical.rpartition("-")[2])
    if finest is None:
        raise ValueError
    if logical.startswith("time-"):
        at = datetime.combine(_EPOCH, time.fromisoformat(text), UTC)
    else:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
    number, rest = divmod(at - _EPOCH, finest)
    if rest:
        raise ValueError
    return number


def _number(value: Any, path: str) -> float:
    if isinstance(value, str) and value.lower() in _NUMBERS_IN_TEXT:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(path, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise _wrong(path, "a number", value) from None


def _bytes(schema: Any, kind: str, value: Any, path: str) -> bytes:
    if not isinstance(value, str):
        raise _wrong(path, "bytes as text in ISO 8859-1", value)
    try:
        found = value.encode("iso-8859-1")
    except UnicodeEncodeError:
        raise _wrong(path, "bytes as text in ISO 8859-1", value) from None
    if kind == "fixed" and len(found) != schema["size"]:
        raise MisfitError(path, f"must have {schema['size']} bytes, not {len(found)}")
    return found


def _decimal(schema: Any, value: Any, path: str) -> Decimal:
    precision, scale = schema["precision"], schema.get("scale", 0)
    wanted = f"a decimal number of at most {precision} digits, {scale} of them after the point"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _wrong(path, wanted, value)
    try:
        found = Decimal(str(value)).normalize(Context(prec=_DIGITS_MAX))
    except InvalidOperation:
        raise _wrong(path, wanted, value) from None
    exponent = found.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -scale or (found and found.adjusted() >= precision - scale):
        raise _wrong(path, wanted, value)
    return found


def _is_uuid(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(UUID(value))
    except ValueError:
        return False
