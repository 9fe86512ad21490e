"""Lines and JSON of every kind as events, and what is none with its reason; the pure functions on small DataFrames."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.activity.event import EventReader, text_of_bytes
from ottla.spark.activity.times import micros_of
from ottla.spark.text.json_text import DEPTH_MAX, json_object, text_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOW = datetime(2026, 1, 2, tzinfo=UTC)
AT = "17/May/2015:10:05:03 +0000"
TIME = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
RECORDS = "value binary, timestamp timestamp, topic string, partition int, offset long"

EVENTS: dict[str, tuple[bytes, dict[str, Any]]] = {
    "combined": (
        rf'1.2.3.4 - - [{AT}] "GET /a/b?x=1&y=2#f HTTP/1.1" 200 12 "http://r/?q" "Mozilla \"5\""'.encode() + b"\r\n",
        {"time": TIME, "visitor": "1.2.3.4", "kind": "view", "method": "GET", "page": "/a/b", "query": "x=1&y=2",
         "status": 200, "bytes": 12, "referrer": "http://r/?q", "agent": r"Mozilla \"5\"", "bot": False,
         "asset": False},
    ),
    "common": (
        b'::1 - bob [17/May/2015:10:05:03 +0200] "HEAD / HTTP/1.0" 304 -',
        {"time": datetime(2015, 5, 17, 8, 5, 3, tzinfo=UTC), "visitor": "::1", "method": "HEAD", "page": "/",
         "status": 304, "bytes": None, "referrer": None, "agent": None},
    ),
    "virtual host, more fields": (
        f'www.x.org:80 2001:db8::1 - john smith [{AT}] "POST http://h/p?q=1 HTTP/1.1" 200 5 "-" "-" "9" 0.1'.encode(),
        {"visitor": "2001:db8::1", "page": "/p", "query": "q=1", "kind": "search", "referrer": None, "agent": None},
    ),
    "user with a space": (
        f'1.2.3.4 - john smith [{AT}] "GET /s.CSS HTTP/1.1" 200 5'.encode(),
        {"visitor": "1.2.3.4", "page": "/s.CSS", "asset": True},
    ),
    "no request": (f'1.2.3.4 - - [{AT}] "-" 408 - "-" "-"'.encode(), {"method": None, "page": None, "status": 408}),
    "binary request": (
        rf'1.2.3.4 - - [{AT}] "\x16\x03\x01" 400 226'.encode(), {"method": None, "page": None, "bytes": 226},
    ),
    "spaces in the target": (f'1.2.3.4 - - [{AT}] "GET /a b HTTP/1.1" 400 1'.encode(), {"page": "/a b"}),
    "HTTP 0.9": (f'1.2.3.4 - - [{AT}] "GET /old" 200 1'.encode(), {"method": "GET", "page": "/old"}),
    "nobody": (f'- - - [{AT}] "GET /foo HTTP/1.1" - -'.encode(), {"visitor": None, "status": None, "bytes": None}),
    "not UTF-8": (f'1.2.3.4 - - [{AT}] "GET /caf'.encode() + b'\xe9 HTTP/1.1" 200 1', {"page": "/café"}),
    "a bot": (f'1.2.3.4 - - [{AT}] "GET / HTTP/1.1" 200 1 "-" "GoogleBot/2"'.encode(), {"bot": True}),
    "a search page": (f'1.2.3.4 - - [{AT}] "GET /de/search HTTP/1.1" 200 1'.encode(), {"kind": "search"}),
    "hostile quotes": (
        f'1.2.3.4 - - [{AT}] "'.encode() + rb"\"" * 100_000 + b'" 200 1', {"page": None, "status": 200},
    ),
    "the demo's view": (
        b'{"id":1,"visitor":"visitor-3","path":"/cart","status":200,"millis":3,"agent":"curl/8.13.0"}',
        {"time": NOW, "visitor": "visitor-3", "kind": "view", "page": "/cart", "status": 200, "bot": True},
    ),
    "the demo's line": (
        b'{"turn":1,"line":2,"client":"9.9.9.9","time":"17/May/2015:10:05:03 +0000","method":"GET","path":"/q?a",'
        b'"protocol":"HTTP/1.1","status":"200","bytes":"-","referrer":"-","agent":"UA"}',
        {"time": TIME, "visitor": "9.9.9.9", "page": "/q", "query": "a", "bytes": None, "referrer": None},
    ),
    "nested": (
        b'{"ts":1700000000.5,"user":{"id":7},"page":{"url":"https://x.com/cart?a=b"},"event":"Click"}',
        {"time": datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC), "visitor": "7", "page": "/cart",
         "query": "a=b", "kind": "click"},
    ),
    "milliseconds": (
        b'{"ts":1700000000500,"userId":"u","url":"https://x.com","type":"page_view"}',
        {"time": datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC), "page": "/", "kind": "view"},
    ),
    "a kind of its own": (
        b'{"ts":"2024-01-01T00:00:00+02:00","ip":"1.1.1.1","event":{"name":"purchase"}}',
        {"time": datetime(2023, 12, 31, 22, tzinfo=UTC), "visitor": "1.1.1.1", "kind": "purchase", "page": None},
    ),
    "numbers with a fraction": (
        b'{"ts":1700000000.0,"user":7.50,"path":"/","status":200.0,"bytes":12.5}',
        {"visitor": "7.50", "status": 200, "bytes": None},
    ),
    "a server that logs in JSON": (
        f'{{"time":"{AT}","remote_ip":"93.180.71.3","remote_user":"-","request":"GET /d?a HTTP/1.1","response":304,'
        '"bytes":0,"referrer":"-","agent":"Debian APT-HTTP/1.3"}'.encode(),
        {"time": TIME, "visitor": "93.180.71.3", "kind": "view", "method": "GET", "page": "/d", "query": "a",
         "status": 304, "bytes": 0, "referrer": None},
    ),
    "a request that is broken": (
        f'{{"time_local":"{AT}","remote_addr":"1.1.1.1","request":"-","uri":"/fallback","status":"400"}}'.encode(),
        {"time": TIME, "visitor": "1.1.1.1", "method": None, "page": "/fallback", "status": 400},
    ),
    "names in groups": (
        b'{"@timestamp":"2015-05-17T10:05:03Z","source":{"ip":"1.1.1.1"},"url":{"path":"/a","query":"b"}}',
        {"time": TIME, "visitor": "1.1.1.1", "page": "/a"},
    ),
    "wrapped": (
        f'{{"message":"1.2.3.4 - - [{AT}] \\"GET /wrapped HTTP/1.1\\" 200 3"}}'.encode(),
        {"time": TIME, "visitor": "1.2.3.4", "page": "/wrapped", "bytes": 3},
    ),
}  # fmt: skip

MALFORMED: dict[str, tuple[bytes | None, str]] = {
    "no value": (None, "no value"),
    "empty": (b" \r\n", "empty"),
    "binary": (b"\xff\xfe\x00garbage", "not a line of an access log"),
    "cut off": (f'1.2.3.4 - - [{AT}] "GET / HTTP/1.1" 200 1 "-" "Mozilla (cut'.encode(), "not a line of an access log"),
    "no such day": (b'1.2.3.4 - - [37/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1', "unreadable time: 37/May"),
    "broken JSON": (b'{"broken', "not valid JSON"),
    "deep JSON": (b'{"a":' * 5000, "not valid JSON"),
    "empty JSON": (b"{}", "JSON that names no visitor, page or kind"),
    "the demo's unreadable line": (b'{"turn":1,"line":2,"raw":"bad"}', "a wrapped line that is not of an access log"),
    "no such time": (b'{"time":"gestern","user":"a"}', "unreadable time: gestern"),
    "a clock gone wild": (b'{"time":"2999-01-01","user":"a"}', "more than 1 day after its record's timestamp"),
    "separators": (b"x\x1fy" * 12, "not a line of an access log"),
    "too long": (b"a" * (1 << 20) + b"a", "longer than 1048576 bytes"),
    "spaces without end": (b"a " * 100_000, "not a line of an access log"),
    "quotes without end": (f'1.2.3.4 - - [{AT}] "'.encode() + rb"\"" * 100_000, "not a line of an access log"),
}


SAMPLES = [value for value, _ in (*EVENTS.values(), *MALFORMED.values()) if len(value or b"") < 10_000]


def found_in(value: bytes | None) -> tuple[str | None, dict[str, Any], str | None]:
    """Text, columns of the event, and why it is none."""
    raw, event = EventReader().read(value, micros(NOW), "page-views")
    return (raw, {}, event) if isinstance(event, str) else (raw, event._asdict(), None)


def micros(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


@pytest.mark.parametrize("name", EVENTS)
def test_event(name: str) -> None:
    value, wanted = EVENTS[name]
    raw, found, reason = found_in(value)
    assert reason is None
    wanted = {key: micros(each) if key == "time" else each for key, each in wanted.items()}
    assert {key: found[key] for key in wanted} == wanted
    kept = value.rstrip(b"\r\n")
    assert raw == (kept.decode() if b"\xe9" not in kept else kept.decode("latin-1"))


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    value, wanted = MALFORMED[name]
    raw, _, reason = found_in(value)
    assert (reason or "").startswith(wanted)
    assert raw == (None if value is None else text_of_bytes(value).rstrip("\r\n"))


def test_spark_gives_every_record_once_with_its_place(spark: SparkSession) -> None:
    from ottla.spark.activity import events, malformed, parse

    rows = [(value and bytearray(value), NOW, "page-views", n % 3, n) for n, value in enumerate(SAMPLES)]
    found = parse(spark.createDataFrame(rows, RECORDS).repartition(2)).cache()
    good = {row.offset: row for row in events(found).collect()}
    bad = {row.offset: row for row in malformed(found).collect()}
    assert sorted([*good, *bad]) == list(range(len(SAMPLES)))
    for offset, value in enumerate(SAMPLES):
        raw, wanted, reason = found_in(value)
        row = bad[offset] if reason else good[offset]
        assert (row.raw, row.topic, row.partition) == (raw, "page-views", offset % 3)
        if reason:
            assert (row.reason, row.value) == (reason, None if value is None else bytearray(value))
        else:
            assert {name: row[name] for name in wanted} == {**wanted, "time": row.time}
            assert micros(row.time.astimezone(UTC)) == wanted["time"]


TIMES: dict[str, datetime | None] = {
    "31/dec/1999:23:59:59 -0130": datetime(2000, 1, 1, 1, 29, 59, tzinfo=UTC),
    "31/Dec/1999:23:59:60 +0000": None,
    "29/Feb/2023:00:00:00 +0000": None,
    "01/Jan/2023:00:00:00 +1801": None,
    "01/Jan/2023:00:00:00": None,
    "2024-01-01": datetime(2024, 1, 1, tzinfo=UTC),
    "2024-01-01T": None,
    "2024-01-01 5": datetime(2024, 1, 1, 5, tzinfo=UTC),
    "2024-01-01T05:06Z": None,
    "2024-01-01T05:06:07.1234567899 Europe/Berlin": datetime(2024, 1, 1, 4, 6, 7, 123_456, tzinfo=UTC),
    "2024-03-31T02:30:00 Europe/Berlin": datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    "2024-10-27T02:30:00 Europe/Berlin": datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
    "2024-01-01T05:06:07+1": datetime(2024, 1, 1, 4, 6, 7, tzinfo=UTC),
    "2024-01-01T05:06:07GMT-01:30": datetime(2024, 1, 1, 6, 36, 7, tzinfo=UTC),
    "2024-01-01T05:06:07 PST": datetime(2024, 1, 1, 13, 6, 7, tzinfo=UTC),
    "2024-01-01T05:06:07 posix/UTC": None,
    "2024-01-01T05:06:07 Nowhere": None,
    "1700000000": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
    "1700000000500000000": datetime(2023, 11, 14, 22, 13, 20, 500_000, tzinfo=UTC),
    "0.0000015": datetime(1970, 1, 1, 0, 0, 0, 2, tzinfo=UTC),
    "1e9": None,
}
"""As Spark reads them."""


@pytest.mark.parametrize("told", TIMES)
def test_time(told: str) -> None:
    wanted = TIMES[told]
    assert micros_of(told) == (None if wanted is None else micros(wanted))


VALUES = {
    "12": "12", "-0": "-0", "100.0": "100.0", "-0.50": "-0.50", "1e2": "1e2", "1E7": "1E7", "1e400": "1e400",
    "9223372036854775808": "9223372036854775808", "1" * 1001: "1" * 1001, "NaN": "NaN", "true": "true",
    '"a\\u00e9"': "aé", '"\\ud800"': "?", "[1.0,null,1e400]": "[1.0,null,1e400]", "1, \"x\": 2": "2",
    '{"b": {}, "a": "\\u001f\\"/é"}': '{"b":{},"a":"\\u001f\\"/é"}',
}  # fmt: skip
"""JSON, and its text: numbers are kept as they are written."""


@pytest.mark.parametrize("written", VALUES)
def test_json_value(written: str) -> None:
    found = json_object(f'{{"x":{written}}} and more')
    assert found is not None
    assert text_of(found["x"]) == VALUES[written]


@pytest.mark.parametrize("text", ['{"a":01}', '{"a":"\t"}', '{"a":1', "[1]", "1"])
def test_what_is_no_json_object(text: str) -> None:
    assert json_object(text) is None


def test_json_may_be_so_deep() -> None:
    for depth in (100, DEPTH_MAX, DEPTH_MAX + 1, 5000):
        text = '{"a":' * depth + "1" + "}" * depth
        found = json_object(text)
        assert (found is not None) == (depth <= DEPTH_MAX)
        assert found is None or text_of(found) == text


PIECES_OF_LINES = st.sampled_from(
    [" ", '"', "\\", "[", "]", "-", "a", "1", "{", "}", ":", ",", "é", "\n", "\x1f", "[{}]"]
)


@given(
    st.one_of(st.binary(max_size=60), st.lists(PIECES_OF_LINES, max_size=40).map(lambda each: "".join(each).encode()))
)
def test_nothing_makes_it_fail(value: bytes) -> None:
    raw, _, reason = found_in(value)
    assert raw is not None
    assert reason is None or reason


def events_of(spark: SparkSession, rows: list[tuple[str | None, float, str | None, int | None]]) -> DataFrame:
    """(visitor, seconds since 1970, page, bytes) as events."""
    from pyspark.sql import functions as F

    frame = spark.createDataFrame(
        [(who, float(when), page, size, number) for number, (who, when, page, size) in enumerate(rows)],
        "visitor string, at double, page string, bytes long, offset long",
    )
    nothing = ("kind", "method", "query", "referrer", "agent", "raw", "topic")
    return frame.select(
        F.timestamp_micros((F.col("at") * 1_000_000).cast("long")).alias("time"),
        "visitor", "page", "bytes", "offset",
        F.lit(200).alias("status"), F.lit(0).alias("partition"), F.lit(False).alias("bot"),
        F.col("page").endswith(".css").alias("asset"),
        *(F.lit("view" if name == "kind" else None).cast("string").alias(name) for name in nothing),
    )  # fmt: skip


@pytest.mark.slow(
    "tests/spark/activity/test_activity_counting.py::test_sessions_are_those_of_plain_python_whatever_comes_first"
)
def test_a_session_goes_on_after_exactly_the_gap_and_ends_after_more(spark: SparkSession) -> None:
    from ottla.spark.activity import sessionise

    rows = [("a", 0, "/1", 1), ("a", 60, "/2.css", 2), ("a", 120, "/3", None), ("a", 180.000001, "/4", 8)]
    frame = events_of(spark, [*rows, ("b", 60, None, 1), (None, 0, "/", 1)])
    found = sessionise(frame, gap_s=60, conversion="^/3$").orderBy("visitor", "start").collect()
    told = [(row.visitor, row.seconds, row.events, row.views, row.entry, row.exit, row.converted) for row in found]
    assert told == [
        ("a", 120.0, 3, 2, "/1", "/3", True),
        ("a", 0.0, 1, 1, "/4", "/4", False),
        ("b", 0.0, 1, 0, None, None, False),
    ]
    assert [row.bytes for row in found] == [3, 8, 1]


@pytest.mark.slow(
    "tests/spark/activity/test_activity_counting.py::test_the_pages_of_each_window_add_up_and_are_in_order"
)
def test_the_pages_of_a_window_add_up_whatever_their_number(spark: SparkSession) -> None:
    from ottla.spark.activity import top_pages

    pages = ["/a", "/b", "/a", "/c", None, "/b", "/d"]
    frame = events_of(spark, [(f"v{n % 2}", 300 + n, page, n) for n, page in enumerate(pages)])
    found = top_pages(frame, window_s=300, top=2).collect()
    rows = sorted((row["rank"] or 99, row.page, row.events, row.visitors, row.bytes) for row in found)
    assert rows == [(1, "/a", 2, 1, 2), (2, "/b", 2, 1, 6), (99, "(others)", 3, None, 13)]
