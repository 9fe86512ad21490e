"""Messages of the codec from plain keyword values, so that a scenario reads like the protocol guide."""

from __future__ import annotations

import typing
from functools import cache
from typing import Any

from ottla.protocol.apis import APIS


@cache
def request_class(api: str) -> type[Any]:
    return next(known for known in APIS.values() if known.name == api).request


def build(cls: type[Any], fields: dict[str, Any]) -> Any:
    """An instance of `cls`; dicts become the structs of their field, in lists too."""
    unknown = set(fields) - set(fields_of(cls))
    if unknown:
        raise TypeError(f"{cls.__name__} has no {', '.join(sorted(unknown))}")
    made = cls()
    for name, value in fields.items():
        setattr(made, name, _field(cls, name, value))
    return made


def _field(cls: type[Any], name: str, value: Any) -> Any:
    match value:
        case dict():
            return build(_struct_of(cls, name), value)
        case [*items] if any(isinstance(item, dict) for item in items):
            return [_field(cls, name, item) for item in items]
        case _:
            return value


@cache
def _struct_of(cls: type[Any], name: str) -> type[Any]:
    hint: Any = typing.get_type_hints(cls.__init__)[name]
    while typing.get_args(hint):
        hint = next(a for a in typing.get_args(hint) if a is not type(None))
    return hint


def fields_of(cls: type[Any]) -> tuple[str, ...]:
    return cls.__slots__


@cache
def _defaults(cls: type[Any]) -> Any:
    return cls()


def default_of(cls: type[Any], name: str) -> Any:
    return getattr(_defaults(cls), name)
