"""Writes evidence as JSON, for a file that carries it to another person, and reads it back.

A snapshot holds no record, no password and no sensitive config: brokers do not return those. It does hold names of
topics, groups and clients, and addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

from ottla.doctor.snapshot import Evidence, Snapshot

FORMAT: Final = 1


class NoBundleError(ValueError):
    """The file is not a bundle of this format."""


def to_json(evidence: Evidence, **more: Any) -> dict[str, Any]:
    """The evidence as a JSON object, with more fields beside it."""
    return {"format": FORMAT, **more, "first": _encoded(evidence.first), "last": _encoded(evidence.last)}


def from_json(given: Any) -> Evidence:
    """The evidence in an object of `to_json`. Raises NoBundleError."""
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise NoBundleError(f"expected an object with format {FORMAT}")
    try:
        first, last = (_decoded(Snapshot, given[name]) for name in ("first", "last"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NoBundleError(f"a snapshot is incomplete: {error}") from None
    return Evidence(first, last)


def _encoded(value: Any) -> Any:
    """A value in JSON's types: dictionaries with other keys than texts become lists of pairs."""
    if is_dataclass(value):
        return {each.name: _encoded(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _encoded(each) for key, each in value.items()}
        return [[_encoded(key), _encoded(each)] for key, each in value.items()]
    if isinstance(value, frozenset):
        return [_encoded(each) for each in sorted(value)]
    return [_encoded(each) for each in value] if isinstance(value, tuple) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decoded(kind: Any, value: Any) -> Any:
    """A value of this type from JSON's types."""
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _decoded(hints[name], each) for name, each in value.items() if name in hints})
    if NoneType in parts:
        (other,) = (each for each in parts if each is not NoneType)
        return None if value is None else _decoded(other, value)
    if origin is dict:
        pairs = value.items() if isinstance(value, dict) else value
        return {_decoded(parts[0], key): _decoded(parts[1], each) for key, each in pairs}
    if origin is tuple and parts[-1] is not Ellipsis:
        return tuple(_decoded(part, each) for part, each in zip(parts, value, strict=True))
    if origin in (tuple, frozenset):
        return origin(_decoded(parts[0], each) for each in value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is of the wrong type: expected {kind}")
    return value
