"""Defines what a kind of metadata row is: which keys it has, what their values say, how the image holds them.

A file that owns a kind declares one `RowKind`, and the registry in `image.py` lists it. The image, deltas, the way a
store is read, and the handling of damaged values follow from the declaration. Most kinds are one of two shapes:

    table("nodes/", NodeRecord.decode, _registered)       a row for each name; the image holds records by name
    single("cluster/controller", ControllerRecord.decode) one row; the image holds its record, or None

Rows whose keys belong to no kind are ignored: newer versions of Ottla may write them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

from ottla.metadata.store import MetadataStore, decoded

Configs: TypeAlias = Mapping[str, str]
"""Properties as text."""


class Encodable(Protocol):
    """A record that encodes its row's value itself."""

    def encode(self) -> bytes: ...


Record: TypeAlias = Encodable | Configs


class Row(NamedTuple):
    """A decoded row of the store, and its version for a compare-and-set."""

    record: Record
    version: int


Rows: TypeAlias = Mapping[str, Row | None]
"""Rows that were written, by name or by key; None for a row that was removed."""


class _Versioned(Protocol):
    """A named tuple with a field `version`: that of its row, 0 until it is committed."""

    def _replace(self, **fields: Any) -> Self: ...

    def encode(self) -> bytes: ...


_Part = TypeVar("_Part")
_Kept = TypeVar("_Kept")
_Read = TypeVar("_Read", bound=Record)
_Only = TypeVar("_Only", bound=_Versioned)


class RowKind(Generic[_Part]):
    """One kind of row. The image holds all rows of a kind as one immutable value, its part.

    - `prefix`: the prefix of the rows' keys, which the name of a row follows; the whole key if there is only one row.
    - `decode`: returns the record in a value, given the row's name and the part that is known. Raises ValueError,
      KeyError or TypeError for a damaged value.
    - `apply`: returns the part after rows of these names were written or removed. Never changes the old part.
    - `names`: returns the names of the rows that a part was made from.
    - `is_single`: whether there is only one row, whose name is ''.
    """

    __slots__ = ("apply", "decode", "empty", "is_single", "names", "prefix")

    def __init__(
        self,
        prefix: str,
        decode: Callable[[bytes, str, _Part], Record],
        apply: Callable[[_Part, Rows], _Part],
        names: Callable[[_Part], Collection[str]],
        empty: _Part,
        *,
        is_single: bool = False,
    ) -> None:
        self.prefix = prefix
        self.decode = decode
        self.apply = apply
        self.names = names
        self.empty = empty
        self.is_single = is_single

    def is_of(self, key: str) -> bool:
        """Whether a key is one of this kind's."""
        return key == self.prefix if self.is_single else key.startswith(self.prefix)

    def read(self, store: MetadataStore, key: str, value: bytes, known: _Part) -> Record:
        """The record in the value of a key. `known`: the part of the image. Raises StoreDamagedError."""
        name = key[len(self.prefix) :]
        return decoded(store, key, lambda text: self.decode(text, name, known), value)


def table(
    prefix: str, decode: Callable[[bytes], _Read], kept: Callable[[_Read, int], _Kept]
) -> RowKind[Mapping[str, _Kept]]:
    """A kind with a row for each name. `kept`: what the image holds of a record and the version of its row."""

    def apply(part: Mapping[str, _Kept], rows: Rows) -> Mapping[str, _Kept]:
        new = dict(part)
        for name in rows:
            new.pop(name, None)
        for name, row in rows.items():
            if row is not None:
                new[name] = kept(cast("_Read", row.record), row.version)
        return new

    empty: Mapping[str, _Kept] = {}
    return RowKind(prefix, lambda value, _name, _part: decode(value), apply, _names, empty)


def single(key: str, decode: Callable[[bytes], _Only]) -> RowKind[_Only | None]:
    """A kind with one row, or none. The image holds its record with the row's version."""

    def apply(_part: _Only | None, rows: Rows) -> _Only | None:
        (row,) = rows.values()
        return None if row is None else cast("_Only", row.record)._replace(version=row.version)

    return RowKind(key, lambda value, _name, _part: decode(value), apply, _one_name, None, is_single=True)


def _names(part: Mapping[str, object]) -> Collection[str]:
    return part


def _one_name(part: object) -> Collection[str]:
    return () if part is None else ("",)


def encoded(record: Record) -> bytes:
    """The value of a record's row."""
    if isinstance(record, Mapping):
        return json.dumps(dict(record)).encode()
    return record.encode()


class Registry:
    """Every kind of row that an image holds."""

    __slots__ = ("_kinds", "_single", "_tables")

    def __init__(self, *kinds: RowKind[Any]) -> None:
        self._kinds: Final = kinds
        self._single: Final = {kind.prefix: kind for kind in kinds if kind.is_single}
        self._tables: Final = tuple((kind.prefix, kind) for kind in kinds if not kind.is_single)
        for kind in kinds:
            shadowed = [other.prefix for other in kinds if other is not kind and kind.is_of(other.prefix)]
            assert not shadowed, f"keys of {kind.prefix} may begin with {shadowed}"

    def __iter__(self) -> Iterator[RowKind[Any]]:
        return iter(self._kinds)

    def kind_of(self, key: str) -> RowKind[Any] | None:
        """The kind that a key belongs to; None for a key of no kind."""
        for prefix, kind in self._tables:
            if key.startswith(prefix):
                return kind
        return self._single.get(key)
