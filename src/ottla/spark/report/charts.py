"""Draws the charts of a page. Vega (altair, vl-convert) draws timelines and histograms as SVG; bars and tables are
HTML.

Colours are the page's CSS variables, so one drawing serves light and dark mode. Each drawing is made twice, for wide
and narrow screens; the page shows one. The meaning of a mark is its aria-label, which the page shows on hover.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

WIDE, NARROW = 860, 330
HEIGHT = 190
PALETTE = tuple(f"var(--s{n})" for n in range(1, 8))
ROLES = {name: f"var(--{name})" for name in ("good", "warn", "bad", "worst", "quiet")}
"""Colours with a meaning; any other series gets the palette's next."""

STEPS_S = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800,
    2592000, 7776000, 31536000,
)  # fmt: skip
BUCKETS_MAX = 96
LABEL_MAX = 300
SPARSE: Mapping[str, Any] = {"labelOverlap": "greedy", "labelSeparation": 8}
"""Omits axis labels that would be closer to each other than this number of pixels."""
DASHES = ((1, 0), (6, 4), (2, 3))
"""Dash patterns of a timeline's lines, in order: where two lines coincide, both stay visible."""
SHARE = re.compile(r"[\d.,]+%")


@dataclass(frozen=True, slots=True)
class Series:
    """One colour of a timeline: a value per bucket. `role`: good, warn, bad, worst, quiet, or None for the palette."""

    name: str
    values: Sequence[float]
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, wide and narrow, and its legend of (name, colour). `half`: it takes half the width."""

    title: str
    wide: str
    narrow: str
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""
    half: bool = False
    lines: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of `Bars`: share is of the greatest, 0 to 100."""

    label: str
    value: str
    share: float
    colour: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Named amounts."""

    title: str
    rows: Sequence[Bar]
    note: str = ""
    half: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text. `numeric`: which columns are set to the right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[bool] = field(default_factory=tuple)
    note: str = ""
    half: bool = False


def step_seconds(first: datetime, last: datetime, *, buckets_max: int = BUCKETS_MAX) -> int:
    """Return the step, in seconds, that divides the time from `first` to `last` into at most this number of buckets."""
    span = max((last - first).total_seconds(), 0)
    for step in STEPS_S:
        if span / step < buckets_max - 1:
            return step
    years = int(span / STEPS_S[-1] / (buckets_max - 1)) + 1
    return STEPS_S[-1] * years


def buckets(first: datetime, last: datetime, step_s: int) -> list[datetime]:
    """The starts of the buckets from `first` to `last`, both in UTC; starts are multiples of the step since 1970."""
    start = int(first.timestamp()) // step_s * step_s
    end = int(last.timestamp())
    return [datetime.fromtimestamp(second, UTC) for second in range(start, end + 1, step_s)]


def timeline(
    title: str,
    starts: Sequence[datetime],
    step_s: int,
    series: Sequence[Series],
    *,
    unit: str = "",
    lines: bool = False,
    show: Callable[[float], str] | None = None,
    note: str = "",
) -> Chart:
    """Values over time: stacked columns, or a line per series. Each series has one value per start, in the same order.

    Raises ValueError when one has not."""
    for each in series:
        if len(each.values) != len(starts):
            raise ValueError(f"series {each.name!r} has {len(each.values)} values for {len(starts)} buckets")
    colours = coloured(series)
    told = show or number
    rows: list[dict[str, Any]] = []
    below = [0.0] * len(starts)
    for each, colour in zip(series, colours, strict=True):
        for place, (start, value) in enumerate(zip(starts, each.values, strict=True)):
            if not value and not lines:
                continue
            label = f"{span(start, step_s)} · {cut(each.name, 80)}: {told(value)} {unit}".strip()
            base = 0.0 if lines else below[place]
            row = {"x": millis(start), "x2": millis(start) + step_s * 1000, "y": base + value, "y2": base}
            rows.append({**row, "colour": colour, "name": each.name, "label": cut(label)})
            below[place] = base + value
    edge = (millis(starts[0]), millis(starts[-1]) + step_s * 1000) if starts else (0, 1)
    wide, narrow = (drawn(time_spec(rows, edge, width, lines)) for width in (WIDE, NARROW))
    legend = list(zip((each.name for each in series), colours, strict=True)) if len(series) > 1 else []
    return Chart(title, wide, narrow, legend, note, lines=lines)


def histogram(title: str, rows: Sequence[tuple[str, float]], *, unit: str = "", note: str = "") -> Chart:
    """How many of each class, in the classes' own order."""
    marks = [
        {"place": place, "x": cut(name, 24), "y": value, "label": cut(f"{name}: {number(value)} {unit}".strip())}
        for place, (name, value) in enumerate(rows)
    ]
    wide, narrow = (drawn(class_spec(marks, width)) for width in (WIDE // 2 - 10, NARROW))
    return Chart(title, wide, narrow, note=note, half=True)


def bars(
    title: str,
    rows: Iterable[tuple[str, float]],
    *,
    unit: str = "",
    total: float | None = None,
    roles: Mapping[str, str] | None = None,
    note: str = "",
    half: bool = False,
) -> Bars:
    """Draw named amounts as lines of different length, in the order given. `total`: the whole for the displayed shares.
    `roles`: colour per label, see ROLES."""
    found = list(rows)
    most = max((value for _, value in found), default=0)
    return Bars(
        title,
        [
            Bar(
                cut(label) or "(none)",
                f"{number(value)} {unit}".strip(),
                100 * value / most if most else 0,
                ROLES.get((roles or {}).get(label, ""), PALETTE[0]),
                f"{value / total:.1%}" if total else "",
            )
            for label, value in found
        ],
        note,
        half,
    )


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "") -> Table:
    """Rows of figures and texts; columns of numbers or shares alone are set to the right. Times are shown in UTC."""
    found = [list(row) for row in rows]
    numeric = [bool(found) and all(is_number(row[at]) for row in found) for at in range(len(columns))]
    return Table(title, columns, [[shown(cell) for cell in row] for row in found], numeric, note)


# ---- texts ---------------------------------------------------------------------------------------------------------


def is_number(cell: object) -> bool:
    return isinstance(cell, int | float) or (isinstance(cell, str) and SHARE.fullmatch(cell) is not None)


def shown(cell: object) -> str:
    if isinstance(cell, bool) or cell is None:
        return {True: "yes", False: "no", None: "\N{EN DASH}"}[cell]
    if isinstance(cell, int | float):
        return number(cell)
    if isinstance(cell, datetime):
        return cell.strftime("%d %b %Y %H:%M:%S")
    return cut(str(cell))


def number(value: float) -> str:
    """1,234 or 0.25."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.2f}"


def cut(text: str, length: int = LABEL_MAX) -> str:
    """Truncate a text to this length; control characters become U+FFFD."""
    seen = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text[: length + 1])
    return seen if len(seen) <= length else f"{seen[: length - 1]}…"


def span(start: datetime, step_s: int) -> str:
    """The time of one bucket."""
    if step_s >= 86400:
        return f"{start:%d %b %Y}" if step_s == 86400 else f"from {start:%d %b %Y}"
    end = start + timedelta(seconds=step_s)
    clock = "%H:%M" if step_s >= 60 else "%H:%M:%S"
    return f"{start:%d %b} {start.strftime(clock)}\N{EN DASH}{end.strftime(clock)}"


def millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def coloured(series: Sequence[Series]) -> list[str]:
    free = iter(PALETTE * (len(series) // len(PALETTE) + 1))
    return [ROLES[each.role] if each.role in ROLES else next(free) for each in series]


# ---- drawings ------------------------------------------------------------------------------------------------------


def drawn(chart: Any) -> str:
    """The chart as SVG."""
    import vl_convert

    svg = vl_convert.vegalite_to_svg(chart.to_dict(), allowed_base_urls=[])
    return svg.replace("<svg ", '<svg preserveAspectRatio="xMidYMid meet" ', 1)


def time_spec(rows: list[dict[str, Any]], edge: tuple[int, int], width: int, lines: bool) -> Any:
    import altair as alt

    x = alt.X("x:T", title=None).scale(type="utc", domain=list(edge), nice=False)
    ticks = 4 if width == NARROW else 9
    x = x.axis(tickCount=ticks, labelExpr=time_label(edge), labelFlush=False, **SPARSE)
    y = alt.Y("y:Q", title=None).axis(tickCount=4, format="~s", domain=False, ticks=False).scale(zero=True)
    base = alt.Chart(alt.Data(values=rows))
    colour = alt.Color("colour:N", legend=None, scale=None)
    label = alt.Description("label:N")
    if lines:
        dash = alt.StrokeDash("name:N", legend=None, sort=None)
        dash = dash.scale(domain=list(dict.fromkeys(row["name"] for row in rows)), range=[list(one) for one in DASHES])
        line = base.mark_line(strokeWidth=2, interpolate="monotone")
        line = line.encode(x=x, y=y, color=colour, detail="colour:N", strokeDash=dash)
        points = base.mark_point(size=60, filled=True, opacity=0).encode(x=x, y=y, color=colour, description=label)
        return framed(line + points, width)
    mark = base.mark_rect(stroke="var(--card)", strokeWidth=0.3 if width == NARROW else 0.6)
    return framed(mark.encode(x=x, x2="x2:T", y=y, y2="y2:Q", color=colour, description=label), width)


def time_label(edge: tuple[int, int]) -> str:
    """Vega's expression for a label of the time axis, as fine as the span asks for."""
    days = (edge[1] - edge[0]) / 86_400_000
    if days > 300:
        return "utcFormat(datum.value, '%b %Y')"
    if days > 12:
        return "utcFormat(datum.value, '%d %b')"
    clock = "%H:%M" if days > 0.005 else "%H:%M:%S"
    midnight = "utcFormat(datum.value, '%H%M%S') == '000000'"
    return f"{midnight} ? utcFormat(datum.value, '%a %d %b') : utcFormat(datum.value, '{clock}')"


def class_spec(marks: list[dict[str, Any]], width: int) -> Any:
    import altair as alt

    x = alt.X("x:N", title=None, sort=alt.SortField("place"))
    x = x.axis(labelAngle=0, ticks=False, **SPARSE).scale(paddingInner=0.15, paddingOuter=0.05)
    y = alt.Y("y:Q", title=None, stack=None).axis(tickCount=4, format="~s", domain=False, ticks=False).scale(zero=True)
    base = alt.Chart(alt.Data(values=marks))
    mark = base.mark_bar(color=PALETTE[0], cornerRadiusEnd=2)
    return framed(mark.encode(x=x, y=y, description=alt.Description("label:N")), width)


def framed(chart: Any, width: int) -> Any:
    """Size, and the page's own colours for everything that is no mark."""
    chart = chart.properties(width=width - 60, height=HEIGHT if width != NARROW else 160)
    return (
        chart.configure(background="transparent", font="sans-serif", padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor="var(--soft)", labelFontSize=11, gridColor="var(--line)", domainColor="var(--line)",
            tickColor="var(--line)", labelPadding=6,
        )
        .configure_axisX(grid=False)
    )  # fmt: skip
