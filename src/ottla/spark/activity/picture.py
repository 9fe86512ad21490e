"""The report page: what the tables hold, as charts.

Knows: the tables and `ottla.spark.report`. Everything is counted in plain batches whose answers are small however much
the tables hold: at most BUCKETS points in time, TOP names, and as many classes as a chart has columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.spark import report
from ottla.spark.activity.proof import Totals
from ottla.spark.activity.sessions import viewed
from ottla.spark.activity.tables import Tables
from ottla.spark.report import Section, Series

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TITLE = "Website activity"
TOP, FEW, EXAMPLES = 15, 8, 10
Classes: TypeAlias = tuple[tuple[int | None, str], ...]
"""Of a histogram: upper bound (that bound included) and name."""
LENGTHS: Classes = ((0, "0 s"), (10, "≤ 10 s"), (60, "≤ 1 min"), (300, "≤ 5 min"), (1800, "≤ 30 min"), (None, "longer"))
DEPTHS: Classes = ((0, "0"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"), (20, "11–20"), (None, "more"))  # noqa: RUF001
SIZES: Classes = (
    (0, "0"), (1 << 10, "≤ 1 kB"), (10 << 10, "≤ 10 kB"), (100 << 10, "≤ 100 kB"), (1 << 20, "≤ 1 MB"),
    (10 << 20, "≤ 10 MB"), (None, "larger"),
)  # fmt: skip
STATUSES = {"2xx": (200, 299, "good"), "3xx": (300, 399, "quiet"), "4xx": (400, 499, "warn"), "5xx": (500, 999, "bad")}


Counts: TypeAlias = dict[str, list[tuple[str, float]]]
"""Names and how often each came, by what they are names of."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is shown, cut into buckets."""

    starts: Sequence[datetime]
    step_s: int

    @property
    def first(self) -> int:
        return int(self.starts[0].timestamp())

    @property
    def end(self) -> int:
        return int(self.starts[-1].timestamp()) + self.step_s


def picture(session: SparkSession, tables: Tables, found: Totals) -> str:
    """The page as HTML text."""
    frames = {name: table.frame(session) for name, table in tables.lakes.items()}
    told = str(found)
    warning = "" if not found.problems else f"The figures do not add up: {' '.join(found.problems)}"
    events, sessions = frames["events"], frames["sessions"]
    shown = span_of(events)
    if shown is None:
        sections = odd(frames, found)
        return report.page(TITLE, "No events yet.", [("Malformed", whole(found.malformed))], sections, note=told)
    sums, visits = events_in_all(events), sessions_in_all(sessions)
    series = events_over_time(events, shown)
    names, visit_names = most(events, event_names()), most(sessions, session_names())
    begun = by_bucket(sessions, shown, "start", sessions=count())
    sections = [
        visits_over_time(series, begun["sessions"], shown, found),
        pages(names, visit_names, sums["views"], found),
        answers(names, series, sums, shown, found),
        visits_section(visits, tables),
        *odd(frames, found),
    ]
    subtitle = f"{day(shown.starts[0])} to {day(datetime.fromtimestamp(shown.end - 1, UTC))}, all times in UTC"
    figures = headline(found, sums, visits, tables)
    return report.page(TITLE, subtitle, figures, sections, note=told, warning=warning)


def count() -> Column:
    from pyspark.sql import functions as F

    return F.count(F.lit(1))


# In all


def events_in_all(events: DataFrame) -> Any:
    from pyspark.sql import functions as F

    return events.agg(
        F.count_if(viewed()).alias("views"),
        F.count_if("bot").alias("bots"),
        F.count_if(F.col("status") >= 400).alias("errors"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        *classes("bytes", SIZES),
    ).collect()[0]


def sessions_in_all(sessions: DataFrame) -> Any:
    from pyspark.sql import functions as F

    return sessions.agg(
        F.coalesce(F.sum("views"), F.lit(0)).alias("views"),
        F.count_if("converted").alias("converted"),
        F.percentile_approx("seconds", 0.5).alias("middle"),
        F.count_if(F.col("views") <= 1).alias("bounces"),
        count().alias("many"),
        *classes("seconds", LENGTHS),
        *classes("views", DEPTHS),
    ).collect()[0]


def classes(name: str, bounds: Classes) -> list[Column]:
    """How many rows fall into each class."""
    from pyspark.sql import functions as F

    value, below, counts = F.col(name), None, []
    for place, (bound, _) in enumerate(bounds):
        inside = value.isNotNull() if bound is None else value <= bound
        counts.append(F.count_if(inside if below is None else inside & (value > below)).alias(f"{name}_{place}"))
        below = bound
    return counts


def classed(row: Any, name: str, bounds: Classes) -> list[tuple[str, float]]:
    return [(label, float(row[f"{name}_{place}"])) for place, (_, label) in enumerate(bounds)]


def headline(found: Totals, sums: Any, visits: Any, tables: Tables) -> list[tuple[str, str]]:
    per_session = visits["views"] / found.sessions if found.sessions else 0
    told = [
        ("Events", whole(found.events)),
        ("Page views", whole(sums["views"])),
        ("Visitors", whole(found.visitors)),
        ("Sessions", whole(found.sessions)),
        ("Pages per session", f"{per_session:.2f}"),
        ("By bots", share(sums["bots"], found.events)),
        ("Errors (4xx, 5xx)", share(sums["errors"], found.events)),
        ("Sent", size(sums["bytes"])),
        ("Late", whole(found.late)),
        ("Malformed", whole(found.malformed)),
    ]
    if tables.settings.conversion:
        told.insert(5, ("Converted", share(visits["converted"], found.sessions)))
    return told


# Time


def span_of(events: DataFrame) -> Span | None:
    """The buckets to show: from the first event to the last, unless a few lie far away from all others."""
    from pyspark.sql import functions as F

    seconds = F.unix_seconds("time")
    least, greatest, inner = events.agg(
        F.min(seconds), F.max(seconds), F.percentile_approx(seconds, [0.005, 0.995], 1000)
    ).collect()[0]
    if least is None:
        return None
    low, high = inner
    if greatest - least > 4 * (high - low) + 86400 * 2:
        least, greatest = low, high
    first, last = (datetime.fromtimestamp(each, UTC) for each in (least, greatest))
    step = report.step_seconds(first, last)
    return Span(report.buckets(first, last, step), step)


def by_bucket(rows: DataFrame, shown: Span, time: str, **what: Column) -> dict[str, list[float]]:
    """Figures per bucket, zero where there is none."""
    from pyspark.sql import functions as F

    seconds = F.unix_seconds(time)
    place = F.floor((seconds - shown.first) / shown.step_s).cast("int")
    inside = rows.where((seconds >= shown.first) & (seconds < shown.end))
    named = [column.alias(name) for name, column in what.items()]
    series: dict[str, list[float]] = {name: [0.0] * len(shown.starts) for name in what}
    for row in inside.groupBy(place.alias("place")).agg(*named).collect():
        for name in what:
            series[name][row["place"]] = float(row[name] or 0)
    return series


def events_over_time(events: DataFrame, shown: Span) -> dict[str, list[float]]:
    from pyspark.sql import functions as F

    person, status = ~F.col("bot"), F.col("status")
    seen = viewed() & person
    return by_bucket(
        events,
        shown,
        "time",
        views=F.count_if(seen & ~F.col("kind").isin("search", "click")),
        searches=F.count_if(seen & (F.col("kind") == "search")),
        clicks=F.count_if(seen & (F.col("kind") == "click")),
        rest=F.count_if(~viewed() & person),
        bots=F.count_if("bot"),
        visitors=F.count_distinct("visitor"),
        **{name: F.count_if(status.between(low, high)) for name, (low, high, _) in STATUSES.items()},
        p50=F.percentile_approx("bytes", 0.5),
        p95=F.percentile_approx("bytes", 0.95),
        all=count(),
    )


def visits_over_time(series: dict[str, list[float]], begun: list[float], shown: Span, found: Totals) -> Section:
    named = {"views": "page views", "searches": "searches", "clicks": "clicks", "rest": "assets and others"}
    drawn = [Series(label, series[name]) for name, label in named.items() if any(series[name])]
    drawn.append(Series("bots", series["bots"], "quiet"))
    people = [Series("visitors", series["visitors"]), Series("sessions begun", begun)]
    every, outside = per(shown.step_s), found.events - round(sum(series["all"]))
    note = f"{whole(outside)} events lie far before or after this and are not shown." if outside else ""
    return Section(
        "Visits over time",
        [
            report.timeline(f"Events {every}", shown.starts, shown.step_s, drawn, unit="events", note=note),
            report.timeline(f"Visitors and sessions {every}", shown.starts, shown.step_s, people, lines=True),
        ],
    )


# Names


def event_names() -> dict[str, Column]:
    from pyspark.sql import functions as F

    status, page = F.col("status"), F.col("page")
    return {
        "page": F.when(viewed(), page),
        "asset": F.when(F.col("asset"), page),
        "status": status.cast("string"),
        "error": F.when(status >= 400, F.concat_ws(" ", status, F.coalesce(page, F.lit("(no page)")))),
    }


def session_names() -> dict[str, Column]:
    from pyspark.sql import functions as F

    host = F.regexp_extract("referrer", r"^[a-z]+://([^/:]+)", 1)
    return {"entry": F.col("entry"), "exit": F.col("exit"), "host": F.nullif(host, F.lit(""))}


def most(rows: DataFrame, named: dict[str, Column]) -> Counts:
    """The TOP names of each sort that come most often; equal ones in their own order. One pass for all of them."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    pairs = F.array(*(F.struct(F.lit(of).alias("of"), name.alias("name")) for of, name in named.items()))
    every = rows.select(F.explode(pairs).alias("pair")).select("pair.of", "pair.name")
    counts = every.where(F.col("name").isNotNull()).groupBy("of", "name").agg(count().alias("many"))
    rank = F.row_number().over(Window.partitionBy("of").orderBy(F.desc("many"), F.asc("name")))
    found: Counts = {of: [] for of in named}
    for row in counts.withColumn("rank", rank).where(F.col("rank") <= TOP).orderBy("of", "rank").collect():
        found[row["of"]].append((str(row["name"]), float(row["many"])))
    return found


def pages(names: Counts, visits: Counts, views: int, found: Totals) -> Section:
    note = "Pictures, styles and scripts are left out; bots are counted."
    return Section(
        "Pages",
        [
            report.bars("Top pages", names["page"], unit="views", total=views, note=note),
            report.bars("Sessions begin here", visits["entry"][:FEW], total=found.sessions, half=True),
            report.bars("Sessions end here", visits["exit"][:FEW], total=found.sessions, half=True),
            report.bars("Sessions come from", visits["host"][:FEW], total=found.sessions, half=True),
            report.bars("Asked for, but no page", names["asset"][:FEW], total=found.events, half=True),
        ],
    )


# Answers


def answers(names: Counts, series: dict[str, list[float]], sums: Any, shown: Span, found: Totals) -> Section:
    every = per(shown.step_s)
    roles = {name: {"4": "warn", "5": "bad", "3": "quiet"}.get(name[0], "good") for name, _ in names["status"]}
    errors = names["error"][:10]
    bad = {name: "bad" if name.startswith("5") else "warn" for name, _ in errors}
    statuses = [Series(name, series[name], role) for name, (_, _, role) in STATUSES.items() if any(series[name])]
    sizes = [Series("middle (p50)", series["p50"]), Series("p95", series["p95"])]
    return Section(
        "Answers",
        [
            report.timeline(f"Statuses {every}", shown.starts, shown.step_s, statuses, unit="answers"),
            report.bars("Statuses", names["status"][:FEW], total=found.events, roles=roles, half=True),
            report.histogram("Response sizes", classed(sums, "bytes", SIZES), unit="answers"),
            report.bars("Errors by page", errors, roles=bad, unit="errors"),
            report.timeline(f"Bytes of an answer {every}", shown.starts, shown.step_s, sizes, lines=True, show=size),
        ],
    )


# Sessions


def visits_section(visits: Any, tables: Tables) -> Section:
    settings = tables.settings
    note = (
        f"A session ends when its visitor is silent for more than {settings.gap_s / 60:g} minutes. Half of them last "
        f"{visits['middle'] or 0:,.0f} s or less; {share(visits['bounces'], visits['many'])} see one page or none."
    )
    if settings.conversion:
        note += f" {share(visits['converted'], visits['many'])} reach a page that matches {settings.conversion}."
    items = [
        report.histogram("Length of sessions", classed(visits, "seconds", LENGTHS), unit="sessions"),
        report.histogram("Pages per session", classed(visits, "views", DEPTHS), unit="sessions"),
    ]
    return Section("Sessions", items, note)


# What is odd


def odd(frames: dict[str, DataFrame], found: Totals) -> list[Section]:
    """Late and malformed records: how many, why, and examples."""
    from pyspark.sql import functions as F

    items: list[Any] = []
    if found.malformed:
        kinds = frames["malformed"].withColumn("why", F.regexp_replace("reason", ": .*", ""))
        why = kinds.groupBy("why").agg(F.count(F.lit(1)).alias("many"), F.min(F.substring("raw", 1, 300)).alias("raw"))
        rows = why.orderBy(F.desc("many"), "why").limit(EXAMPLES).collect()
        cells = [(row["why"], row["many"], row["raw"]) for row in rows]
        items.append(report.table("Malformed records", ("Why", "Records", "One of them"), cells))
    if found.late:
        behind = F.unix_seconds("watermark") - F.unix_seconds("time")
        topics = (
            frames["late"]
            .groupBy("topic", "partition")
            .agg(
                F.count(F.lit(1)).alias("many"),
                F.percentile_approx(behind, 0.5).alias("middle"),
                F.max(behind).alias("most"),
            )
        )
        rows = topics.orderBy(F.desc("many"), "topic", "partition").limit(EXAMPLES).collect()
        cells = [
            (row["topic"], row["partition"], row["many"], lasting(row["middle"]), lasting(row["most"])) for row in rows
        ]
        names = ("Topic", "Partition", "Records", "Behind by (middle)", "Behind by (most)")
        note = "Too late for their windows and sessions, and in neither; the table late/ has them."
        items.append(report.table("Late events", names, cells, note=note))
    return [Section("Late and malformed", items)] if items else []


# Texts


def whole(number: int) -> str:
    return f"{number:,}"


def share(part: int, all_of: int) -> str:
    return f"{part / all_of:.1%}" if all_of else "0%"


def size(number: float) -> str:
    """Bytes as people read them."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 1024 or unit == "TB":
            return f"{number:,.0f} {unit}" if unit == "B" or number >= 100 else f"{number:,.1f} {unit}"
        number /= 1024
    raise AssertionError


def lasting(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds} s"


def per(step_s: int) -> str:
    names: dict[int, str] = {1: "per second", 60: "per minute", 3600: "per hour", 86400: "per day", 604800: "per week"}
    for length, unit in ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")):
        if step_s % length == 0:
            return names.get(step_s, f"per {step_s // length} {unit}")
    raise AssertionError


def day(moment: datetime) -> str:
    return f"{moment:%d %B %Y %H:%M}".lstrip("0")
