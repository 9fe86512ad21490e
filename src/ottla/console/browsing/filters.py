"""Decides which records a search finds: by key, text, expression, header or path in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.console.browsing.json_path import InvalidPathError, found_in, parsed
from ottla.console.browsing.texts import JSON_BYTES_MAX
from ottla.console.page import InputError
from ottla.expressions import InvalidExpressionError, searching
from ottla.protocol.records import Record

NAMES: Final = ("key", "text", "regex", "header", "path", "is")
"""Parameters of an address that filter."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions of a search, all of which a record must meet. `texts` repeats them for the form."""

    key: bytes | None = None
    contains: bytes | None = None
    matches: Callable[[str], bool] | None = None
    header: tuple[str, bytes | None] | None = None
    steps: tuple[str | int | None, ...] | None = None
    equals: str | None = None
    texts: Mapping[str, str] = None  # type: ignore[assignment]

    @property
    def is_empty(self) -> bool:
        return not self.texts

    def accepts(self, record: Record) -> bool:
        """Whether the record meets every condition; the cheap ones are tried first."""
        value = record.value or b""
        if self.key is not None and record.key != self.key:
            return False
        if self.header is not None and not self._has_header(record):
            return False
        if self.contains is not None and self.contains not in value and self.contains not in (record.key or b""):
            return False
        if self.matches is not None and not self.matches(value.decode("utf-8", "replace")):
            return False
        return self.steps is None or self._has_at_path(value)

    def _has_header(self, record: Record) -> bool:
        assert self.header is not None
        name, value = self.header
        return any(_name(each) == name and value in (None, given) for each, given in record.headers)

    def _has_at_path(self, value: bytes) -> bool:
        if len(value) > JSON_BYTES_MAX:
            return False
        try:
            found = found_in(json.loads(value), self.steps or ())
        except (ValueError, RecursionError):
            return False
        return bool(found) if self.equals is None else any(_text(each) == self.equals for each in found)


def _name(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _text(value: Any) -> str:
    """A value of JSON as a user types it: text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def filter_of(query: Mapping[str, str]) -> Filter:
    """The filter of an address. Raises InputError."""
    texts = {name: query[name] for name in NAMES if query.get(name)}
    header = texts.get("header")
    name, equals, value = (header or "").partition("=")
    try:
        return Filter(
            key=texts["key"].encode("utf-8", "surrogateescape") if "key" in texts else None,
            contains=texts["text"].encode("utf-8", "surrogateescape") if "text" in texts else None,
            matches=searching(texts["regex"]) if "regex" in texts else None,
            header=None if header is None else (name, value.encode("utf-8", "surrogateescape") if equals else None),
            steps=parsed(texts["path"]) if "path" in texts else None,
            equals=texts.get("is"),
            texts=texts,
        )
    except InvalidExpressionError as wrong:
        raise InputError(f"The expression cannot be used: {wrong}.") from None
    except InvalidPathError as wrong:
        raise InputError(str(wrong)) from None
