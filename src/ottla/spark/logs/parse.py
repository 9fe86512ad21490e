"""Records of log topics to time, level, component and message: DataFrame -> DataFrame, in Spark's own expressions.

Knows: the source's columns, the formats. Does not know: tables, windows, the command line. Every record gives one row;
what fits no format has a null `format` and all of its text in `raw`.

One regular expression per format both tests a line's head and takes it apart (it is replaced by its fields), and the
fields lie in the same places for all formats, so that time and level are worked out once. No Python runs per row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ottla.spark.logs.formats import (
    ACCESS,
    COMPONENT_KEYS,
    FIELDS,
    GROUPS,
    HEAD_MAX,
    JSON,
    LEVEL_KEYS,
    LEVELS,
    LOGFMT,
    LOGFMT_REGEX,
    MATCHED,
    MESSAGE_KEYS,
    MONTHS,
    NAMES,
    PATTERNS,
    SEPARATOR,
    SEVERITIES,
    TIME_KEYS,
    Pattern,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SCHEMA = (
    "service string, file string, host string, time timestamp, level string, level_text string, component string, "
    "message string, raw string, raw_bytes binary, format string, topic string, partition int, offset bigint, "
    "timestamp timestamp"
)
"""What `parse` gives. `level_text`: the level as it was written. `raw_bytes`: only where `raw`, being text, could not
hold the record as it is. `timestamp`: the record's."""

COLUMNS = tuple(each.split()[0] for each in SCHEMA.split(", "))


def parse(records: DataFrame, *, zone: str = "UTC", hints: Mapping[str, str] | None = None) -> DataFrame:
    """Rows of SCHEMA, one for each record (with the source's columns; `headers` may be absent).

    `zone`: of times that name none. `hints`: the format of a service's lines, by name, tried before all others.
    Raises ValueError for a hint that is no format."""
    from pyspark.sql import functions as F

    given = hints or {}
    for service, name in given.items():
        if name not in NAMES:
            raise ValueError(f"{service}: {name!r} is no format; known are {', '.join(NAMES)}")
    rows = told(records)
    head = F.translate(F.substring("raw", 1, HEAD_MAX), SEPARATOR + MATCHED, "  ")
    rows = rows.withColumn("_head", head)
    rows = rows.withColumn("_cut", F.split(taken_apart(given), SEPARATOR, len(FIELDS) + 1))
    rows = rows.withColumn("_known", F.size("_cut") > len(FIELDS))
    rows = rows.withColumn("_keys", keys_of(F.col("_head"), F.col("_known")))
    return finished(rows, zone)


def told(records: DataFrame) -> DataFrame:
    """What the record and its headers say: service, file, host, raw and where it lies."""
    from pyspark.sql import functions as F

    with_headers = "headers" in records.columns
    headers = F.coalesce(F.col("headers"), F.array()) if with_headers else None

    def header(name: str) -> Column:
        if headers is None:
            return F.lit(None).cast("string")
        found = F.filter(headers, lambda each: each["key"] == name)
        text = F.make_valid_utf8(F.try_element_at(found, F.lit(1))["value"].cast("string"))
        return F.nullif(text, F.lit(""))

    text = F.coalesce(F.col("value"), F.lit(b"")).cast("string")
    return records.select(
        F.coalesce(header("service"), "topic").alias("service"),
        header("file").alias("file"),
        header("host").alias("host"),
        F.make_valid_utf8(text).alias("raw"),
        F.when(~F.is_valid_utf8(text), F.col("value")).alias("raw_bytes"),
        "topic",
        "partition",
        "offset",
        "timestamp",
    )


def taken_apart(hints: Mapping[str, str]) -> Column:
    """The head with its fields set apart where a format fits it, unchanged where none does."""
    from pyspark.sql import functions as F

    head = F.col("_head")
    found = F.when(F.lit(False), head)
    for service, name in hints.items():
        of_it = [each for each in (*PATTERNS, ACCESS) if each.name == name]
        tried = chained(head, of_it)
        found = found.when((F.col("service") == service) & tried.startswith(MATCHED), tried)
    for group, first in GROUPS.items():
        of_it = [each for each in PATTERNS if each.group == group]
        found = found.when(F.substring(head, 1, 1).rlike(first), chained(head, [*of_it, ACCESS]))
    return found.otherwise(F.when(head.contains('] "'), chained(head, [ACCESS])).otherwise(head))


def chained(head: Column, patterns: Sequence[Pattern]) -> Column:
    """One pattern after the other: what one has changed begins with a sign that no other fits."""
    from pyspark.sql import functions as F

    for each in patterns:
        head = F.regexp_replace(head, F.lit(each.regex), F.lit(each.template))
    return head


def keys_of(head: Column, known: Column) -> Column:
    """The keys and values of JSON and logfmt, each under its usual name; null for all other lines."""
    from pyspark.sql import functions as F

    as_json = F.from_json(F.col("raw"), "map<string,string>")
    is_json = ~known & F.substring(head, 1, 1).isin("{") & F.rtrim(F.col("raw")).endswith("}")
    is_logfmt = ~known & head.rlike(LOGFMT_REGEX)
    return F.when(is_json, picked(as_json)).when(is_logfmt, read_logfmt(head))


def picked(keys: Column) -> Column:
    from pyspark.sql import functions as F

    def first(names: Sequence[str]) -> Column:
        return F.coalesce(*(F.nullif(F.try_element_at(keys, F.lit(name)), F.lit("")) for name in names))

    known = F.struct(
        F.lit(JSON).alias("format"),
        first(TIME_KEYS).alias("time"),
        first(LEVEL_KEYS).alias("level"),
        first(COMPONENT_KEYS).alias("component"),
        first(MESSAGE_KEYS).alias("message"),
    )
    return F.when(keys.isNotNull() & (F.size(keys) > 0), known)


def read_logfmt(head: Column) -> Column:
    from pyspark.sql import functions as F

    def first(names: Sequence[str]) -> Column:
        wanted = "|".join(each.replace(".", r"\.") for each in names)
        value = F.regexp_extract(head, rf'(?:^|\s)(?:{wanted})=(?:"((?:[^"\\]|\\.){{0,1500}})|(\S*))', 1)
        bare = F.regexp_extract(head, rf"(?:^|\s)(?:{wanted})=([^\s\x22]\S*)", 1)
        return F.coalesce(F.nullif(value, F.lit("")), F.nullif(bare, F.lit("")))

    return F.struct(
        F.lit(LOGFMT).alias("format"),
        first(TIME_KEYS).alias("time"),
        first(LEVEL_KEYS).alias("level"),
        first(COMPONENT_KEYS).alias("component"),
        first(MESSAGE_KEYS).alias("message"),
    )


def finished(rows: DataFrame, zone: str) -> DataFrame:
    """The columns of SCHEMA out of the fields."""
    from pyspark.sql import functions as F

    known, keys = F.col("_known"), F.col("_keys")

    def field(name: str) -> Column:
        return F.nullif(F.trim(F.get(F.col("_cut"), F.lit(FIELDS.index(name)))), F.lit(""))

    follows = F.get(F.col("_cut"), F.lit(len(FIELDS)))
    whole = F.length("raw") <= HEAD_MAX
    at = F.length("_head") - F.length(follows) + 1
    message = F.when(whole & ~F.col("raw").rlike("[\x01\x02]"), follows)
    message = message.otherwise(F.substring(F.col("raw"), at, F.length("raw")))
    text = F.when(known, severity(field("level"))).otherwise(keys["level"])
    rows = rows.select(
        "*",
        F.when(known, moment(field, zone)).otherwise(any_moment(keys["time"], zone)).alias("time"),
        text.alias("_level"),
        F.when(known, field("component")).otherwise(keys["component"]).alias("component"),
        F.when(known, message)
        .otherwise(F.coalesce(keys["message"], F.when(keys.isNotNull(), F.col("raw"))))
        .alias("message"),
        F.when(known, F.substring(field("format"), 2, 100)).otherwise(keys["format"]).alias("format"),
    )
    rows = rows.withColumn("level", normal_level(F.col("_level")))
    rows = rows.withColumn("level_text", F.when(~F.col("_level").startswith("http"), F.col("_level")))
    return rows.select(*COLUMNS)


def severity(text: Column) -> Column:
    """The name of a syslog priority (`pri34`); any other text as it is."""
    from pyspark.sql import functions as F

    number = F.substring(text, 4, 3).try_cast("int")
    names = F.array(*map(F.lit, SEVERITIES))
    return F.when(text.startswith("pri"), F.get(names, F.pmod(number, F.lit(8)))).otherwise(text)


def normal_level(text: Column) -> Column:
    """TRACE, DEBUG, INFO, WARN, ERROR or FATAL; null for what is none. Of an access log's line the status says it."""
    from pyspark.sql import functions as F

    lower = F.lower(text)
    level = F.when(lower.startswith("http5"), "ERROR").when(lower.startswith("http4"), "WARN")
    level = level.when(lower.startswith("http"), "INFO")
    for name, called in LEVELS.items():
        level = level.when(lower.isin(*called), name)
    return level


def moment(field: Callable[[str], Column], zone: str) -> Column:
    """The time of the fields; null where they are none. A year that is missing is the record's, or the one before."""
    from pyspark.sql import functions as F

    month = field("month")
    named = (F.instr(F.lit(MONTHS), month) + 2) / 3
    number = F.when(month.rlike("^[0-9]"), month.try_cast("int")).otherwise(named.cast("int"))
    day = field("day").try_cast("int")
    until = F.col("timestamp") + F.expr("INTERVAL 1 DAY")
    this_year = number * 100 + day <= F.month(until) * 100 + F.dayofmonth(until)
    year = F.coalesce(field("year").try_cast("int"), F.year(until) - F.when(this_year, 0).otherwise(1))
    clock = F.lpad(field("clock"), 8, "0")
    fraction = F.coalesce(F.concat(F.lit("."), F.substring(field("fraction"), 1, 6)), F.lit(""))
    date = F.format_string("%04d-%02d-%02d", year, number, day)
    text = F.concat(date, F.lit(" "), clock, fraction, zoned(field("zone"), zone))
    return F.when(day.isNotNull(), text.try_cast("timestamp"))


def zoned(found: Column, zone: str) -> Column:
    """A time zone as Spark reads it: +0200 as +02:00, none as the zone that was given."""
    from pyspark.sql import functions as F

    return F.coalesce(F.regexp_replace(found, r"^([+-]\d\d):?(\d\d)$", "$1:$2"), F.lit(f" {zone}"))


def any_moment(text: Column, zone: str) -> Column:
    """The time of a JSON or logfmt value: ISO, or seconds, milli-, micro- or nanoseconds since 1970."""
    from pyspark.sql import functions as F

    number = F.when(text.rlike(r"^\d{1,19}(\.\d{1,20})?(E\d{1,2})?$"), text.try_cast("decimal(30,9)"))
    number = F.when(number >= 100_000_000, number)
    scale = F.when(number < 10**11, 1).when(number < 10**14, 10**3).when(number < 10**17, 10**6).otherwise(10**9)
    since = F.timestamp_micros((number / scale * 1_000_000).try_cast("bigint"))
    iso = r"^(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,6})\d*)? ?(Z|[+-]\d\d:?\d\d|)$"
    date = F.regexp_replace(text, iso, "$1-$2-$3 $4")
    fraction = F.coalesce(F.concat(F.lit("."), F.nullif(F.regexp_extract(text, iso, 5), F.lit(""))), F.lit(""))
    built = F.concat(date, fraction, zoned(F.nullif(F.regexp_extract(text, iso, 6), F.lit("")), zone))
    named = F.when(text.rlike(iso), built.try_cast("timestamp"))
    return F.coalesce(since, named)
