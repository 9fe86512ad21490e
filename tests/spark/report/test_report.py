"""The report page: what its charts hold, that nothing on it runs or is fetched, and that it is small."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("altair", reason="needs the extra spark")

from ottla.spark import report
from ottla.spark.report import Section, Series

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x00\x1b[31m\u202e{{7*7}}]]>-->"
FIRST = datetime(2024, 3, 1, tzinfo=UTC)
DIGIT_PX = 6
"""Of a sans-serif font of 11 pixels."""


class Seen(HTMLParser):
    """The tags of a page, their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def whole_page(text: str) -> str:
    starts = report.buckets(FIRST, FIRST + timedelta(hours=3), 3600)
    ones = [1.0, 2.0, 0.0, 4.0]
    return report.page(
        text,
        text,
        [(text, text)],
        [
            Section(
                text,
                [
                    report.timeline(text, starts, 3600, [Series(text, ones), Series("b", ones, "bad")], unit=text),
                    report.timeline(text, starts, 3600, [Series(text, ones)], lines=True, note=text),
                    report.histogram(text, [(text, 3), ("b", 1)], unit=text),
                    report.bars(text, [(text, 3), ("b", 1)], unit=text, total=4, note=text),
                    report.table(text, (text, "n"), [(text, 1), (None, 2.5)], note=text),
                ],
                text,
            )
        ],
        note=text,
        warning=text,
    )


def test_hostile_text_stays_text() -> None:
    seen, harmless = Seen(whole_page(HOSTILE)), Seen(whole_page("fine"))
    tags = [tag for tag, _ in seen.tags]
    assert tags == [tag for tag, _ in harmless.tags]
    assert tags.count("script") == 1
    assert "img" not in tags
    named = {name for _, attributes in seen.tags for name in attributes}
    assert not [name for name in named if name.startswith("on")]
    assert seen.text.count("alert(1)") > 10
    assert "49]]" not in seen.text


def test_the_page_fetches_nothing_and_runs_but_its_own_script() -> None:
    page = whole_page("fine")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; ")
    addresses = [
        value for _, attributes in Seen(page).tags for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "action", "data")
    ]  # fmt: skip
    assert addresses == []
    assert "url(" not in page  # nor between drawings, whose ids are not their own


def test_a_timeline_has_a_labelled_mark_for_every_value() -> None:
    starts = report.buckets(FIRST, FIRST + timedelta(hours=3), 3600)
    chart = report.timeline("t", starts, 3600, [Series("a", [1, 0, 2, 3]), Series("b", [5, 0, 0, 1], "bad")], unit="e")
    for drawing in (chart.wide, chart.narrow):
        root = ElementTree.fromstring(drawing)
        labels = [found for each in root.iter() if ": " in (found := each.get("aria-label", ""))]
        assert sorted(labels) == sorted(
            [
                "01 Mar 00:00\N{EN DASH}01:00 · a: 1 e",
                "01 Mar 02:00\N{EN DASH}03:00 · a: 2 e",
                "01 Mar 03:00\N{EN DASH}04:00 · a: 3 e",
                "01 Mar 00:00\N{EN DASH}01:00 · b: 5 e",
                "01 Mar 03:00\N{EN DASH}04:00 · b: 1 e",
            ]
        )
    assert chart.legend == [("a", "var(--s1)"), ("b", "var(--bad)")]


def test_what_lies_on_each_other_is_seen_and_what_differs_looks_so() -> None:
    starts = report.buckets(FIRST, FIRST + timedelta(hours=3), 3600)
    same = [Series(name, [1, 2, 3, 4]) for name in ("one", "two")]
    chart = report.timeline("t", starts, 3600, same, lines=True)
    dashes = [each.get("stroke-dasharray") for each in ElementTree.fromstring(chart.wide).iter()]
    assert {"1,0", "6,4"} <= set(dashes)
    levels = [Series(name, [1, 1, 1, 1], role) for name, role in (("FATAL", "worst"), ("ERROR", "bad"))]
    assert len({colour for _, colour in report.timeline("t", starts, 3600, levels).legend}) == 2
    rows = [("api", 1, "15.9%"), ("web", 2, "0%")]
    assert report.table("t", ("Service", "Lines", "Errors"), rows).numeric == [False, True, True]
    head = report.drawn_from({"logs", "access"}, Path("lake") / "site", FIRST)
    assert head == "Topics access, logs; table site; drawn 01 March 2024 00:00 UTC."


@pytest.mark.parametrize("seconds", [12, 95, 2400, 4 * 86400])
def test_labels_of_the_time_axis_stand_apart(seconds: int) -> None:
    first = datetime(2026, 11, 26, 23, 57, 3, tzinfo=UTC)
    step = report.step_seconds(first, first + timedelta(seconds=seconds))
    starts = report.buckets(first, first + timedelta(seconds=seconds), step)
    chart = report.timeline("t", starts, step, [Series("a", [1.0] * len(starts))])
    for drawing in (chart.wide, chart.narrow):
        texts = [each for each in ElementTree.fromstring(drawing).iter() if each.tag.endswith("}text")]
        labels = [each for each in texts if each.get("text-anchor") == "middle"]
        assert len(labels) > 1
        assert {each.get("text-anchor") for each in texts} == {"middle", "end"}, "the others are of the other axis"
        assert all(each.get("text-anchor") == "middle" for each in texts if ":" in (each.text or ""))
        widths = [len(each.text or "") * DIGIT_PX for each in labels]
        places = [float(re.split(r"[(,]", each.get("transform", ""))[1]) for each in labels]
        for (left, a), (right, b) in pairwise(zip(places, widths, strict=True)):
            assert left + a / 2 < right - b / 2


def test_a_series_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 values for 2 buckets"):
        report.timeline("t", [FIRST, FIRST + timedelta(hours=1)], 3600, [Series("a", [1])])


def test_no_values_make_a_page_all_the_same() -> None:
    empty = [
        report.timeline("t", [], 60, []),
        report.histogram("h", []),
        report.bars("b", []),
        report.table("t", ("a",), []),
    ]
    assert "None." in report.page("t", "s", [], [Section("x", empty)])


@pytest.mark.parametrize("seconds", [0, 1, 59, 3600, 86400, 3 * 86400, 400 * 86400, 20_000 * 86400])
def test_buckets_cover_the_time_and_are_few(seconds: int) -> None:
    first, last = FIRST + timedelta(seconds=17), FIRST + timedelta(seconds=17 + seconds)
    step = report.step_seconds(first, last)
    starts = report.buckets(first, last, step)
    assert 1 <= len(starts) <= 97
    assert starts[0] <= first
    assert last < starts[-1] + timedelta(seconds=step)
    assert all(int(start.timestamp()) % step == 0 for start in starts)
