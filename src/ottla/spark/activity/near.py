"""What is made of events, in this process: see `Maker`. For as many rows as are at hand quickly; else `far`.

Knows: tables, Arrow. Does not know: which rows are to be taken; that is `batches`' matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from ottla.spark.activity import counting, lake, visits
from ottla.spark.activity.groups import longs
from ottla.spark.activity.lake import Written
from ottla.spark.activity.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMEMBERED_MAX = 1 << 18
Span = tuple[datetime | None, datetime | None]
"""From a time on, until before a time; None: without that bound."""


class Maker(Protocol):
    """Two that make the same: `near.Near` and `far.Far`. Files come to lie below `folder`."""

    tables: Tables

    def grow(self, pending: Sequence[Path], new: Sequence[Path], over_until_us: int | None, folder: Path) -> Written:
        """Merge sessions that were open with new events. Those with an end before `over_until_us` are written as rows
        of `sessions`, the others as pieces below `folder / "open"`."""
        ...

    def open_sessions(self, pending: Sequence[Path], folder: Path) -> Written: ...
    def windows(self, span: Span, folder: Path, *, final: bool) -> dict[str, Written]: ...
    def conversions(self, span: Span, folder: Path, *, final: bool) -> Written: ...


@dataclass(slots=True)
class Near:
    """`goals`: which pages a visit is meant to reach."""

    tables: Tables
    goals: visits.Goals | None

    def grow(self, pending: Sequence[Path], new: Sequence[Path], over_until_us: int | None, folder: Path) -> Written:
        parts = [of_files(pending, visits.PIECES)]
        if new:
            events = of_files(new, self.tables.lakes["events"].arrow, visits.EVENT_COLUMNS)
            parts.append(visits.pieces(events, self.goals))
        merged = visits.merge(pa.concat_tables(parts), gap_s=self.tables.settings.gap_s)
        over = np.zeros(len(merged), bool) if over_until_us is None else longs(merged["end"]) < over_until_us
        (folder / "open").mkdir(parents=True)
        growing = merged.filter(pa.array(~over))
        if len(growing):
            lake.write_table(growing, folder / "open" / "pieces.parquet")
        return self.put("sessions", self.sessions(merged.filter(pa.array(over))), folder, final=True)

    def open_sessions(self, pending: Sequence[Path], folder: Path) -> Written:
        return self.put("sessions", self.sessions(of_files(pending, visits.PIECES)), folder, final=False)

    def sessions(self, parts: pa.Table) -> pa.Table:
        return visits.sessions(parts, converts=bool(self.tables.settings.conversion))

    def windows(self, span: Span, folder: Path, *, final: bool) -> dict[str, Written]:
        settings = self.tables.settings
        events = self.tables.lakes["events"].rows(counting.EVENT_COLUMNS, *span)
        made = {
            "windows": counting.windowed(events, window_s=settings.window_s),
            "pages": counting.top_pages(events, window_s=settings.window_s, top=settings.top),
        }
        return {name: self.put(name, rows, folder, final=final) for name, rows in made.items()}

    def conversions(self, span: Span, folder: Path, *, final: bool) -> Written:
        sessions = self.tables.lakes["sessions"].rows(counting.SESSION_COLUMNS, *span)
        made = counting.conversions(sessions, window_s=self.tables.settings.window_s)
        return self.put("conversions", made, folder, final=final)

    def put(self, name: str, rows: pa.Table, folder: Path, *, final: bool) -> Written:
        if not len(rows):
            return Written((), 0)
        return lake.put(rows.append_column("final", pa.repeat(final, len(rows))), folder, self.tables.lakes[name])


def of_files(files: Sequence[Path], schema: pa.Schema, names: Sequence[str] | None = None) -> pa.Table:
    """The rows of Parquet files; no rows where there are no files."""
    if not files:
        return schema.empty_table()
    return ds.dataset([str(file) for file in files], schema=schema).to_table(columns=names and list(names))


def goals_of(session: SparkSession, conversion: str | None) -> visits.Goals | None:
    """Pages that match the expression, as Java finds it: Spark is asked, of pages that were not seen before."""
    if not conversion:
        return None
    known: dict[str, bool] = {}

    def reached(pages: pa.Array) -> np.ndarray:
        names = pages.to_pylist()
        if len(known) > REMEMBERED_MAX:
            known.clear()
        if new := [name for name in names if name not in known]:
            known.update(matched(session, new, conversion))
        return np.array([known[name] for name in names], bool)

    return reached


def matched(session: SparkSession, texts: list[str], expression: str) -> dict[str, bool]:
    """No job is needed for rows that come from here."""
    from pyspark.sql import functions as F

    frame = session.createDataFrame(pa.table({"text": pa.array(texts, pa.string())}))
    rows = frame.select("text", F.col("text").rlike(expression).alias("matches")).toArrow()
    return dict(zip(rows["text"].to_pylist(), rows["matches"].to_pylist(), strict=True))
