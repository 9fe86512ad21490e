"""Makes windows, pages, sessions and conversions from events by Spark: for more rows than one process should hold.

The figures are exactly those of `local`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.activity.aggregator import Span
from ottla.spark.activity.parse import EVENTS
from ottla.spark.activity.sessions import PIECE_SCHEMA, conversions, merge, pieces, sessions
from ottla.spark.activity.tables import Tables
from ottla.spark.activity.windows import top_pages, windowed
from ottla.spark.lake.parquet_files import WrittenFiles, uri, write_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(slots=True)
class SparkAggregator:
    """An `Aggregator` by Spark's jobs."""

    session: SparkSession
    tables: Tables

    def __post_init__(self) -> None:
        self.session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def merge_sessions(
        self, pending: Sequence[Path], new: Sequence[Path], over_until_us: int | None, folder: Path
    ) -> WrittenFiles:
        from pyspark.sql import functions as F

        settings = self.tables.settings
        parts = self.of_files(pending, PIECE_SCHEMA)
        if new:
            parts = parts.unionByName(pieces(self.of_files(new, EVENTS), conversion=settings.conversion))
        over = F.coalesce(F.unix_micros("end") < F.lit(over_until_us).cast("long"), F.lit(False))
        merged = merge(parts, gap_s=settings.gap_s).withColumn("over", over)
        merged.write.partitionBy("over").option("compression", "zstd").parquet(uri(folder / "merged"))
        growing, ended = folder / "merged" / "over=false", folder / "merged" / "over=true"
        growing.mkdir(exist_ok=True)
        growing.replace(folder / "open")
        rows = self.of_files(sorted(ended.glob("*.parquet")), PIECE_SCHEMA)
        return self.write("sessions", sessions(rows, conversion=settings.conversion), folder, final=True)

    def open_sessions(self, pending: Sequence[Path], folder: Path) -> WrittenFiles:
        rows = sessions(self.of_files(pending, PIECE_SCHEMA), conversion=self.tables.settings.conversion)
        return self.write("sessions", rows, folder, final=False)

    def windows(self, span: Span, folder: Path, *, final: bool) -> dict[str, WrittenFiles]:
        settings, events = self.tables.settings, self.of("events", span)
        made = {
            "windows": windowed(events, window_s=settings.window_s),
            "pages": top_pages(events, window_s=settings.window_s, top=settings.top),
        }
        return {name: self.write(name, rows, folder, final=final) for name, rows in made.items()}

    def conversions(self, span: Span, folder: Path, *, final: bool) -> WrittenFiles:
        rows = conversions(self.of("sessions", span), window_s=self.tables.settings.window_s)
        return self.write("conversions", rows, folder, final=final)

    def of(self, name: str, span: Span) -> DataFrame:
        from pyspark.sql import functions as F

        table, (since, until) = self.tables.by_name[name], span
        rows = table.frame(self.session, since)
        return rows if until is None else rows.where(F.col(str(table.by)) < F.lit(until))

    def of_files(self, files: Sequence[Path], schema: str) -> DataFrame:
        if not files:
            return self.session.createDataFrame([], schema)
        return self.session.read.schema(schema).parquet(*map(uri, files))

    def write(self, name: str, rows: DataFrame, folder: Path, *, final: bool) -> WrittenFiles:
        from pyspark.sql import functions as F

        return write_frame(rows.withColumn("final", F.lit(final)), folder / name, self.tables.by_name[name].bounded)
