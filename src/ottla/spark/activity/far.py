"""What is made of events, by Spark: see `near.Maker`. For more rows than one process should hold.

Knows: tables, DataFrames. Does not know: which rows are to be taken; that is `batches`' matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.activity import lake
from ottla.spark.activity.lake import Written
from ottla.spark.activity.near import Span
from ottla.spark.activity.parse import EVENTS
from ottla.spark.activity.sessions import PIECE_SCHEMA, conversions, merge, pieces, sessions
from ottla.spark.activity.tables import SCHEMAS, Tables
from ottla.spark.activity.windows import top_pages, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(slots=True)
class Far:
    session: SparkSession
    tables: Tables

    def __post_init__(self) -> None:
        self.session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def grow(self, pending: Sequence[Path], new: Sequence[Path], over_until_us: int | None, folder: Path) -> Written:
        from pyspark.sql import functions as F

        settings = self.tables.settings
        parts = self.of_files(pending, PIECE_SCHEMA)
        if new:
            parts = parts.unionByName(pieces(self.of_files(new, EVENTS), conversion=settings.conversion))
        over = F.coalesce(F.unix_micros("end") < F.lit(over_until_us).cast("long"), F.lit(False))
        merged = merge(parts, gap_s=settings.gap_s).withColumn("over", over)
        merged.write.partitionBy("over").option("compression", "zstd").parquet(lake.uri(folder / "merged"))
        growing, ended = folder / "merged" / "over=false", folder / "merged" / "over=true"
        growing.mkdir(exist_ok=True)
        growing.replace(folder / "open")
        rows = self.of_files(sorted(ended.glob("*.parquet")), PIECE_SCHEMA)
        return self.put("sessions", sessions(rows, conversion=settings.conversion), folder, final=True)

    def open_sessions(self, pending: Sequence[Path], folder: Path) -> Written:
        rows = sessions(self.of_files(pending, PIECE_SCHEMA), conversion=self.tables.settings.conversion)
        return self.put("sessions", rows, folder, final=False)

    def windows(self, span: Span, folder: Path, *, final: bool) -> dict[str, Written]:
        settings, events = self.tables.settings, self.of("events", span)
        made = {
            "windows": windowed(events, window_s=settings.window_s),
            "pages": top_pages(events, window_s=settings.window_s, top=settings.top),
        }
        return {name: self.put(name, rows, folder, final=final) for name, rows in made.items()}

    def conversions(self, span: Span, folder: Path, *, final: bool) -> Written:
        rows = conversions(self.of("sessions", span), window_s=self.tables.settings.window_s)
        return self.put("conversions", rows, folder, final=final)

    def of(self, name: str, span: Span) -> DataFrame:
        from pyspark.sql import functions as F

        table, (since, until) = self.tables.lakes[name], span
        rows = table.frame(self.session, since)
        return rows if until is None else rows.where(F.col(str(table.by)) < F.lit(until))

    def of_files(self, files: Sequence[Path], schema: str) -> DataFrame:
        if not files:
            return self.session.createDataFrame([], schema)
        return self.session.read.schema(schema).parquet(*map(lake.uri, files))

    def put(self, name: str, rows: DataFrame, folder: Path, *, final: bool) -> Written:
        from pyspark.sql import functions as F

        return lake.write(rows.withColumn("final", F.lit(final)), folder / name, SCHEMAS[name][1])
