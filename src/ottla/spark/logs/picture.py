"""The report page of the tables: errors over time, levels of each service, what speaks most and what it says.

Knows: the two tables, which charts show what. Does not know: how a page looks (`ottla.spark.report`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ottla.spark.logs.formats import ERRORS
from ottla.spark.report import Chart, Section, Series, bars, buckets, page, step_seconds, table, timeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ottla.spark.logs.batches import Tables

TOP = 20
SERVICES_MAX = 12
"""Timelines of single services: those with the most errors."""
LEVELS = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "none")

MASKS = (
    (r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b", "<ip>"),
    (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<uuid>"),
    (r"\b0x[0-9a-fA-F]+\b", "<hex>"),
    (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{12,}\b", "<hex>"),
    (r"\d+", "#"),
)
MESSAGE_MAX = 300


def masked(text: Column) -> Column:
    """A message with what changes from line to line masked: addresses, ids, numbers. Its first line alone."""
    from pyspark.sql import functions as F

    text = F.substring(F.substring_index(text, "\n", 1), 1, MESSAGE_MAX)
    for pattern, sign in MASKS:
        text = F.regexp_replace(text, pattern, sign)
    return F.trim(text)


def picture(session: SparkSession, tables: Tables) -> str:
    """The page as HTML text."""
    counts = counted(tables.windows.frame(session))
    lines = tables.lines.frame(session)
    total = sum(row["rows"] for row in counts)
    errors = sum(row["rows"] for row in counts if row["level"] in ERRORS)
    unparsed = sum(row["rows"] for row in counts if row["format"] is None)
    late = sum(row["rows"] for row in counts if row["late"])
    headline = [
        ("lines", f"{total:,}"),
        ("services", f"{len({row['service'] for row in counts}):,}"),
        ("errors", f"{errors:,}"),
        ("unparsed", f"{unparsed:,} ({share(unparsed, total)})"),
        ("late", f"{late:,}"),
    ]
    times = [row["start"] for row in counts if row["start"] is not None]
    subtitle = f"{min(times):%d %b %Y %H:%M} to {max(times):%d %b %Y %H:%M} UTC" if times else "No line has a time."
    sections = [over_time(counts), services(counts), *texts(lines), formats(counts)]
    return page("Logs", subtitle, headline, sections)


def counted(windows: DataFrame) -> list[dict[str, Any]]:
    """The rows of the table of counts, summed; `start` in UTC."""
    from pyspark.sql import functions as F

    keys = ("service", F.unix_seconds("start").alias("start"), "level", "format", "late")
    found = [row.asDict() for row in windows.groupBy(*keys).agg(F.sum("rows").alias("rows")).collect()]
    for row in found:
        row["start"] = None if row["start"] is None else datetime.fromtimestamp(row["start"], UTC)
    return found


def share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "0%"


def over_time(counts: Sequence[Mapping[str, Any]]) -> Section:
    """Errors of all services, and of those that have the most, each over its own time: logs may lie years apart."""
    errors = [row for row in counts if row["level"] in ERRORS and row["start"] is not None]
    most = Counter[str]()
    for row in errors:
        most[row["service"]] += row["rows"]
    charts = [drawn("All services", errors, ("FATAL", "ERROR"))] if errors else []
    for service, _ in most.most_common(SERVICES_MAX) if len(most) > 1 else []:
        own = [row for row in counts if row["service"] == service and row["start"] is not None]
        charts.append(drawn(service, own, LEVELS))
    note = "" if errors else "No line is an error."
    return Section("Errors over time", charts, note=note)


def drawn(title: str, counts: Sequence[Mapping[str, Any]], levels: Sequence[str]) -> Chart:
    first, last = (end(row["start"] for row in counts) for end in (min, max))
    step = max(step_seconds(first, last), 60)
    starts = buckets(first, last, step)
    places = {start: place for place, start in enumerate(starts)}
    values: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(starts))
    for row in counts:
        start = datetime.fromtimestamp(int(row["start"].timestamp()) // step * step, UTC)
        values[row["level"] or "none"][places[start]] += row["rows"]
    roles = {"FATAL": "bad", "ERROR": "bad", "WARN": "warn", "INFO": "good"}
    series = [Series(name, values[name], roles.get(name, "quiet")) for name in levels if name in values]
    return timeline(title, starts, step, series, unit="lines")


def services(counts: Sequence[Mapping[str, Any]]) -> Section:
    """A line for each service: how many of each level, its share of errors and of unparsed lines."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row in counts:
        own = found[row["service"]]
        own[row["level"] or "none"] += row["rows"]
        own["lines"] += row["rows"]
        own["unparsed"] += row["rows"] if row["format"] is None else 0
        own["late"] += row["rows"] if row["late"] else 0
    rows = [
        (
            name,
            own["lines"],
            *(own[level] for level in LEVELS),
            share(own["FATAL"] + own["ERROR"], own["lines"]),
            own["unparsed"],
            own["late"],
        )
        for name, own in sorted(found.items(), key=lambda each: (-each[1]["lines"], each[0]))
    ]
    columns = ("Service", "Lines", *(level.capitalize() for level in LEVELS), "Errors", "Unparsed", "Late")
    return Section("Services and levels", [table("Lines per level", columns, rows)])


def texts(lines: DataFrame) -> list[Section]:
    """What speaks most, and what is said most; of errors and of all."""
    from pyspark.sql import functions as F

    said = masked(F.coalesce("message", "raw")).alias("said")
    wrong = lines.where(F.col("level").isin(*ERRORS))
    components = top(lines.where("component is not null"), F.concat_ws(" · ", "service", "component"))
    first = Section(
        "Components",
        [
            bars("Most lines", components),
            bars("Most errors", top(wrong.where("component is not null"), F.concat_ws(" · ", "service", "component"))),
        ],
        halves=True,
    )
    rows = [
        table(title, ("Lines", "Service", "Message"), messages(frame, said))
        for title, frame in (("Of errors", wrong), ("Of all lines", lines))
    ]
    return [first, Section("Messages", rows, note="Numbers, addresses and ids are masked.")]


def top(lines: DataFrame, name: Column) -> list[tuple[str, float]]:
    found = lines.groupBy(name.alias("name")).count().orderBy("count", "name", ascending=[False, True]).limit(TOP)
    return [(row["name"], row["count"]) for row in found.collect()]


def messages(lines: DataFrame, said: Column) -> list[tuple[int, str, str]]:
    found = lines.groupBy("service", said).count().orderBy("count", "said", ascending=[False, True]).limit(TOP)
    return [(row["count"], row["service"], row["said"]) for row in found.collect()]


def formats(counts: Sequence[Mapping[str, Any]]) -> Section:
    """What lines were taken for."""
    found = Counter[str]()
    for row in counts:
        found[row["format"] or "unparsed"] += row["rows"]
    return Section("Formats", [bars("Lines", found.most_common(), roles={"unparsed": "warn"})])
