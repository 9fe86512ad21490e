"""Declares what `Batches` needs to make windows, pages, sessions and conversions from events.

`local` does it in this process, `spark` by Spark jobs. `batches` chooses the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol

from ottla.spark.activity.tables import Tables
from ottla.spark.lake.parquet_files import WrittenFiles

Span = tuple[datetime | None, datetime | None]
"""(first time, end time), the end excluded; None: no bound."""


class Aggregator(Protocol):
    """Aggregates rows and writes the results to files below `folder`. `final`: false for results that may still
    change."""

    tables: Tables

    def merge_sessions(
        self, pending: Sequence[Path], new: Sequence[Path], over_until_us: int | None, folder: Path
    ) -> WrittenFiles:
        """Merge sessions that were open with new events. Sessions that end before `over_until_us` are written as rows
        of `sessions`, the others as pieces below `folder / "open"`."""
        ...

    def open_sessions(self, pending: Sequence[Path], folder: Path) -> WrittenFiles:
        """Sessions that are still open, as rows of `sessions`."""
        ...

    def windows(self, span: Span, folder: Path, *, final: bool) -> dict[str, WrittenFiles]:
        """Rows of `windows` and `pages`, of the events of a span."""
        ...

    def conversions(self, span: Span, folder: Path, *, final: bool) -> WrittenFiles:
        """Rows of `conversions`, of the sessions that end in a span."""
        ...
