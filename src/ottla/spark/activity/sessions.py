"""Puts sessions together by Spark. A session is one visitor's events without a silence longer than the gap.

The input is events (EVENT_COLUMNS of `parse`) and session pieces. A piece is the part of a session known so far; an
event is a piece of one event. Two pieces of a visitor belong together when the later one begins at most `gap_s` after
the last event of the earlier one.

Pieces can therefore be merged in any order and at any time: `sessionise` over all events gives the same as `merge`
batch by batch. An event without a visitor belongs to no session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GAP_S = 30 * 60
PLACE = "struct<time: timestamp, topic: string, partition: int, offset: bigint, page: string>"
PIECE_SCHEMA = (
    "visitor string, start timestamp, end timestamp, events bigint, views bigint, searches bigint, clicks bigint,"
    " errors bigint, bytes bigint, conversions bigint, bot boolean,"
    f" first_page {PLACE}, last_page {PLACE}, first_referrer {PLACE}"
)
PIECE_COLUMNS = (
    "visitor", "start", "end", "events", "views", "searches", "clicks", "errors", "bytes", "conversions", "bot",
    "first_page", "last_page", "first_referrer",
)  # fmt: skip
SESSION_COLUMNS = (
    "visitor", "start", "end", "seconds", "events", "views", "searches", "clicks", "errors", "bytes", "entry", "exit",
    "referrer", "bot", "conversions", "converted",
)  # fmt: skip


def sessionise(events: DataFrame, *, gap_s: float = GAP_S, conversion: str | None = None) -> DataFrame:
    """Events as sessions, SESSION_COLUMNS. A batch, no stream: see the module's text.

    `end`: the last event's time. `views`: pages, assets not counted; `entry` and `exit`: the first and the last of
    them. `conversion`: a regular expression (Java's); a session is converted when a page of it matches and was
    answered without an error; without one `converted` is null."""
    return sessions(merge(pieces(events, conversion=conversion), gap_s=gap_s), conversion=conversion)


def pieces(events: DataFrame, *, conversion: str | None = None) -> DataFrame:
    """Each event as the piece of a session."""
    from pyspark.sql import functions as F

    def place(what: str, when: Column) -> Column:
        inside = F.struct("time", "topic", "partition", "offset", F.col(what).alias("page"))
        return F.when(when & F.col(what).isNotNull(), inside)

    def one(when: Column | bool) -> Column:
        return F.coalesce(F.lit(when) if isinstance(when, bool) else when, F.lit(False)).cast("long")

    fine = F.coalesce(F.col("status") < 400, F.lit(True))
    goal = F.col("page").rlike(conversion) & fine if conversion else False
    return events.where(F.col("visitor").isNotNull()).select(
        "visitor",
        F.col("time").alias("start"),
        F.col("time").alias("end"),
        F.lit(1).cast("long").alias("events"),
        one(viewed()).alias("views"),
        one(F.col("kind") == "search").alias("searches"),
        one(F.col("kind") == "click").alias("clicks"),
        one(F.col("status") >= 400).alias("errors"),
        F.coalesce("bytes", F.lit(0)).cast("long").alias("bytes"),
        one(goal).alias("conversions"),
        "bot",
        place("page", viewed()).alias("first_page"),
        place("page", viewed()).alias("last_page"),
        place("referrer", F.lit(True)).alias("first_referrer"),
    )


def viewed() -> Column:
    """Whether an event is the view of a page: it names a page that is not an asset."""
    from pyspark.sql import functions as F

    return F.col("page").isNotNull() & ~F.col("asset")


def merge(parts: DataFrame, *, gap_s: float = GAP_S) -> DataFrame:
    """Join pieces that belong together; PIECE_SCHEMA."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    gap_us = F.lit(round(gap_s * 1_000_000))
    ordered = Window.partitionBy("visitor").orderBy("start", "end")
    reached = F.max("end").over(ordered.rowsBetween(Window.unboundedPreceding, -1))
    silent = F.unix_micros("start") - F.unix_micros(reached) > gap_us
    begins = F.when(reached.isNull() | silent, 1).otherwise(0)
    number = F.sum("begins").over(ordered.rowsBetween(Window.unboundedPreceding, 0))
    numbered = parts.withColumn("begins", begins).withColumn("number", number)
    sums = ("events", "views", "searches", "clicks", "errors", "bytes", "conversions")
    return (
        numbered.groupBy("visitor", "number")
        .agg(
            F.min("start").alias("start"),
            F.max("end").alias("end"),
            *(F.sum(name).alias(name) for name in sums),
            F.max("bot").alias("bot"),
            F.min("first_page").alias("first_page"),
            F.max("last_page").alias("last_page"),
            F.min("first_referrer").alias("first_referrer"),
        )
        .select(*PIECE_COLUMNS)
    )


def sessions(parts: DataFrame, *, conversion: str | None = None) -> DataFrame:
    """Merged pieces as SESSION_COLUMNS."""
    from pyspark.sql import functions as F

    seconds = (F.unix_micros("end") - F.unix_micros("start")) / 1e6
    return parts.withColumns(
        {
            "seconds": seconds,
            "entry": F.col("first_page.page"),
            "exit": F.col("last_page.page"),
            "referrer": F.col("first_referrer.page"),
            "converted": (F.col("conversions") > 0) if conversion else F.lit(None).cast("boolean"),
        }
    ).select(*SESSION_COLUMNS)


def conversions(sessions: DataFrame, *, window_s: int) -> DataFrame:
    """Sessions by the window of their last event: start, end, sessions, converted, bounces (one view or none), views,
    and the middle length in seconds."""
    from pyspark.sql import functions as F

    return (
        sessions.groupBy(F.window("end", f"{window_s} seconds").alias("window"))
        .agg(
            F.count(F.lit(1)).alias("sessions"),
            F.count_if(F.col("converted")).alias("converted"),
            F.count_if(F.col("views") <= 1).alias("bounces"),
            F.sum("views").alias("views"),
            F.percentile("seconds", 0.5).alias("seconds_p50"),
        )
        .select("window.start", "window.end", "sessions", "converted", "bounces", "views", "seconds_p50")
    )
