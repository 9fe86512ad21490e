"""Puts the page around the charts: one HTML file with its styles and its one small script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.report.charts import Bars, Chart, Table

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: charts and tables under one heading. `halves`: two are side by side if there is space."""

    title: str
    items: Sequence[Chart | Bars | Table] = field(default_factory=tuple)
    note: str = ""
    halves: bool = False


def page(
    title: str,
    subtitle: str,
    headline: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    *,
    note: str = "",
    warning: str = "",
) -> str:
    """Return the page as HTML text. `headline`: (label, value) of the most important figures. `note` is shown at the
    bottom, `warning` at the top. Every text is escaped."""
    script = (HERE / "page.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template().render(
        title=title,
        subtitle=subtitle,
        headline=headline,
        sections=sections,
        note=note,
        warning=warning,
        style=(HERE / "page.css").read_text(),
        script=script,
        digest=digest,
        kind=lambda item: type(item).__name__,
    )


def write_page(path: str, text: str) -> None:
    """Write a page to a file. Raises PipelineFailedError where that can't be done."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineFailedError(f"The report can't be written to {path}: {error.strerror}.") from None


def drawn_from(topics: Iterable[str], table: Path, now: datetime) -> str:
    """Where a page's figures are from, as a sentence for its head. `now` in UTC."""
    named = sorted(topics)
    what = f"{'Topic' if len(named) == 1 else 'Topics'} {', '.join(named)}" if named else "No topic yet"
    return f"{what}; table {table.name}; drawn {now:%d %B %Y %H:%M} UTC."


@cache
def template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(HERE)
    names = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return names.get_template("page.html.j2")
