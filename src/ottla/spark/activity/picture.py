"""The report page: what the tables hold, as charts.

Knows: the tables and `ottla.spark.report`. Everything is counted in plain batches whose answers are small however much
the tables hold: at most BUCKETS points in time, TOP names, and as many classes as a chart has columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ottla.spark import report
from ottla.spark.activity.proof import Totals
from ottla.spark.activity.sessions import viewed
from ottla.spark.activity.tables import Tables
from ottla.spark.report import Section, Series

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOP = 15
EXAMPLES = 10
LENGTHS = ((0, "0 s"), (10, "≤ 10 s"), (60, "≤ 1 min"), (300, "≤ 5 min"), (1800, "≤ 30 min"), (None, "longer"))
DEPTHS = ((0, "0"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"), (20, "11–20"), (None, "more"))  # noqa: RUF001
SIZES = (
    (0, "0"), (1 << 10, "≤ 1 kB"), (10 << 10, "≤ 10 kB"), (100 << 10, "≤ 100 kB"), (1 << 20, "≤ 1 MB"),
    (10 << 20, "≤ 10 MB"), (None, "larger"),
)  # fmt: skip
"""Classes of the histograms: upper bound (that bound included) and name."""


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is shown, cut into buckets. `outside`: events that lie before or after it."""

    starts: Sequence[datetime]
    step_s: int
    outside: int

    @property
    def first(self) -> int:
        return int(self.starts[0].timestamp())

    @property
    def end(self) -> int:
        return int(self.starts[-1].timestamp()) + self.step_s


def picture(session: SparkSession, tables: Tables, found: Totals) -> str:
    """The page as HTML text."""
    frames = {name: table.frame(session) for name, table in tables.lakes.items()}
    title = "Website activity"
    told = str(found)
    warning = "" if not found.problems else f"The figures do not add up: {' '.join(found.problems)}"
    shown = span_of(frames["events"])
    if shown is None:
        sections = odd(frames, found)
        return report.page(title, "No events yet.", [("Malformed", whole(found.malformed))], sections, note=told)
    visits = totals_of(frames["sessions"])
    sections = [
        over_time(frames, shown, tables),
        pages(frames),
        answers(frames, shown),
        visits_section(frames, visits, tables),
        *odd(frames, found),
    ]
    subtitle = f"{day(shown.starts[0])} to {day(datetime.fromtimestamp(shown.end - 1, UTC))}, all times in UTC"
    return report.page(title, subtitle, headline(frames, found, visits, tables), sections, note=told, warning=warning)


def headline(frames: dict[str, DataFrame], found: Totals, visits: Any, tables: Tables) -> list[tuple[str, str]]:
    from pyspark.sql import functions as F

    sums = frames["events"].agg(
        F.count_if(viewed()).alias("views"),
        F.count_if("bot").alias("bots"),
        F.count_if(F.col("status") >= 400).alias("errors"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
    )
    row = sums.collect()[0]
    per_session = visits["views"] / found.sessions if found.sessions else 0
    told = [
        ("Events", whole(found.events)),
        ("Page views", whole(row["views"])),
        ("Visitors", whole(found.visitors)),
        ("Sessions", whole(found.sessions)),
        ("Pages per session", f"{per_session:.2f}"),
        ("By bots", share(row["bots"], found.events)),
        ("Errors (4xx, 5xx)", share(row["errors"], found.events)),
        ("Sent", size(row["bytes"])),
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
    least, greatest, many, inner = events.agg(
        F.min(seconds), F.max(seconds), F.count(F.lit(1)), F.percentile_approx(seconds, [0.005, 0.995], 1000)
    ).collect()[0]
    if not many:
        return None
    low, high = inner
    if greatest - least > 4 * (high - low) + 86400 * 2:
        least, greatest = low, high
    first, last = (datetime.fromtimestamp(each, UTC) for each in (least, greatest))
    step = report.step_seconds(first, last)
    starts = report.buckets(first, last, step)
    inside = events.where(seconds.between(int(starts[0].timestamp()), int(starts[-1].timestamp()) + step - 1)).count()
    return Span(starts, step, many - inside)


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


def over_time(frames: dict[str, DataFrame], shown: Span, tables: Tables) -> Section:
    from pyspark.sql import functions as F

    person = ~F.col("bot")
    counted = by_bucket(
        frames["events"],
        shown,
        "time",
        views=F.count_if(viewed() & person & ~F.col("kind").isin("search", "click")),
        searches=F.count_if(viewed() & person & (F.col("kind") == "search")),
        clicks=F.count_if(viewed() & person & (F.col("kind") == "click")),
        rest=F.count_if(~viewed() & person),
        bots=F.count_if("bot"),
        visitors=F.count_distinct("visitor"),
    )
    begun = by_bucket(frames["sessions"], shown, "start", sessions=F.count(F.lit(1)))
    named = {"views": "page views", "searches": "searches", "clicks": "clicks", "rest": "assets and others"}
    series = [Series(label, counted[name]) for name, label in named.items() if any(counted[name])]
    series.append(Series("bots", counted["bots"], "quiet"))
    people = [Series("visitors", counted["visitors"]), Series("sessions begun", begun["sessions"])]
    every = per(shown.step_s)
    note = f"{whole(shown.outside)} events lie far before or after this and are not shown." if shown.outside else ""
    return Section(
        "Visits over time",
        [
            report.timeline(f"Events {every}", shown.starts, shown.step_s, series, unit="events", note=note),
            report.timeline(f"Visitors and sessions {every}", shown.starts, shown.step_s, people, lines=True),
        ],
    )


# Names


def most(rows: DataFrame, name: str | Column, top: int = TOP) -> list[tuple[str, float]]:
    """The names that come most often; equal ones in their own order."""
    from pyspark.sql import functions as F

    named = (F.col(name) if isinstance(name, str) else name).alias("name")
    counts = rows.groupBy(named).agg(F.count(F.lit(1)).alias("many")).where(F.col("name").isNotNull())
    found = counts.orderBy(F.desc("many"), F.asc("name")).limit(top).collect()
    return [(str(row["name"]), float(row["many"])) for row in found]


def pages(frames: dict[str, DataFrame]) -> Section:
    from pyspark.sql import functions as F

    events, sessions = frames["events"], frames["sessions"]
    views = events.where(viewed())
    host = F.regexp_extract("referrer", r"^[a-z]+://([^/:]+)", 1)
    return Section(
        "Pages",
        [
            report.bars("Top pages", most(views, "page"), unit="views", note="Pictures, styles and scripts left out."),
            report.bars("Pages where sessions begin", most(sessions, "entry", 8)),
            report.bars("Pages where sessions end", most(sessions, "exit", 8)),
            report.bars("Where visits come from", most(sessions.where(host != ""), host, 8), unit="sessions"),
            report.bars("Most asked for that is no page", most(events.where("asset"), "page", 8)),
        ],
    )


# Answers


def answers(frames: dict[str, DataFrame], shown: Span) -> Section:
    from pyspark.sql import functions as F

    events = frames["events"]
    status = F.col("status")
    classes = {
        "2xx": (status.between(200, 299), "good"),
        "3xx": (status.between(300, 399), "quiet"),
        "4xx": (status.between(400, 499), "warn"),
        "5xx": (status >= 500, "bad"),
    }
    counted = by_bucket(events, shown, "time", **{name: F.count_if(rule) for name, (rule, _) in classes.items()})
    sizes = by_bucket(
        events, shown, "time", p50=F.percentile_approx("bytes", 0.5), p95=F.percentile_approx("bytes", 0.95)
    )
    by_status = most(events.where(status.isNotNull()), "status")
    roles = {name: {"4": "warn", "5": "bad", "3": "quiet"}.get(name[0], "good") for name, _ in by_status}
    wrong = events.where(status >= 400).select(F.concat_ws(" ", "status", "page").alias("name"))
    series = [Series(name, counted[name], role) for name, (_, role) in classes.items() if any(counted[name])]
    return Section(
        "Answers",
        [
            report.timeline(f"Statuses {per(shown.step_s)}", shown.starts, shown.step_s, series, unit="answers"),
            report.bars("Statuses", by_status, roles=roles),
            report.bars("Errors by page", most(wrong, "name", 10), roles={}),
            report.histogram("Response sizes", classed(events, "bytes", SIZES), unit="answers"),
            report.timeline(
                f"Response size {per(shown.step_s)}",
                shown.starts,
                shown.step_s,
                [Series("middle (p50)", sizes["p50"]), Series("p95", sizes["p95"])],
                lines=True,
                show=size,
            ),
        ],
    )


def classed(rows: DataFrame, name: str, classes: Sequence[tuple[int | None, str]]) -> list[tuple[str, float]]:
    """How many rows fall into each class."""
    from pyspark.sql import functions as F

    value = F.col(name)
    counts, below = [], None
    for bound, _ in classes:
        inside = F.lit(True) if bound is None else value <= bound
        counts.append(F.count_if(inside if below is None else inside & (value > below)))
        below = bound
    row = rows.where(value.isNotNull()).agg(*(each.alias(f"c{n}") for n, each in enumerate(counts))).collect()[0]
    return [(label, float(row[n])) for n, (_, label) in enumerate(classes)]


# Sessions


def totals_of(sessions: DataFrame) -> Any:
    from pyspark.sql import functions as F

    return sessions.agg(
        F.coalesce(F.sum("views"), F.lit(0)).alias("views"),
        F.count_if("converted").alias("converted"),
        F.percentile_approx("seconds", 0.5).alias("middle"),
        F.count_if(F.col("views") <= 1).alias("bounces"),
        F.count(F.lit(1)).alias("many"),
    ).collect()[0]


def visits_section(frames: dict[str, DataFrame], visits: Any, tables: Tables) -> Section:
    sessions = frames["sessions"]
    settings = tables.settings
    note = (
        f"A session ends when its visitor is silent for more than {settings.gap_s / 60:g} minutes. Half of them last "
        f"{visits['middle'] or 0:,.0f} s or less; {share(visits['bounces'], visits['many'])} see one page or none."
    )
    if settings.conversion:
        note += f" {share(visits['converted'], visits['many'])} reach a page that matches {settings.conversion}."
    items = [
        report.histogram("Length of sessions", classed(sessions, "seconds", LENGTHS), unit="sessions"),
        report.histogram("Pages per session", classed(sessions, "views", DEPTHS), unit="sessions"),
    ]
    return Section("Sessions", items, note, halves=True)


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
