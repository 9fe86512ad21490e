"""Counts events in windows of event time by Spark: `windowed`, `top_pages`.

The input is events (EVENT_COLUMNS of `parse`). All windows have the same length, do not overlap and begin at multiples
of their length since 1970 (UTC). A window has the events with start <= time < end; a window without events has no row.
All figures are exact.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.spark.activity.sessions import viewed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

WINDOW_S = 5 * 60
TOP = 100
OTHERS = "(others)"
"""The row of `top_pages` for all other pages, so that a window's pages add up to its events."""


def windowed(events: DataFrame, *, window_s: int = WINDOW_S) -> DataFrame:
    """One row per window: start, end, events, views (pages, no assets), searches, clicks, bots, visitors (distinct),
    bytes (their sum), bytes_p50, bytes_p95 (interpolated; null when no event has a size), errors (status 400 and
    above), statuses and kinds (each a map from name to events)."""
    from pyspark.sql import functions as F

    inside = events.withColumn("window", F.window("time", f"{window_s} seconds"))
    rows = inside.groupBy("window").agg(
        F.count(F.lit(1)).alias("events"),
        F.count_if(viewed()).alias("views"),
        F.count_if(F.col("kind") == "search").alias("searches"),
        F.count_if(F.col("kind") == "click").alias("clicks"),
        F.count_if("bot").alias("bots"),
        F.count_distinct("visitor").alias("visitors"),
        F.coalesce(F.sum("bytes"), F.lit(0)).cast("long").alias("bytes"),
        F.percentile("bytes", F.array(F.lit(0.5), F.lit(0.95))).alias("sizes"),
        F.count_if(F.col("status") >= 400).alias("errors"),
    )
    statuses = counted(inside, F.coalesce(F.col("status").cast("string"), F.lit("none")), "statuses")
    kinds = counted(inside, F.col("kind"), "kinds")
    return (
        rows.join(statuses, "window")
        .join(kinds, "window")
        .select(
            "window.start", "window.end", "events", "views", "searches", "clicks", "bots", "visitors", "bytes",
            F.get("sizes", F.lit(0)).alias("bytes_p50"), F.get("sizes", F.lit(1)).alias("bytes_p95"), "errors",
            "statuses", "kinds",
        )
    )  # fmt: skip


def counted(inside: DataFrame, what: Column, name: str) -> DataFrame:
    """Events per window and `what`, as a map per window."""
    from pyspark.sql import functions as F

    each = inside.groupBy("window", what.alias("what")).agg(F.count(F.lit(1)).alias("many"))
    pairs = F.array_sort(F.collect_list(F.struct("what", "many")))
    return each.groupBy("window").agg(F.map_from_entries(pairs).alias(name))


def top_pages(events: DataFrame, *, window_s: int = WINDOW_S, top: int = TOP) -> DataFrame:
    """Return the most requested pages of each window: start, end, rank (from 1), page, asset, events, visitors, bytes,
    errors; pages with equal counts in the order of their names. The last row of a window, OTHERS with rank null, has
    all other pages. Events without a page have a null page. `visitors` of OTHERS is null."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    order = Window.partitionBy("window").orderBy(F.desc("events"), F.asc_nulls_last("page"))
    pages = (
        events.groupBy(F.window("time", f"{window_s} seconds").alias("window"), "page")
        .agg(
            F.max("asset").alias("asset"),
            F.count(F.lit(1)).alias("events"),
            F.count_distinct("visitor").alias("visitors"),
            F.coalesce(F.sum("bytes"), F.lit(0)).cast("long").alias("bytes"),
            F.count_if(F.col("status") >= 400).alias("errors"),
        )
        .withColumn(
            "rank",
            F.row_number().over(order),
        )
    )
    inside = F.col("rank") <= top
    return (
        pages.groupBy(
            "window",
            F.when(inside, F.col("rank")).alias("rank"),
            F.when(inside, F.col("page")).otherwise(OTHERS).alias("page"),
            F.when(inside, F.col("asset")).alias("asset"),
        )
        .agg(
            F.sum("events").alias("events"),
            F.max(F.when(inside, F.col("visitors"))).alias("visitors"),
            F.sum("bytes").alias("bytes"),
            F.sum("errors").alias("errors"),
        )
        .select("window.start", "window.end", "rank", "page", "asset", "events", "visitors", "bytes", "errors")
    )
