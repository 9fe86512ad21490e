"""Decides which records a search finds: by key, text, expression, header or path in JSON.

A key or value that a schema decodes is searched as JSON, and its text as bytes too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.console.browsing.json_path import InvalidPathError, Wanted, found_in, parsed, read_json, wanted
from ottla.console.browsing.texts import JSON_BYTES_MAX
from ottla.console.errors import InputError
from ottla.expressions import InvalidExpressionError, searching
from ottla.protocol.records import Record
from ottla.schemas.decoder import Decoded

NAMES: Final = ("key", "text", "regex", "header", "path", "is")
"""Parameters of an address that filter."""


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions of a search, all of which a record must meet. `texts` repeats them for the form."""

    key: bytes | None = None
    decoded_key: Wanted | None = None
    contains: bytes | None = None
    matches: Callable[[str], bool] | None = None
    header: tuple[str, bytes | None] | None = None
    steps: tuple[str | int | None, ...] | None = None
    equals: Wanted | None = None
    texts: Mapping[str, str] = None  # type: ignore[assignment]

    @property
    def is_empty(self) -> bool:
        return not self.texts

    @property
    def reads_content(self) -> bool:
        """Whether it depends on keys or values."""
        return any(each is not None for each in (self.key, self.contains, self.matches, self.steps))

    def accepts(self, record: Record, key: Decoded | None = None, value: Decoded | None = None) -> bool:
        """Whether the record meets every condition; the cheap ones are tried first. `key`, `value`: decoded."""
        key_text, text = _content(record.key, key), _content(record.value, value)
        if self.key is not None and self.key != record.key and not self._is_key(key):
            return False
        if self.header is not None and not self._has_header(record):
            return False
        contents = (text, key_text, record.value or b"", record.key or b"")
        if self.contains is not None and not any(self.contains in each for each in contents):
            return False
        if self.matches is not None and not self.matches(text.decode("utf-8", "replace")):
            return False
        return self.steps is None or self._has_at_path(text)

    def _is_key(self, decoded: Decoded | None) -> bool:
        """Whether a decoded key is the one that the user typed."""
        if self.decoded_key is None or decoded is None or decoded.json is None:
            return False
        try:
            return self.decoded_key.is_equal(read_json(decoded.json))
        except (ValueError, RecursionError):
            return False

    def _has_header(self, record: Record) -> bool:
        assert self.header is not None
        name, value = self.header
        return any(_name(each) == name and value in (None, given) for each, given in record.headers)

    def _has_at_path(self, value: bytes) -> bool:
        if len(value) > JSON_BYTES_MAX:
            return False
        try:
            found = found_in(read_json(value), self.steps or ())
            return bool(found) if self.equals is None else any(map(self.equals.is_equal, found))
        except (ValueError, RecursionError):
            return False


def _content(data: bytes | None, decoded: Decoded | None) -> bytes:
    """The decoded content, or else the bytes."""
    return (data or b"") if decoded is None or decoded.json is None else decoded.json


def _name(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def filter_of(query: Mapping[str, str]) -> Filter:
    """The filter of an address. Raises InputError."""
    texts = {name: query[name] for name in NAMES if query.get(name)}
    header = texts.get("header")
    name, equals, value = (header or "").partition("=")
    try:
        return Filter(
            key=texts["key"].encode("utf-8", "surrogateescape") if "key" in texts else None,
            decoded_key=wanted(texts["key"]) if "key" in texts else None,
            contains=texts["text"].encode("utf-8", "surrogateescape") if "text" in texts else None,
            matches=searching(texts["regex"]) if "regex" in texts else None,
            header=None if header is None else (name, value.encode("utf-8", "surrogateescape") if equals else None),
            steps=parsed(texts["path"]) if "path" in texts else None,
            equals=wanted(texts["is"]) if "is" in texts else None,
            texts=texts,
        )
    except InvalidExpressionError as wrong:
        raise InputError(f"The expression cannot be used: {wrong}.") from None
    except InvalidPathError as wrong:
        raise InputError(str(wrong)) from None
