"""Makes windows, pages, sessions and conversions from events in this process, by numpy over Arrow.

It is meant for few rows: starting a Spark job takes longer than this does for a million rows. `spark` handles more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from ottla.spark.activity import local_sessions, local_windows
from ottla.spark.activity.aggregator import Span
from ottla.spark.activity.groups import longs
from ottla.spark.activity.tables import Tables
from ottla.spark.lake.parquet_files import NO_FILES, WrittenFiles, write_file, write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMEMBERED_MAX = 1 << 18


@dataclass(slots=True)
class LocalAggregator:
    """An `Aggregator` in this process. `goals`: selects the pages that count as conversions."""

    tables: Tables
    goals: local_sessions.Goals | None

    def merge_sessions(
        self, pending: Sequence[Path], new: Sequence[Path], over_until_us: int | None, folder: Path
    ) -> WrittenFiles:
        parts = [of_files(pending, local_sessions.PIECES)]
        if new:
            events = of_files(new, self.tables.by_name["events"].arrow, local_sessions.EVENT_COLUMNS)
            parts.append(local_sessions.pieces(events, self.goals))
        merged = local_sessions.merge(pa.concat_tables(parts), gap_s=self.tables.settings.gap_s)
        over = np.zeros(len(merged), bool) if over_until_us is None else longs(merged["end"]) < over_until_us
        (folder / "open").mkdir(parents=True)
        growing = merged.filter(pa.array(~over))
        if len(growing):
            write_file(growing, folder / "open" / "pieces.parquet")
        return self.write("sessions", self.sessions(merged.filter(pa.array(over))), folder, final=True)

    def open_sessions(self, pending: Sequence[Path], folder: Path) -> WrittenFiles:
        return self.write("sessions", self.sessions(of_files(pending, local_sessions.PIECES)), folder, final=False)

    def sessions(self, parts: pa.Table) -> pa.Table:
        return local_sessions.sessions(parts, converts=bool(self.tables.settings.conversion))

    def windows(self, span: Span, folder: Path, *, final: bool) -> dict[str, WrittenFiles]:
        settings = self.tables.settings
        events = self.tables.by_name["events"].rows(local_windows.EVENT_COLUMNS, *span)
        made = {
            "windows": local_windows.windowed(events, window_s=settings.window_s),
            "pages": local_windows.top_pages(events, window_s=settings.window_s, top=settings.top),
        }
        return {name: self.write(name, rows, folder, final=final) for name, rows in made.items()}

    def conversions(self, span: Span, folder: Path, *, final: bool) -> WrittenFiles:
        sessions = self.tables.by_name["sessions"].rows(local_windows.SESSION_COLUMNS, *span)
        made = local_windows.conversions(sessions, window_s=self.tables.settings.window_s)
        return self.write("conversions", made, folder, final=final)

    def write(self, name: str, rows: pa.Table, folder: Path, *, final: bool) -> WrittenFiles:
        if not len(rows):
            return NO_FILES
        table = self.tables.by_name[name]
        return write_rows(rows.append_column("final", pa.repeat(final, len(rows))), folder, table.arrow, table.bounded)


def of_files(files: Sequence[Path], schema: pa.Schema, names: Sequence[str] | None = None) -> pa.Table:
    """Read the rows of Parquet files; no rows if there are no files."""
    if not files:
        return schema.empty_table()
    return ds.dataset([str(file) for file in files], schema=schema).to_table(columns=names and list(names))


def goals_of(session: SparkSession, conversion: str | None) -> local_sessions.Goals | None:
    """Select the pages that match the expression by Java's rules: Spark matches pages that were not seen before."""
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
    """Match texts against the expression. Rows from this process need no Spark job."""
    from pyspark.sql import functions as F

    frame = session.createDataFrame(pa.table({"text": pa.array(texts, pa.string())}))
    rows = frame.select("text", F.col("text").rlike(expression).alias("matches")).toArrow()
    return dict(zip(rows["text"].to_pylist(), rows["matches"].to_pylist(), strict=True))
