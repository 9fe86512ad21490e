"""Reports of pipelines: what is a report, when a pipeline is silent, and a reporter that is never in the way."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from ottla.cli import reporting as options
from ottla.client import Client, ClientError
from ottla.client.reporting import CONFIGS, EVERY_S, Reporter, about
from ottla.client.reports import (
    FAILED,
    PIPELINES_MAX,
    POINTS_MAX,
    RUNNING,
    SILENT,
    STOPPED,
    TOPIC,
    InvalidReportError,
    Reports,
    ReportsReader,
    report_of,
)
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.records import Record, build_batch
from ottla.testing import Acl, EmbeddedBroker
from tests.harness.reports import newest, report, write_reports
from tests.harness.waiting import soon

FIGURES = {"rows": 12, "in_rate": 2.5, "lag": 3, "batch_ms": 40}


# ---- format --------------------------------------------------------------------------------------------------------


def test_a_report_is_read_as_it_was_written() -> None:
    whole = report(
        host="web1",
        pid=7,
        ottla="1.0",
        reads=("clicks",),
        writes=("/lake",),
        figures=FIGURES,
        state=FAILED,
        error="It's \u202egone",
    )
    assert report_of(whole.name.encode(), whole.encoded(), whole.at_ms) == whole
    least = report()
    assert json.loads(least.encoded()) == {
        "version": 1,
        "kind": "archive",
        "state": "running",
        "started_ms": 1_000,
        "every_ms": 5_000,
    }
    assert report_of(least.name.encode(), least.encoded(), least.at_ms) == least
    later = {**json.loads(least.encoded()), "added_later": [1]}
    assert report_of(least.name.encode(), json.dumps(later).encode(), least.at_ms) == least


@pytest.mark.parametrize(
    "spoilt",
    [
        {"version": 2},
        {"state": "silent"},
        {"state": 1},
        {"kind": None},
        {"kind": ""},
        {"started_ms": -1},
        {"every_ms": "5"},
        {"pid": True},
        {"reads": "clicks"},
        {"writes": [1]},
        {"figures": [1]},
        {"figures": {"rows": "many"}},
        {"figures": {"rows": float("nan")}},
        {"figures": {"rows": 10**40}},
    ],
    ids=str,
)
def test_what_is_no_report(spoilt: dict[str, Any]) -> None:
    value = json.dumps({**json.loads(report().encoded()), **spoilt}).encode()
    with pytest.raises(InvalidReportError):
        report_of(b"name", value, 0)


def test_bytes_that_are_no_report() -> None:
    good = report().encoded()
    too_large = good[:-1] + b',"figures":{"lag":1e999}}'
    for value in (b"", b"[]", b"\xff", b"[" * 60_000, b" " * 100_000 + good, too_large):
        with pytest.raises(InvalidReportError):
            report_of(b"name", value, 0)
    for key in (None, b"", b"n" * 2_000):
        with pytest.raises(InvalidReportError):
            report_of(key, good, 0)
    assert report_of(b"\xff", good, 0).name == "\ufffd"
    half = good[:-1] + b',"error":"half \\ud800","reads":["\\udc80"],"figures":{"\\udc80":1}}'
    read = report_of(b"name", half, 0)
    assert (read.error, read.reads, read.figures) == ("half ?", ("?",), {"?": 1})
    odd = report(reads=("\udc80.log",))
    assert report_of(odd.name.encode(), odd.encoded(), 0).reads == ("?.log",)


def test_a_running_pipeline_is_silent_when_four_reports_are_missing() -> None:
    assert report(at_ms=10_000).standing(30_000) == RUNNING
    assert report(at_ms=10_000).standing(30_001) == SILENT
    for state in (STOPPED, FAILED):
        assert report(state=state).standing(10**12) == state


def test_reports_are_kept_within_bounds() -> None:
    def record(name: str, at_ms: int, **fields: Any) -> Record:
        return Record(0, at_ms, name.encode(), report(name, **fields).encoded())

    kept = Reports()
    for at_ms in range(POINTS_MAX + 20):
        kept.take(record("first", at_ms, figures={"lag": at_ms}))
    assert [each.values[2] for each in kept.recent["first"]] == list(range(20, POINTS_MAX + 20))
    for number in range(PIPELINES_MAX):
        kept.take(record(f"p{number}", 1_000 + number))
    assert len(kept.newest) == len(kept.recent) == PIPELINES_MAX
    assert "first" not in kept.newest, "the one with the oldest report goes"
    kept.take(Record(0, 0, b"p0", None))
    assert "p0" not in kept.newest
    kept.take(Record(0, 0, b"p1", b"nonsense"))
    assert (kept.invalid, kept.newest["p1"].at_ms) == (1, 1_001)


def test_commands_and_readers_name_the_same_topic() -> None:
    assert options.TOPIC == TOPIC


# ---- reading -------------------------------------------------------------------------------------------------------


def test_each_report_is_read_once(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(partitions=2)
    reader = ReportsReader(topic)
    with Client(broker.bootstrap_servers) as client:
        write_reports(client, report("a"), report("b"), topic=topic)
        client.produce_raw(topic, 1, bytes(build_batch([Record(-1, 0, b"c", report("c").encoded())])))
        assert not reader.read(client, seconds_max=0)
        assert reader.newest().keys() == {"a", "b"}, "it asks once, whatever the limits: the answer grants access"
        assert reader.read(client)
        assert reader.read(client)
        write_reports(client, report("a", state=STOPPED), topic=topic)
        assert reader.read(client)
        assert {name: each.state for name, each in reader.newest().items()} == {
            "a": STOPPED,
            "b": RUNNING,
            "c": RUNNING,
        }
        assert len(reader.recent("a")) == 2
        assert not reader.is_full
        broker.delete_topic(topic)
        broker.create_topic(topic)
        assert reader.read(client)
        assert reader.newest() == {}
        broker.delete_topic(topic)
        with pytest.raises(ClientError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            reader.read(client)


# ---- reporting -----------------------------------------------------------------------------------------------------


def reporter(broker: EmbeddedBroker, topic: str, said: list[str], name: str = "made", **more: Any) -> Reporter:
    described = about("archive", "/lake", name=name, reads=("clicks",))
    return Reporter(lambda: Client(broker.bootstrap_servers, timeout_s=5), topic, described, say=said.append, **more)


def test_the_first_report_creates_the_topic_and_the_last_says_how_it_ended(broker: EmbeddedBroker) -> None:
    said: list[str] = []
    topic = "reports-made"
    with reporter(broker, topic, said, every_s=0.01) as made:
        rows = iter(range(0, 10_000, 10))
        made.measures.append(lambda: {"rows": next(rows)})
        made.measures.append(lambda: {"lag": 5})
        soon(lambda: topic in broker_topics(broker), said)
        soon(lambda: "in_rate" in (dict(newest(broker.bootstrap_servers, topic)["made"].figures)), said)
        assert newest(broker.bootstrap_servers, topic)["made"].state == RUNNING
        made.summary = "All is archived."
    last = newest(broker.bootstrap_servers, topic)["made"]
    assert (last.state, last.summary, last.error) == (STOPPED, "All is archived.", "")
    assert (last.kind, last.reads, last.figures["lag"], last.every_ms) == ("archive", ("clicks",), 5, 10)
    assert abs(last.at_ms - time.time() * 1000) < 600_000
    assert last.figures["in_rate"] > 0
    with Client(broker.bootstrap_servers) as client:
        asked = DescribeConfigsRequest([DescribeConfigsResource(2, topic, list(CONFIGS))])
        (configs,) = client.send(asked).results
    assert {each.name: each.value for each in configs.configs} == CONFIGS
    assert said == []


def broker_topics(broker: EmbeddedBroker) -> set[str]:
    with Client(broker.bootstrap_servers) as client:
        return {each.name for each in client.topics()}


def test_a_failure_and_an_interrupt(broker: EmbeddedBroker) -> None:
    topic, said = broker.create_topic(), list[str]()
    with pytest.raises(ValueError, match="The disk is full"), reporter(broker, topic, said, "failed"):
        raise ValueError("The disk is full.")
    with pytest.raises(KeyboardInterrupt), reporter(broker, topic, said, "interrupted"):
        raise KeyboardInterrupt
    found = newest(broker.bootstrap_servers, topic)
    assert (found["failed"].state, found["failed"].error) == (FAILED, "The disk is full.")
    assert (found["interrupted"].state, found["interrupted"].error) == (STOPPED, "")
    assert said == []


def test_a_reporter_that_cannot_report_says_so_once_and_does_not_hold_the_end() -> None:
    tried, said = threading.Semaphore(0), list[str]()

    def connect() -> Client:
        tried.release()
        raise ConnectionError("nobody listens")

    with Reporter(connect, "reports", about("archive", "/lake"), say=said.append, every_s=0.001):
        for _ in range(3):
            assert tried.acquire(timeout=30)
    assert said == ["Reports cannot be written to the topic reports: nobody listens"]


def test_a_measure_that_fails_stops_the_reports_and_nothing_else() -> None:
    said: list[str] = []
    failed = threading.Event()

    def measure() -> dict[str, float]:
        failed.set()
        raise RuntimeError("dictionary changed size during iteration")

    made = Reporter(lambda: pytest.fail("not reached"), "reports", about("a", "b"), say=said.append, every_s=60)
    made.measures.append(measure)
    with made:
        assert failed.wait(30)
    assert len(said) == 1


def test_without_a_topic_nothing_is_written() -> None:
    with Reporter(lambda: pytest.fail("connected"), "", about("archive", "/lake"), say=pytest.fail):
        assert "reports" not in [each.name for each in threading.enumerate()]


def test_rights_decide_who_reports() -> None:
    acls = [Acl("ada", "write", topic="theirs")]
    with EmbeddedBroker(sasl="plain", users=["ada"], acls=acls) as broker:
        broker.create_topic("theirs")
        broker.create_topic("others")
        login, said = broker._client("ada").login, list[str]()
        for topic in ("theirs", "others", "missing"):
            described = about("archive", "/lake", name=topic)
            with Reporter(
                lambda: Client(broker.bootstrap_servers, timeout_s=5, login=login), topic, described, say=said.append
            ):
                pass
        assert len(said) == 2
        assert "the topic others" in said[0]
        assert "the topic missing" in said[1]
        assert all("AUTHORIZATION_FAILED" in each for each in said)
        reader = ReportsReader("theirs")
        with Client(broker.bootstrap_servers, login=broker._client(None).login) as admin:
            assert reader.read(admin)
            assert "missing" not in {each.name for each in admin.topics()}
        assert reader.newest()["theirs"].state == STOPPED


def test_the_name_of_a_pipeline_stays_over_restarts() -> None:
    first, second = (about("ship", "logs") for _ in range(2))
    assert first.name == second.name == f"ship:logs@{first.host}"
    assert about("ship", "logs", name="mine").name == "mine"
    assert len(about("ship", "x" * 9_000).name) <= 256
    assert EVERY_S == 5
