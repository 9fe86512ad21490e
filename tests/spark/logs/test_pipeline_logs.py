"""Log lines through the pipeline: formats from a table, made-up services, and the real logs line for line."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from ottla.ship.runner import Shipping, ship
from ottla.spark.codec.decode import HEADERS_TYPE
from ottla.spark.lake.delta_table import DeltaTable
from ottla.spark.logs import windows
from ottla.spark.logs.batches import LineSettings, Tables, clear_left_over
from ottla.spark.logs.find import SearchCriteria, find
from ottla.spark.logs.formats import LEVELS
from ottla.spark.logs.line import LineReader
from ottla.spark.logs.parse import lines_of, parse
from ottla.spark.logs.phrases import top_phrases
from ottla.spark.logs.run import LogsResult, run
from ottla.spark.platform.failures import PipelineFailedError
from ottla.spark.running.run import RunOptions
from ottla.testing import EmbeddedBroker
from tests.harness.spark.logs.log_lines import CASES, RECORDED
from tests.harness.topics import every_record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCE = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,"
    " headers array<struct<key: string, value: binary>>"
)
REAL = ("apache", "hadoop", "hdfs", "linux", "openssh", "spark", "zookeeper")
FORMATS = {"apache": "apache-error", "linux": "rfc3164", "openssh": "rfc3164"}


def records(values: Sequence[bytes | None], headers: Sequence[Any]) -> pa.RecordBatch:
    """As the source gives them."""
    rows = len(values)
    columns = {
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["t"] * rows),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows)),
        "timestamp": pa.array([RECORDED] * rows, pa.timestamp("us", tz="UTC")),
        "headers": pa.array(headers, HEADERS_TYPE),
    }
    return pa.RecordBatch.from_pydict(columns)


def test_what_killed_runs_left_is_removed_in_time(tmp_path: Path) -> None:
    for name, hours in (("old", 25), ("young", 23)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.parquet").write_bytes(b"x")
        then = time.time() - hours * 3600
        os.utime(tmp_path / name, (then, then))
    clear_left_over(tmp_path)
    clear_left_over(tmp_path / "nowhere")
    assert [each.name for each in tmp_path.iterdir()] == ["young"]


def test_formats() -> None:
    """Every format, and what is none."""
    lines = [case.line for case in CASES]
    odd: list[bytes | None] = [
        None,
        b"",
        b"\0\xff\xfe",
        b"\x01\x02 separators",
        b"2023-01-02 10:00:00 ERROR in \x01\x02 a message \x01",
        b"{" * 5_000,
        b"[" * 100_000,
        b"x" * 1_000_000,
        b"2023-01-02 10:00:00 ERROR " + b"y" * 1_000_000,
        "2023-01-02 10:00:00 ERROR größer 日本 ".encode() + b"\xff",
        b"level=" * 3_000,
        b"<999>1 " + b"[a]" * 1_000,
        ("ü" * 3_000).encode(),
        b"2023-01-02 10:00:00 ERROR " + ("ü\n\tat x" * 1_000).encode(),
    ]
    values = [line.encode() for line in lines] + odd
    headers = [("service", b"svc"), ("host", b"h"), ("service", b"second"), ("file", b"/f")]
    given = records(values, [headers if number % 2 else None for number in range(len(values))])
    found = lines_of(LineReader(), given).to_pylist()
    assert [row["offset"] for row in found] == list(range(len(values)))
    for case, row in zip(CASES, found, strict=False):
        moment = None if row["time"] is None else row["time"].astimezone(UTC).replace(tzinfo=None).isoformat()
        seen = (row["format"], moment, row["level"], row["level_text"], row["component"], row["message"])
        assert seen == case.expected, case.line
    assert {(row["service"], row["host"], row["file"]) for row in found} == {("t", None, None), ("svc", "h", "/f")}
    for value, row in zip(values, found, strict=True):
        kept = row["raw"].encode() if row["raw_bytes"] is None else bytes(row["raw_bytes"])
        assert kept == (value or b"")
    rest = found[len(CASES) :]
    assert [row["format"] for row in rest] == [None] * 4 + ["iso"] + [None] * 3 + ["iso"] * 2 + [None] * 3 + ["iso"]
    assert rest[4]["message"] == "in \x01\x02 a message \x01"
    assert rest[8]["message"] == "y" * 1_000_000
    assert rest[13]["message"] == "ü\n\tat x" * 1_000


LIKELY = [
    line.encode() for line in (*(case.line for case in CASES), " ", "{", "}", "[", '"', "'a':NaN", "\\ud800", "\n")
]


@given(st.lists(st.one_of(st.sampled_from(LIKELY), st.binary(max_size=8)), max_size=6).map(b"".join))
@settings(max_examples=200)
def test_whatever_a_line_is_it_is_kept(value: bytes) -> None:
    """Nothing raises, no byte is lost, a time can be shown, and the message is of the line."""
    (found,) = lines_of(LineReader(), records([value], [[("service", value), ("file", None)]])).to_pylist()
    assert (found["raw"].encode() if found["raw_bytes"] is None else found["raw_bytes"]) == value
    assert found["service"] == (value.decode("utf-8", "replace") or "t")
    assert found["time"] is None or found["format"] is not None
    assert found["level"] is None or found["level"] in LEVELS
    if found["format"] not in (None, "json", "logfmt"):
        assert found["raw"].endswith(found["message"])


@pytest.mark.slow("tests/spark/logs/test_pipeline_logs.py::test_whatever_a_line_is_it_is_kept")
def test_hints_and_zone(spark: SparkSession) -> None:
    line = b"2023-01-02 10:00:00 ERROR [x] a.b: c"
    rows = [
        (None, bytearray(line), each, 0, 0, RECORDED, 0, [{"key": "host", "value": bytearray(b"h")}])
        for each in ("one", "two")
    ]
    frame = spark.createDataFrame(rows, SOURCE).coalesce(1)
    found = {row["service"]: row for row in parse(frame, zone="Europe/Berlin", hints={"two": "iso"}).collect()}
    assert (found["one"]["format"], found["two"]["format"]) == ("hadoop", "iso")
    assert found["one"]["time"].astimezone(UTC).hour == 9
    assert (found["two"]["message"], found["two"]["host"]) == ("[x] a.b: c", "h")
    with pytest.raises(ValueError, match="no format"):
        parse(frame, hints={"two": "nonsense"})


def options(broker: EmbeddedBroker, checkpoint: Path | None = None) -> RunOptions:
    return RunOptions(broker.bootstrap_servers, None if checkpoint is None else str(checkpoint), once=True, quiet=True)


def lines_in(table: Path) -> list[dict[str, Any]]:
    files = Tables.make(str(table)).lines.files()
    return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]


def rates_in(table: Path) -> dict[tuple[str, datetime | None, str | None, bool], int]:
    found: Counter[tuple[str, datetime | None, str | None, bool]] = Counter()
    for file in Tables.make(str(table)).windows.files():
        for row in pq.ParquetFile(file).read().to_pylist():
            found[row["service"], row["start"], row["level"], row["late"]] += row["rows"]
    return dict(found)


def send(broker: EmbeddedBroker, topic: str, service: str, values: Iterable[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, headers=[("service", service.encode())], partition=0)
    assert producer.flush(30) == 0


def at(minute: int, level: str = "INFO", second: int = 0) -> bytes:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC) + timedelta(minutes=minute, seconds=second)
    return f"{moment:%Y-%m-%d %H:%M:%S},000 {level} [main] a.B: x".encode()


@pytest.mark.slow("tests/spark/writer/test_sink_transactions.py::test_a_crash_at_any_step_shows_all_or_nothing")
def test_late_lines_kills_and_lost_checkpoints(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is late is kept and counted; a kill between two commits, or a new checkpoint, adds nothing twice."""
    broker.create_topic(topic)
    out = broker.create_topic()
    table, minutely = tmp_path / "table", LineSettings(window_s=60, delay_s=120)

    def once(checkpoint: str = "c", **more: Any) -> LogsResult:
        return run(
            options(broker, tmp_path / checkpoint),
            [topic],
            str(table),
            settings=minutely,
            output_topic=out,
            session=spark,
            **more,
        )

    send(broker, topic, "a", [at(0), at(0, "ERROR"), at(10, "WARN"), b"nothing known", at(5)])
    first = once()
    assert (first.counts.read, first.counts.late, dict(first.counts.formats)) == (5, 0, {"hadoop": 4, "unparsed": 1})
    send(broker, topic, "a", [at(0, "ERROR"), at(8), at(9), at(3)])  # latest 12:10, less 2 minutes: 12:08
    send(broker, topic, "b", [at(0), at(60 * 24 * 4_000)])  # its own watermark; a wrong clock moves none
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "add_rows", killed)
        with pytest.raises(PipelineFailedError, match="killed"):
            once()
    assert len(lines_in(table)) == 11
    send(broker, topic, "b", [at(0), b"", b"[12"])
    last = once("another")
    assert str(last).startswith("14 lines read: 1 parsed (hadoop 1), 2 unparsed, 11 in the table already; 0 late")
    lines = lines_in(table)
    assert sorted(row["offset"] for row in lines) == list(range(14))
    assert sorted(row["offset"] for row in lines if row["late"]) == [5, 8]
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rates = rates_in(table)
    assert sum(rates.values()) == 14
    assert rates["a", start, "ERROR", False] == 1
    assert rates["a", start, "ERROR", True] == 1
    assert rates["b", start, "INFO", False] == 2
    published = told(broker, out)
    assert published[f"a {start:%Y-%m-%dT%H:%M:%SZ}"] == {
        "service": "a", "start": "2026-01-31T12:00:00.000Z", "end": "2026-01-31T12:01:00.000Z", "rows": 3, "errors": 2,
        "error_rate": 2 / 3, "late": 1, "levels": {"INFO": 1, "ERROR": 2},
    }  # fmt: skip
    check_against_frames(spark, Tables.make(str(table)), published)

    send(broker, topic, "b", [at(1), at(2)])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 15)]).values():
        future.result()
    with pytest.raises(PipelineFailedError, match=r"Offsets 14 to 15 .* are gone.*; --allow-loss continues without it"):
        once("another")
    assert once("another", allow_loss=True).counts.read == 1


def check_against_frames(spark: SparkSession, tables: Tables, published: dict[str, Any]) -> None:
    """What tasks and driver count is what Spark counts, and what is said most is the same in this process and by
    Spark."""
    rates = windows.rates(windows.counts(spark.read.parquet(*tables.lines.files()), 60))
    start = F.date_format("start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    names = ("rows", "errors", "error_rate", "late", "levels")
    found = {
        f"{row.service} {row.key}": [row[name] for name in names]
        for row in rates.select(start.alias("key"), "*").collect()
    }
    assert found == {key: [each[name] for name in names] for key, each in published.items()}
    files = list(tables.lines.files())
    assert top_phrases(spark, files, rows=1 << 30) == top_phrases(spark, files, rows=0)


def killed(*_: object) -> None:
    raise PipelineFailedError("killed")


def told(broker: EmbeddedBroker, topic: str) -> dict[str, Any]:
    """The last value of each key."""
    records = every_record(broker.bootstrap_servers, topic)
    return {(each.key() or b"").decode(): json.loads(each.value() or b"") for each in records}


def level_of(service: str, line: str) -> str | None:
    """The level of a line of the real logs, by hand."""
    words = line.split()
    place = {"hadoop": 2, "hdfs": 3, "spark": 2, "zookeeper": 3}.get(service)
    if service == "apache":
        return {"[error]": "ERROR", "[notice]": "INFO"}[words[5]]
    return None if place is None else words[place]


def component_of(service: str, line: str) -> str | None:
    if service == "apache":
        return None
    if service in {"linux", "openssh"}:
        return line.split(" ", 4 if line[4] != " " else 5)[-1].split(": ")[0].split("[")[0].strip()
    if service == "zookeeper":
        return line.split("@")[0].split(":")[-1].split("]")[-1].strip("[/") if "@" in line else None
    return line.split("] ")[1].split(": ")[0] if service == "hadoop" else line.split(": ")[0].split()[-1]


@pytest.mark.slow("tests/spark/logs/test_pipeline_logs.py::test_whatever_a_line_is_it_is_kept")
def test_real_logs_line_for_line(
    spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path, real_logs: Path
) -> None:
    broker.create_topic(topic, partitions=3)
    shipping = Shipping(
        [str(real_logs / "logs" / "*.log")],
        topic,
        {"bootstrap.servers": broker.bootstrap_servers},
        tmp_path / "state",
        "here",
        once=True,
    )
    assert ship(shipping, say=lambda text: None, stopped=lambda: False).lines == 14_000
    table, report = tmp_path / "table", tmp_path / "report.html"
    outcome = run(options(broker), [topic], str(table), report=str(report), batch_rows=9_000, session=spark)
    assert outcome.counts.read == 14_000
    assert outcome.counts.formats == {
        "rfc3164": 4_000,
        **{FORMATS.get(each, each): 2_000 for each in REAL if each not in {"linux", "openssh"}},
    }

    plain: dict[str, list[str]] = {}
    for service in REAL:
        text = (real_logs / "logs" / f"{service}.log").read_bytes().decode()
        plain[service] = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(lines_in(table), key=lambda row: (row["partition"], row["offset"])):
        found[row["service"]].append(row)
    for service in REAL:
        assert [row["raw"] for row in found[service]] == plain[service]
        assert [row["level"] for row in found[service]] == [level_of(service, line) for line in plain[service]]
        components = [row["component"] for row in found[service]]
        assert components == [component_of(service, line) for line in plain[service]], service
        assert all(row["time"] is not None and row["message"] is not None for row in found[service])
        assert all(row["raw"].endswith(row["message"]) for row in found[service])
    levels: Counter[tuple[str, str | None]] = Counter()
    for (service, _, level, _), rows in rates_in(table).items():
        levels[service, level] += rows
    assert levels == Counter((service, level_of(service, line)) for service in REAL for line in plain[service])
    check_find(table, plain)
    page = report.read_text()
    assert all(each in page for each in ("14,000", "zookeeper", "1,318", "0 (0.0%)"))


def check_find(table: Path, plain: dict[str, list[str]]) -> None:
    began = time.perf_counter()
    hits = find(str(table), SearchCriteria("EXCEPTION", limit=10))
    assert hits.found == sum("exception" in line.lower() for lines in plain.values() for line in lines)
    assert (len(hits.lines), hits.read) == (10, 14_000)
    hits = find(str(table), SearchCriteria("authentication failure", services=("linux",)))
    assert hits.found == sum("authentication failure" in line for line in plain["linux"])
    assert hits.files[0] < hits.files[1]
    hits = find(str(table), SearchCriteria(r"blk_-?\d+", regex=True, levels=("WARN",)))
    warned = [line for service, lines in plain.items() for line in lines if level_of(service, line) == "WARN"]
    assert hits.found == sum(re.search(r"blk_-?\d+", line) is not None for line in warned) > 0
    since = datetime(2015, 10, 18, 18, 5, tzinfo=UTC)
    hits = find(str(table), SearchCriteria("", since=since, until=since + timedelta(minutes=1)))
    assert hits.found == sum(line.startswith("2015-10-18 18:05:") for line in plain["hadoop"])
    assert hits.files[0] < hits.files[1]
    assert [line["time"] for line in hits.lines] == sorted(line["time"] for line in hits.lines)
    with pytest.raises(PipelineFailedError, match="regular expression"):
        find(str(table), SearchCriteria("(", regex=True))
    assert find(str(table), SearchCriteria("", levels=("warning",))).found == len(warned)
    with pytest.raises(PipelineFailedError, match="'nonsense' is no level: there are TRACE, DEBUG, "):
        find(str(table), SearchCriteria("", levels=("nonsense",)))
    with pytest.raises(PipelineFailedError, match="no table"):
        find(str(table / "nowhere"), SearchCriteria("x"))
    assert time.perf_counter() > began
