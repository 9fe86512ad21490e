"""Records of access logs and click events as rows: `parse`, then `events` and `malformed`.

Knows: Apache's and nginx's common and combined lines (with or without a virtual host before them and more fields behind
them), JSON events under the field names below, and JSON that wraps a line. Does not know: sessions, windows, tables.
Everything is an expression of the JVM; no record passes through Python.

Invariant: every record comes out once, with a `reason` when it is no event, and then with its text and its bytes.
The expressions for lines are possessive wherever they repeat a group: linear on hostile lines, and no recursion.
Source: https://httpd.apache.org/docs/2.4/mod/mod_log_config.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

QUOTED = r'"((?:[^"\\]++|\\.)*+)"'
LINE = (
    r"\A(?:(\S+) (?!- ))?(\S+) (\S+) ([^\[\"]*?) \[([^\]]{1,64})\] "  # virtual host, client, ident, user, time
    + QUOTED  # request
    + r" (\d{3}|-) (\d{1,18}|-)"
    + f"(?: {QUOTED})?(?: {QUOTED})?"  # referrer, agent
    + r'(?: (?:"(?:[^"\\]++|\\.)*+"|[^"\s]\S*+))*+\s*\z'  # what a format of one's own adds
)
FIELDS = ("host", "client", "ident", "user", "time", "request", "status", "bytes", "referrer", "agent")
SEPARATOR = "\x1f"
"""Between the fields of a line once it is taken apart; a line that holds it itself is malformed."""

TIMES = ("time", "ts", "timestamp", "@timestamp", "event_time", "eventTime", "datetime", "date")
VISITORS = ("visitor", "visitor_id", "visitorId", "user.id", "user_id", "userId", "user", "uid")
CLIENTS = ("client", "client_ip", "clientIp", "ip", "remote_addr", "remote_host", "client.ip")
PAGES = ("page.path", "page.url", "page", "path", "url", "uri", "request_uri", "href")
KINDS = ("kind", "event.name", "event", "event_type", "eventType", "type", "action")
QUERIES = ("query", "q", "search", "term")
METHODS = ("method", "request_method", "verb")
STATUSES = ("status", "status_code", "statusCode", "code")
SIZES = ("bytes", "size", "body_bytes_sent", "bytes_sent", "response_size")
REFERRERS = ("referrer", "referer", "http_referer")
AGENTS = ("agent", "user_agent", "userAgent", "http_user_agent", "ua")
WRAPPED = ("message", "log", "raw")
"""Names that a JSON event may use, the first one that is there counts. WRAPPED: the whole line of a log, as shippers
send it."""

BOTS = (
    "bot", "crawl", "spider", "slurp", "curl/", "wget", "python", "java/", "libwww", "perl", "go-http", "okhttp",
    "feed", "fetch", "scrap", "headless", "monitor", "preview", "facebookexternalhit", "archiver",
)  # fmt: skip
"""A program, not a person, when its agent holds one of these."""
ASSETS = r"(?i)\.(?:css|js|mjs|map|png|jpe?g|gif|svg|webp|avif|ico|bmp|woff2?|ttf|otf|eot|webmanifest)\z"
SEARCH_QUERY = r"(?i)(?:\A|&)(?:q|query|search|term|keywords?)=[^&]"
SEARCH_PAGE = r"(?i)/search(?:/|\.\w+)?\z"
AHEAD_MAX = "1 day"
"""How far an event may lie after its record's own timestamp; a clock gone wild would make all others late."""
LINE_BYTES_MAX = 1 << 20

EVENT_COLUMNS = (
    "time", "visitor", "kind", "method", "page", "query", "status", "bytes", "referrer", "agent", "bot", "asset",
    "raw", "topic", "partition", "offset",
)  # fmt: skip
MALFORMED_COLUMNS = ("reason", "raw", "value", "timestamp", "topic", "partition", "offset")


def parse(records: DataFrame) -> DataFrame:
    """Rows of the source (`value`, `timestamp`, `topic`, `partition`, `offset`) as EVENT_COLUMNS and `reason`,
    `value`, `timestamp`. `reason` is null exactly for events. Works on batches and streams."""
    from pyspark.sql import functions as F

    value = F.col("value")
    text = F.when(F.is_valid_utf8(value.cast("string")), value.cast("string")).otherwise(F.decode(value, "ISO-8859-1"))
    rows = records.select(
        "value",
        "timestamp",
        "topic",
        "partition",
        "offset",
        F.regexp_replace(text, r"[\r\n]++\z", "").alias("raw"),
    )
    rows = rows.withColumn("short", F.when(F.octet_length("value") <= LINE_BYTES_MAX, F.col("raw")))
    rows = rows.withColumn("json", F.when(F.ltrim("short").startswith("{"), F.try_parse_json("short")))
    rows = rows.withColumn("is_json", F.ltrim("raw").startswith("{"))
    rows = rows.withColumn("line", F.when(F.col("is_json"), named(WRAPPED)).otherwise(F.col("short")))
    rows = rows.withColumn("found", taken_apart(F.col("line")))
    rows = rows.withColumn("is_line", is_line())
    rows = rows.withColumns(fields()).withColumn("time", event_time())
    rows = rows.withColumns(request_ends()).withColumns(method_and_target())
    rows = rows.withColumn("local", local_target()).withColumn("page", page()).withColumn("query", query())
    rows = rows.withColumn("words", F.lower("agent")).withColumns(judged())
    rows = rows.withColumn("reason", reason())
    return rows.select(*EVENT_COLUMNS, "reason", "value", "timestamp")


def events(parsed: DataFrame) -> DataFrame:
    """Those of `parse`'s rows that are events: EVENT_COLUMNS."""
    from pyspark.sql import functions as F

    return parsed.where(F.col("reason").isNull()).select(*EVENT_COLUMNS)


def malformed(parsed: DataFrame) -> DataFrame:
    """Those of `parse`'s rows that are none, with why: MALFORMED_COLUMNS. `value` has the very bytes."""
    from pyspark.sql import functions as F

    return parsed.where(F.col("reason").isNotNull()).select(*MALFORMED_COLUMNS)


# Expressions


def named(names: Sequence[str]) -> Column:
    """The first of these fields that the JSON event has, as text."""
    from pyspark.sql import functions as F

    found = [F.try_variant_get(F.col("json"), path(name), "string") for name in names]
    return F.nullif(F.trim(F.coalesce(*found)), F.lit(""))


def path(name: str) -> str:
    return "$" + "".join(f"['{part}']" if "@" in part else f".{part}" for part in name.split("."))


def taken_apart(line: Column) -> Column:
    """An access-log line as an array: "" and its FIELDS; any other line as something else. One pass over the text.

    A column of its own before anything looks into it: Spark works an expression out again for every use."""
    from pyspark.sql import functions as F

    marked = SEPARATOR.join(["", *(f"${n}" for n in range(1, len(FIELDS) + 1))])
    return F.split(F.regexp_replace(line, LINE, marked), SEPARATOR)


def is_line() -> Column:
    from pyspark.sql import functions as F

    whole = (F.size("found") == len(FIELDS) + 1) & ~F.contains(F.col("line"), F.lit(SEPARATOR))
    return F.coalesce(whole, F.lit(False))


def field(name: str) -> Column:
    """One field of a line; null for `-` and for one that is not there."""
    from pyspark.sql import functions as F

    found = F.get("found", F.lit(FIELDS.index(name) + 1))
    return F.when(~found.isin("-", ""), found)


def fields() -> dict[str, Column]:
    """The fields that lines and JSON events share, as text; of JSON events also kind, page and query."""
    from pyspark.sql import functions as F

    def either(line: Column, names: Sequence[str]) -> Column:
        return F.when(F.col("is_line"), line).otherwise(dashless(named(names)))

    return {
        "when": either(field("time"), TIMES),
        "visitor": F.when(F.col("is_line"), field("client")).otherwise(
            dashless(F.coalesce(named(VISITORS), named(CLIENTS)))
        ),
        "request": field("request"),
        "status_text": either(field("status"), STATUSES),
        "bytes_text": either(field("bytes"), SIZES),
        "referrer": either(field("referrer"), REFERRERS),
        "agent": either(field("agent"), AGENTS),
        "own_kind": F.lower(named(KINDS)),
        "own_page": F.when(~F.col("is_line"), named(PAGES)),
        "own_query": F.when(~F.col("is_line"), named(QUERIES)),
        "own_method": F.when(~F.col("is_line"), F.upper(named(METHODS))),
    }


def dashless(text: Column) -> Column:
    from pyspark.sql import functions as F

    return F.when(text != "-", text)


def event_time() -> Column:
    """When the event happened: its own words, else, for JSON without any, the record's timestamp."""
    from pyspark.sql import functions as F

    told = F.col("when")
    apache = F.try_to_timestamp(told, F.lit("dd/MMM/yyyy:HH:mm:ss Z"))
    iso = F.when(told.rlike(r"\A\d{4}-\d\d-\d\d(?:[T ]|\z)"), told.try_cast("timestamp"))
    number = F.when(told.rlike(r"\A\d{1,19}(?:\.\d+)?\z"), told.try_cast("double"))
    micros = (
        F.when(number < 1e11, number * 1e6).when(number < 1e14, number * 1e3).when(number < 1e17, number)
    ).otherwise(number / 1e3)
    own = F.coalesce(apache, iso, F.timestamp_micros(F.round(micros).cast("long")))
    return F.when(told.isNull() & ~F.col("is_line"), F.col("timestamp")).otherwise(own)


def request_ends() -> dict[str, Column]:
    from pyspark.sql import functions as F

    return {"first": F.substring_index("request", " ", 1), "last": F.substring_index("request", " ", -1)}


def method_and_target() -> dict[str, Column]:
    """`GET /a?b HTTP/1.1` as method and target; both null for a broken request."""
    from pyspark.sql import functions as F

    request, first, last = F.col("request"), F.col("first"), F.col("last")
    cut = F.when(last.startswith("HTTP/"), F.length(last) + 1).otherwise(0)
    target = F.trim(F.substr(request, F.length(first) + 2, F.length(request) - F.length(first) - 1 - cut))
    whole = first.rlike(r"\A[A-Z][A-Z-]{1,19}\z") & (F.length(request) > F.length(first) + 1 + cut)
    return {
        "method": F.when(F.col("is_line"), F.when(whole, first)).otherwise(F.col("own_method")),
        "target": F.nullif(F.when(F.col("is_line"), F.when(whole, target)).otherwise(F.col("own_page")), F.lit("")),
    }


def local_target() -> Column:
    """The target without scheme and host, and without the fragment, unless that is all there is."""
    from pyspark.sql import functions as F

    target = F.col("target")
    absolute = ~target.startswith("/") & target.contains("://")
    local = F.when(absolute, F.regexp_replace(target, r"\A[A-Za-z][A-Za-z0-9+.-]*+://[^/?#]*+", "")).otherwise(target)
    return F.when(target.startswith("#"), target).otherwise(F.substring_index(local, "#", 1))


def page() -> Column:
    from pyspark.sql import functions as F

    bare = F.substring_index("local", "?", 1)
    return F.when(F.col("local").isNotNull(), F.coalesce(F.nullif(bare, F.lit("")), F.lit("/")))


def query() -> Column:
    """What stands behind the question mark, else the query that a JSON event names."""
    from pyspark.sql import functions as F

    start = F.locate("?", F.col("local"))
    asked = F.when(start > 0, F.substr(F.col("local"), start + 1))
    return F.nullif(F.coalesce(asked, F.col("own_query")), F.lit(""))


def judged() -> dict[str, Column]:
    """Kind, status, bytes, bot and asset."""
    from pyspark.sql import functions as F

    bot = F.lit(False)
    for word in BOTS:
        bot = bot | F.col("words").contains(word)
    status = F.col("status_text").try_cast("int")
    size = F.col("bytes_text").try_cast("long")
    looks_for = F.col("query").rlike(SEARCH_QUERY) | F.col("page").rlike(SEARCH_PAGE)
    by_rule = F.when(F.coalesce(looks_for, F.lit(False)), F.lit("search"))
    return {
        "kind": F.coalesce(known_kind(F.col("own_kind")), by_rule, known_kind(F.lower("topic"))),
        "status": F.when(status.between(100, 999), status),
        "bytes": F.when(size >= 0, size),
        "bot": F.coalesce(bot, F.lit(False)),
        "asset": F.coalesce(F.col("page").rlike(ASSETS), F.lit(False)),
    }


def known_kind(name: Column) -> Column:
    """`page-views`, `pageview`, `shop.views` are `view`, and so on; any other name is a kind of its own."""
    from pyspark.sql import functions as F

    kind = name
    for word, plural in (("view", "views?"), ("search", "search(?:es)?"), ("click", "clicks?")):
        called = name.contains(word) & name.rlike(rf"(?:\A|[^a-z]|page){plural}\z")
        kind = F.when(called, word).otherwise(kind)
    return kind


def reason() -> Column:
    """Why a record is no event, null when it is one."""
    from pyspark.sql import functions as F

    said = F.coalesce(F.substring(F.col("when"), 1, 40), F.lit("none"))
    nobody = F.coalesce("visitor", "page", "own_kind").isNull()
    known_since = F.col("timestamp") > F.lit("1970-01-02").cast("timestamp")
    ahead = F.col("time") > F.col("timestamp") + F.expr(f"interval {AHEAD_MAX}")
    return (
        F.when(F.col("value").isNull(), "no value")
        .when(F.trim("raw") == "", "empty")
        .when(F.octet_length("value") > LINE_BYTES_MAX, f"longer than {LINE_BYTES_MAX} bytes")
        .when(F.col("is_json") & F.col("json").isNull(), "not valid JSON")
        .when(~F.col("is_json") & ~F.col("is_line"), "not a line of an access log")
        .when(~F.col("is_line") & nobody & F.col("line").isNotNull(), "a wrapped line that is not of an access log")
        .when(~F.col("is_line") & nobody, "JSON that names no visitor, page or kind")
        .when(F.col("time").isNull(), F.concat(F.lit("unreadable time: "), said))
        .when(F.col("time") < F.lit("1970-01-01").cast("timestamp"), "a time before 1970")
        .when(known_since & ahead, f"more than {AHEAD_MAX} after its record's timestamp")
    )
