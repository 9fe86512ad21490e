"""Makes the report page from the two tables: errors over time, levels of each service, the most frequent components and
messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from ottla.spark.logs.counting import KEYS
from ottla.spark.logs.formats import ERRORS
from ottla.spark.logs.phrases import COMPONENTS, MESSAGES, OF_ERRORS, top_phrases
from ottla.spark.report import Chart, Section, Series, bars, buckets, drawn_from, page, step_seconds, table, timeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.spark.logs.batches import Tables

SERVICES_MAX = 12
"""Timelines of single services: those with the most errors."""
LEVELS = ("FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "none")
UNTIMED = "No line has a time."


def report_page(session: SparkSession, tables: Tables, title: str) -> str:
    """The page as HTML text."""
    counts = counted(tables)
    total = sum(row["rows"] for row in counts)
    errors = sum(row["rows"] for row in counts if row["level"] in ERRORS)
    unparsed = sum(row["rows"] for row in counts if row["format"] is None)
    late = sum(row["rows"] for row in counts if row["late"])
    headline = [
        ("Lines", f"{total:,}"),
        ("Services", f"{len({row['service'] for row in counts}):,}"),
        ("Errors", f"{errors:,}"),
        ("Unparsed", f"{unparsed:,} ({share(unparsed, total)})"),
        ("Late", f"{late:,}"),
    ]
    times = [row["start"] for row in counts if row["start"] is not None]
    subtitle = f"{min(times):%d %B %Y %H:%M} to {max(times):%d %B %Y %H:%M}, all times in UTC." if times else UNTIMED
    source = drawn_from({topic for topic, _ in tables.partitions()}, tables.root, datetime.now(UTC))
    tables.lines.refresh()
    phrases = top_phrases(session, list(tables.lines.files()), total)
    sections = [over_time(counts), services(counts), *texts(phrases), formats(counts)]
    return page(title, f"{subtitle} {source}", headline, sections)


def counted(tables: Tables) -> list[dict[str, Any]]:
    """The rows of the table of counts, summed; `start` in UTC."""
    tables.windows.refresh()
    parts = [pq.read_table(file, columns=[*KEYS, "rows"]) for file in tables.windows.files()]
    if not parts:
        return []
    summed = pa.concat_tables(parts).group_by([*KEYS]).aggregate([("rows", "sum")])
    return summed.rename_columns({"rows_sum": "rows"}).to_pylist()


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
    roles = {"FATAL": "worst", "ERROR": "bad", "WARN": "warn", "INFO": "good"}
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


def texts(phrases: Mapping[str, Sequence[tuple[int, str, str]]]) -> list[Section]:
    """Return the most frequent components and messages, among errors and among all lines."""
    components = [
        bars(title, [(phrase, rows) for rows, _, phrase in phrases.get(kind, ())])
        for title, kind in (("Most lines", COMPONENTS), ("Most errors", COMPONENTS + OF_ERRORS))
    ]
    messages = [
        table(title, ("Lines", "Service", "Message"), phrases.get(kind, ()))
        for title, kind in (("Of errors", MESSAGES + OF_ERRORS), ("Of all lines", MESSAGES))
    ]
    note = "Numbers, addresses and ids are masked."
    return [Section("Components", components, halves=True), Section("Messages", messages, note=note)]


def formats(counts: Sequence[Mapping[str, Any]]) -> Section:
    """Return the number of lines of each format."""
    found = Counter[str]()
    for row in counts:
        found[row["format"] or "unparsed"] += row["rows"]
    return Section("Formats", [bars("Lines", found.most_common(), roles={"unparsed": "warn"})])
