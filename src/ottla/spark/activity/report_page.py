"""Makes the report page: charts of what the tables hold.

All figures come from SQL queries on the tables, by `deltalake`'s own engine. A query takes milliseconds where a Spark
job takes hundreds, and it streams through tables of any size. Answers are small whatever the size of the tables: at
most BUCKETS points in time, TOP names, and as many classes as a chart has columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import QueryBuilder

from ottla.spark import report
from ottla.spark.activity.tables import Tables
from ottla.spark.activity.totals import Totals
from ottla.spark.report import Section, Series

TOP, FEW, EXAMPLES = 15, 8, 10
Classes: TypeAlias = tuple[tuple[int | None, str], ...]
"""Classes of a histogram: upper bound (included) and name."""
LENGTHS: Classes = ((0, "0 s"), (10, "≤ 10 s"), (60, "≤ 1 min"), (300, "≤ 5 min"), (1800, "≤ 30 min"), (None, "longer"))
DEPTHS: Classes = ((0, "0"), (1, "1"), (2, "2"), (3, "3"), (5, "4–5"), (10, "6–10"), (20, "11–20"), (None, "more"))  # noqa: RUF001
SIZES: Classes = (
    (0, "0"), (1 << 10, "≤ 1 kB"), (10 << 10, "≤ 10 kB"), (100 << 10, "≤ 100 kB"), (1 << 20, "≤ 1 MB"),
    (10 << 20, "≤ 10 MB"), (None, "larger"),
)  # fmt: skip
STATUSES = {"2xx": (200, 299, "good"), "3xx": (300, 399, "quiet"), "4xx": (400, 499, "warn"), "5xx": (500, 999, "bad")}


Counts: TypeAlias = dict[str, list[tuple[str, float]]]
"""By kind, names and how often each occurs."""


@dataclass(frozen=True, slots=True)
class Span:
    """The displayed time, divided into buckets."""

    starts: Sequence[datetime]
    step_s: int

    @property
    def first(self) -> int:
        return int(self.starts[0].timestamp())

    @property
    def end(self) -> int:
        return int(self.starts[-1].timestamp()) + self.step_s


Row: TypeAlias = Mapping[str, Any]
VIEWED = "(page is not null and not asset)"
SECONDS = "cast(to_unixtime({}) as bigint)"


class Queries:
    """Runs SQL over the tables that have columns of the report."""

    def __init__(self, tables: Tables) -> None:
        self._engine = QueryBuilder()
        for name in ("events", "late", "malformed", "sessions"):
            self._engine.register(name, tables.by_name[name].delta)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return pa.table(self._engine.execute(sql).read_all()).to_pylist()

    def row(self, sql: str) -> Row:
        return self.rows(sql)[0]


def report_page(tables: Tables, found: Totals, title: str) -> str:
    """The page as HTML text."""
    queries = Queries(tables)
    source = report.drawn_from(topics_of(queries), tables.root, datetime.now(UTC))
    told = str(found)
    warning = "" if not found.problems else f"The figures do not add up: {' '.join(found.problems)}"
    shown = span_of(queries)
    if shown is None:
        return report.page(
            title, f"No events yet. {source}", [("Malformed", whole(found.malformed))], odd(queries, found), note=told
        )
    sums, visits = events_in_all(queries), sessions_in_all(queries)
    series = by_bucket(queries, shown, "events", "time", EVENT_FIGURES) | sizes_over_time(queries, shown)
    names, visit_names = most(queries, "events", EVENT_NAMES), most(queries, "sessions", SESSION_NAMES)
    begun = by_bucket(queries, shown, "sessions", "start", {"sessions": "count(*)"})
    sections = [
        visits_over_time(series, begun["sessions"], shown, found),
        pages(names, visit_names, sums["views"], found),
        answers(names, series, sums, shown, found),
        visits_section(visits, tables),
        *odd(queries, found),
    ]
    last = datetime.fromtimestamp(shown.end - 1, UTC)
    subtitle = f"{day(shown.starts[0])} to {day(last)}, all times in UTC. {source}"
    figures = headline(found, sums, visits, tables)
    return report.page(title, subtitle, figures, sections, note=told, warning=warning)


def topics_of(queries: Queries) -> list[str]:
    each = (f"select distinct topic from {name}" for name in ("events", "late", "malformed"))
    return [row["topic"] for row in queries.rows(" union ".join(each))]


# ---- in all --------------------------------------------------------------------------------------------------------


def events_in_all(queries: Queries) -> Row:
    return queries.row(
        f"select {count_if(VIEWED)} as views, {count_if('bot')} as bots, {count_if('status >= 400')} as errors,"
        f" coalesce(sum(bytes), 0) as bytes, {', '.join(classes('bytes', SIZES))} from events"
    )


def sessions_in_all(queries: Queries) -> Row:
    figures = queries.row(
        f"select coalesce(sum(views), 0) as views, {count_if('converted')} as converted,"
        f" {count_if('views <= 1')} as bounces, count(*) as many,"
        f" {', '.join([*classes('seconds', LENGTHS), *classes('views', DEPTHS)])} from sessions"
    )
    middle = queries.rows(percentiles("seconds", "0", "sessions", {"middle": 0.5}))
    return {**figures, "middle": middle[0]["middle"] if middle else None}


def count_if(condition: str) -> str:
    return f"count(case when {condition} then 1 end)"


def percentiles(value: str, of: str, rows: str, shares: Mapping[str, float]) -> str:
    """A query for the least values that at least such shares of a group's rows do not exceed. `of`: the group."""
    each = (
        f"select {of} as place, {value} as value, count(*) as many from {rows} where {value} is not null group by 1, 2"
    )
    ranked = (
        "select place, value, many, sum(many) over (partition by place order by value) as upto,"
        f" sum(many) over (partition by place) as whole from ({each})"
    )
    found = [f"min(case when upto >= ceil({share} * whole) then value end) as {name}" for name, share in shares.items()]
    return f"select place, {', '.join(found)} from ({ranked}) group by place"


def classes(name: str, bounds: Classes) -> list[str]:
    """How many rows fall into each class."""
    below, counts = None, []
    for place, (bound, _) in enumerate(bounds):
        inside = f"{name} is not null" if bound is None else f"{name} <= {bound}"
        over = "" if below is None else f" and {name} > {below}"
        counts.append(f"{count_if(inside + over)} as {name}_{place}")
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


# ---- time ----------------------------------------------------------------------------------------------------------


def span_of(queries: Queries) -> Span | None:
    """Return the buckets to show: from the first event to the last, unless a few are far away from all others."""
    seconds = SECONDS.format("time")
    ends = queries.row(f"select min({seconds}) as least, max({seconds}) as greatest from events")
    least, greatest = ends["least"], ends["greatest"]
    if least is None:
        return None
    (inner,) = queries.rows(percentiles(seconds, "0", "events", {"low": 0.005, "high": 0.995}))
    low, high = inner["low"], inner["high"]
    if greatest - least > 4 * (high - low) + 86400 * 2:
        least, greatest = low, high
    first, last = (datetime.fromtimestamp(each, UTC) for each in (least, greatest))
    step = report.step_seconds(first, last)
    return Span(report.buckets(first, last, step), step)


def bucket(shown: Span, time: str) -> str:
    return f"({SECONDS.format(time)} - {shown.first}) / {shown.step_s}"


def within(shown: Span, time: str) -> str:
    return f"{SECONDS.format(time)} >= {shown.first} and {SECONDS.format(time)} < {shown.end}"


def by_bucket(queries: Queries, shown: Span, table: str, time: str, what: Mapping[str, str]) -> dict[str, list[float]]:
    """Figures per bucket, zero for a bucket without any."""
    named = ", ".join(f'{figure} as "{name}"' for name, figure in what.items())
    place, inside = bucket(shown, time), within(shown, time)
    return series_of(
        queries.rows(f"select {place} as place, {named} from {table} where {inside} group by 1"), shown, what
    )


def series_of(rows: Sequence[Row], shown: Span, names: Iterable[str]) -> dict[str, list[float]]:
    series: dict[str, list[float]] = {name: [0.0] * len(shown.starts) for name in names}
    for row in rows:
        for name, points in series.items():
            points[row["place"]] = float(row[name] or 0)
    return series


EVENT_FIGURES = {
    "views": count_if(f"{VIEWED} and not bot and kind not in ('search', 'click')"),
    "searches": count_if(f"{VIEWED} and not bot and kind = 'search'"),
    "clicks": count_if(f"{VIEWED} and not bot and kind = 'click'"),
    "rest": count_if(f"not {VIEWED} and not bot"),
    "bots": count_if("bot"),
    "visitors": "count(distinct visitor)",
    **{name: count_if(f"status between {low} and {high}") for name, (low, high, _) in STATUSES.items()},
    "all": "count(*)",
}


def sizes_over_time(queries: Queries, shown: Span) -> dict[str, list[float]]:
    shares = {"p50": 0.5, "p95": 0.95}
    rows = f"(select * from events where {within(shown, 'time')})"
    return series_of(queries.rows(percentiles("bytes", bucket(shown, "time"), rows, shares)), shown, shares)


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


# ---- names ---------------------------------------------------------------------------------------------------------


EVENT_NAMES = {
    "page": f"case when {VIEWED} then page end",
    "asset": "case when asset then page end",
    "status": "cast(status as varchar)",
    "error": "case when status >= 400 then concat(cast(status as varchar), ' ', coalesce(page, '(no page)')) end",
}
SESSION_NAMES = {
    "entry": "entry",
    "exit": "exit",
    "host": "nullif((regexp_match(referrer, '^[a-z]+://([^/:]+)'))[1], '')",
}


def most(queries: Queries, table: str, named: Mapping[str, str]) -> Counts:
    """Return the TOP most frequent names of each kind; names with equal counts in their own order."""
    found: Counts = {}
    for of, name in named.items():
        counts = f"select {name} as name, count(*) as many from {table} where {name} is not null group by 1"
        rows = queries.rows(f"{counts} order by many desc, name limit {TOP}")
        found[of] = [(row["name"], float(row["many"])) for row in rows]
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


# ---- answers -------------------------------------------------------------------------------------------------------


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


# ---- sessions ------------------------------------------------------------------------------------------------------


def visits_section(visits: Any, tables: Tables) -> Section:
    settings, middle = tables.settings, visits["middle"]
    half = f"{middle:,.0f} s or less" if middle else "less than a second"
    bounced = share(visits["bounces"], visits["many"])
    note = (
        f"A session ends when its visitor is silent for more than {settings.gap_s / 60:g} minutes. At least half of "
        f"them last {half}; {bounced} see one page or none."
    )
    if settings.conversion:
        note += f" {share(visits['converted'], visits['many'])} reach a page that matches {settings.conversion}."
    items = [
        report.histogram("Length of sessions", classed(visits, "seconds", LENGTHS), unit="sessions"),
        report.histogram("Pages per session", classed(visits, "views", DEPTHS), unit="sessions"),
    ]
    return Section("Sessions", items, note)


# ---- what is odd ---------------------------------------------------------------------------------------------------


def odd(queries: Queries, found: Totals) -> list[Section]:
    """Return the section of late and malformed records: how many, why, and examples."""
    items: list[Any] = []
    if found.malformed:
        why = "split_part(reason, ': ', 1) as why, count(*) as many, min(substr(raw, 1, 300)) as raw"
        rows = queries.rows(f"select {why} from malformed group by 1 order by many desc, why limit {EXAMPLES}")
        cells = [(row["why"], row["many"], row["raw"]) for row in rows]
        items.append(report.table("Malformed records", ("Why", "Records", "One of them"), cells))
    if found.late:
        behind = f"{SECONDS.format('watermark')} - {SECONDS.format('time')}"
        late = f"(select topic, partition, {behind} as behind from late)"
        place = "concat(topic, ' ', cast(partition as varchar))"
        middles = {
            row["place"]: row["middle"] for row in queries.rows(percentiles("behind", place, late, {"middle": 0.5}))
        }
        each = f"select topic, partition, {place} as place, count(*) as many, max(behind) as most from {late}"
        rows = queries.rows(f"{each} group by 1, 2 order by many desc, topic, partition limit {EXAMPLES}")
        cells = [
            (row["topic"], row["partition"], row["many"], lasting(middles[row["place"]]), lasting(row["most"]))
            for row in rows
        ]
        names = ("Topic", "Partition", "Records", "Behind by (middle)", "Behind by (most)")
        note = "Too late for their windows and sessions, and in neither; the table late/ has them."
        items.append(report.table("Late events", names, cells, note=note))
    return [Section("Late and malformed", items)] if items else []


# ---- texts ---------------------------------------------------------------------------------------------------------


def whole(number: int) -> str:
    return f"{number:,}"


def share(part: int, all_of: int) -> str:
    return f"{part / all_of:.1%}" if all_of else "0%"


def size(number: float) -> str:
    """Format a number of bytes for people."""
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
