"""Defines what a page is: a function from a context to a view, its slow parts, and the changes that it offers.

A view is a frozen dataclass. Its template shows it as HTML, and `path.json` as JSON, so both always agree. Functions of
pages run on a thread, where they may block.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from ottla.client.client import Client
from ottla.console.access import Lease
from ottla.console.errors import InputError, MissingError
from ottla.console.sessions import Session
from ottla.console.settings import Settings
from ottla.escaping import visible
from ottla.schemas.decoder import Decoder
from ottla.times import is_storable, millis_of

__all__ = ["InputError", "MissingError"]  # for pages, beside what is defined here

ROWS: Final = 50
"""Rows of one page of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The facts on a page. `command` is the `ottla` command that shows the same."""

    title: str
    command: str


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments of a page's function: the query of the address, the form of a POST, a client of the cluster, and
    the decoder of a schema registry if there is one."""

    settings: Settings
    session: Session
    lease: Lease
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    form: Mapping[str, str] = field(default_factory=dict[str, str])
    decoder: Decoder | None = None

    @property
    def client(self) -> Client:
        return self.lease.client

    @property
    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def need(self, name: str) -> str:
        """A value of the address. Raises InputError without it."""
        value = self.query.get(name)
        if value is None:
            raise InputError(f"The address lacks {name}=...")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = 1 << 62) -> int:
        """A number of the address. Raises InputError for another text."""
        text = self.query.get(name) or str(default)
        if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
            raise InputError(f"{name} must be a number, not {visible(text)[:40]!r}.")
        return max(least, min(int(text), most))

    @property
    def consume_options(self) -> tuple[str, ...]:
        """The options with which `ottla consume` shows records as pages do."""
        return ("--format", "json", *self.registry_options)

    @property
    def registry_options(self) -> tuple[str, ...]:
        """The options of commands that name the schema registry."""
        registry = self.settings.registry
        return () if registry is None else ("--schema-registry", registry.url)

    def command(self, *words: str) -> str:
        """A command line that reaches this cluster: "ottla topics list --bootstrap ..."."""
        return shlex.join(("ottla", *words, *self.settings.arguments))


def time_in(text: str) -> int:
    """Milliseconds since 1970 of a time that the user typed. Raises InputError."""
    found = millis_of(text.strip())
    if found is None or not is_storable(found):
        raise InputError("Give a time such as 2026-01-31T12:00, in UTC, of the years 1970 to 9999.")
    return found


@dataclass(frozen=True, slots=True)
class Paged:
    """Which rows of a list a page shows. `total` counts those that match the search."""

    page: int
    pages: int
    total: int
    first: int


def paged(names: list[Any], page: int) -> tuple[Paged, list[Any]]:
    """The rows of a page, counted from 1, and where they are in the list."""
    pages = max(1, -(-len(names) // ROWS))
    page = max(1, min(page, pages))
    first = (page - 1) * ROWS
    return Paged(page, pages, len(names), first), names[first : first + ROWS]


# ---- changes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form. `kind`: text, number, password, textarea, checkbox, or select with `options`."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    options: tuple[str, ...] = ()
    hint: str = ""
    required: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """The effects of a change, shown before the user confirms it.

    `subject` is the name that the user types to confirm. `sentences` say what happens, with counts; `warnings` what it
    costs. `columns` and `rows` are a table of before and after. If `facts` differ when the change is confirmed, the
    preview is shown again.
    """

    subject: str
    sentences: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    facts: object = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """A change that was applied: what to say, where to go, and the details for the audit line."""

    sentence: str
    next: str
    details: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Change:
    """Something that a page can change: a form (perhaps empty), a preview with counts, then the change.

    `preview` and `fields` may only read; `apply` gets a context that may change. With `is_destructive`, the user types
    the name of the subject. `is_primary` marks the button that most users come for. The address is that of the page, a
    slash and `name`; the query names the subject. Previews and changes raise InputError for values that cannot be used.
    """

    name: str
    title: str
    preview: Callable[[Context], Preview]
    apply: Callable[[Context], Done]
    fields: Callable[[Context], Iterable[Field]] = lambda _: ()
    is_destructive: bool = True
    is_primary: bool = False


# ---- pages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a page that is slow or may fail alone: it loads by itself, and its error stays in its place. The page's
    template places a part that is not listed, and one with `refresh_s` 0 refreshes itself in its own way. One that
    `folds` is closed on a phone at first."""

    name: str
    title: str
    load: Callable[[Context], View]
    refresh_s: int = 15
    is_first: bool = False
    is_listed: bool = True
    folds: bool = False


@dataclass(frozen=True, slots=True)
class Download:
    """Bytes that a page offers as a file: `load` returns the file's name and its content."""

    name: str
    load: Callable[[Context], tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page. `name` is that of its template, `path` its address. `label` and `key` (g, then the key) are for the
    navigation. A page without a label is reached by links; `under` is the path of its list in the navigation.
    `refresh_s`: 0 for a page that does not refresh itself."""

    name: str
    path: str
    load: Callable[[Context], View]
    under: str = ""
    label: str = ""
    key: str = ""
    refresh_s: int = 5
    parts: tuple[Part, ...] = ()
    changes: tuple[Change, ...] = ()
    downloads: tuple[Download, ...] = ()


def url(path: str, /, **query: object) -> str:
    """An address within the console; values of any characters, None left out."""
    given = {name: str(value) for name, value in query.items() if value is not None and value != ""}
    return f"{path}?{urlencode(given, errors='surrogatepass')}" if given else path
