"""Turns views into HTML and JSON. Every text from the cluster is escaped here, whatever a template forgets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from ottla import __version__
from ottla.console import charts
from ottla.console.page import Page, url
from ottla.doctor.words import duration, size
from ottla.escaping import visible, visible_lines
from ottla.wording import counted

HERE: Final = Path(__file__).parent
UNKNOWN: Final = "?"
"""Stands for a number that the cluster does not report."""


def shown(value: object) -> object:
    """The text of an expression in a template: control characters and marks of writing direction become visible."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else visible(str(value))


def lines(value: str) -> Markup:
    """A text of several lines for <pre>."""
    return escape(visible_lines(value))


def exact(value: str) -> Markup:
    """A text for the value of a form's field, which the browser sends back as it is."""
    return escape(value)


def json_of(here: str) -> str:
    """The address of the same page as JSON."""
    path, mark, query = here.partition("?")
    return f"{path}.json{mark}{query}"


def back_of(page: Page, query: Mapping[str, str]) -> str:
    """The page from which a change began."""
    return url(page.path, **query)


def number(value: int | float | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def rate(value: float | None) -> str:
    """A number a second: "1,234", "12.3", "0.05"."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if value >= 100 or not value else f"{value:.3g}"


def sized(value: float | None) -> str:
    return UNKNOWN if value is None else size(value)


def lasting(milliseconds: float | None) -> str:
    return UNKNOWN if milliseconds is None else duration(milliseconds / 1000)


def moment(milliseconds: int | None) -> Markup:
    """A time of the cluster, in UTC; the browser shows its own time zone on demand."""
    if milliseconds is None:
        return Markup(UNKNOWN)
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return escape(str(milliseconds))
    text = at.strftime("%Y-%m-%d %H:%M:%S")
    return Markup(f'<time datetime="{at.isoformat()}">{text}</time>')


def advice(text: str) -> Markup:
    """A doctor's advice: a command, or a sentence with commands between backticks."""
    if "`" not in text:
        text = f"`{text}`" if text.startswith("ottla ") else text
    parts = [escape(visible(part)) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def each(values: Any) -> str:
    """Numbers or names in one cell: "1, 2, 3"."""
    return ", ".join(map(str, values))


@cache
def static_version() -> str:
    """Changes with any file that browsers may keep."""
    content = b"".join(path.read_bytes() for path in sorted((HERE / "static").iterdir()))
    return sha256(content).hexdigest()[:12]


@cache
def environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        lines=lines,
        number=number,
        rate=rate,
        size=sized,
        lasting=lasting,
        moment=moment,
        each=each,
        counted=counted,
        advice=advice,
    )
    found.globals.update(url=url, exact=exact, json_of=json_of, back_of=back_of, charts=charts)
    found.globals.update(ottla_version=__version__, static_version=static_version)
    found.globals["shell"] = found.get_template("macros.html").module.shell  # pyright: ignore[reportAttributeAccessIssue]
    return found


def html(template: str, **given: object) -> str:
    return environment().get_template(template).render(given)


def plain(value: object) -> Any:
    """A view as JSON's types."""
    if isinstance(value, Enum):
        return value.name.lower()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value)


def json_bytes(view: object) -> bytes:
    return json.dumps(plain(view), indent=1).encode("ascii") + b"\n"
