"""Counts lines per service, window of time and level in DataFrames, and finds late lines.

The input is DataFrames of `parse`; the pipeline counts Arrow tables by the same rules (`counting.py`). A window closes
for a service when that service's latest line, in all earlier batches, is at least `delay_s` after the window's end.
Lines for a closed window are late; they are kept and counted as late.

Each service has its own watermark, because one service's clock says nothing about another's. A time that is more than a
day after its record's does not move it; otherwise a wrong clock would close all windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ottla.spark.logs.formats import ERRORS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMA = (
    "service string, start timestamp, end timestamp, level string, format string, late boolean, rows bigint, "
    "latest timestamp"
)
"""Rows of the table of counts: what one batch added to a window. `start` is null for lines without a time, `format` for
unparsed ones. `latest`: the latest time among them that moves the watermark."""

AHEAD = "INTERVAL 1 DAY"


def marked(lines: DataFrame, watermarks: Mapping[str, int], window_s: int) -> DataFrame:
    """The lines with `late`. `watermarks`: per service, microseconds since 1970."""
    from pyspark.sql import functions as F

    if not watermarks:
        return lines.withColumn("late", F.lit(False))
    known = F.map_from_arrays(
        F.array(*map(F.lit, watermarks.keys())), F.array(*(F.lit(each).cast("bigint") for each in watermarks.values()))
    )
    mark = F.try_element_at(known, F.col("service"))
    end = F.unix_micros(start_of("time", window_s)) + window_s * 1_000_000
    return lines.withColumn("late", F.coalesce(end <= mark, F.lit(False)))


def counts(lines: DataFrame, window_s: int) -> DataFrame:
    """Rows of SCHEMA for lines that are `marked`."""
    from pyspark.sql import functions as F

    start = start_of("time", window_s)
    moving = F.when(F.col("time") <= F.col("timestamp") + F.expr(AHEAD), F.col("time"))
    return (
        lines.groupBy("service", start.alias("start"), "level", "format", "late")
        .agg(F.count(F.lit(1)).alias("rows"), F.max(moving).alias("latest"))
        .select(
            "service",
            "start",
            (F.col("start") + F.expr(f"INTERVAL {window_s} SECOND")).alias("end"),
            "level",
            "format",
            "late",
            "rows",
            "latest",
        )
    )


def start_of(name: str, window_s: int) -> Column:
    """The start of the window of a time: a multiple of the window's length since 1970."""
    from pyspark.sql import functions as F

    return F.timestamp_seconds(F.floor(F.unix_seconds(F.col(name)) / window_s) * window_s)


def rates(counted: DataFrame) -> DataFrame:
    """Per service and window: rows, errors, error_rate, late, levels (a map). Late lines are in all of them."""
    from pyspark.sql import functions as F

    by_level = counted.where("start is not null").groupBy("service", "start", "end", "level")
    summed = by_level.agg(
        F.sum("rows").alias("rows"), F.sum(F.when(F.col("late"), F.col("rows")).otherwise(0)).alias("late")
    )
    level = F.coalesce("level", F.lit("NONE"))
    errors = F.sum(F.when(F.col("level").isin(*ERRORS), F.col("rows")).otherwise(0))
    return summed.groupBy("service", "start", "end").agg(
        F.sum("rows").alias("rows"),
        errors.alias("errors"),
        (errors / F.sum("rows")).alias("error_rate"),
        F.sum("late").alias("late"),
        F.map_from_entries(F.collect_list(F.struct(level, "rows"))).alias("levels"),
    )
