"""Pipelines by their reports: what they do, how they ended, and since when they are silent."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from ottla.client import BrokerError, Client
from ottla.client.reports import FAILED, SILENT, STOPPED, Point
from ottla.console.pages.pipeline import lines_of
from ottla.console.pages.pipelines import row_of, rows_of, why_of
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Opened
from tests.harness.console.golden import check_golden
from tests.harness.console.over_http import User, user
from tests.harness.reports import report, write_reports

LAKE, SHIP, TRACKER, GONE = "archive:/lake@web1", "ship:logs@web2", "kmq-tracker:jobs@web1", "logs:/logs@web3"
HOUR_MS = 3_600_000


# ---- views ---------------------------------------------------------------------------------------------------------


def test_pipelines_that_need_attention_come_first() -> None:
    found = rows_of(
        [
            report("a", at_ms=100_000),
            report("c", at_ms=0),
            report("b", state=FAILED, error="The disk is full."),
            report("d", state=STOPPED, at_ms=0, figures={"in_rate": 5}),
        ],
        100_000,
    )
    assert [(each.name, each.state, each.is_bad) for each in found] == [
        ("b", "failed", True),
        ("c", "silent", True),
        ("a", "running", False),
        ("d", "stopped", False),
    ]
    assert found[3].in_rate is None, "it reads nothing now"
    row = row_of(report(figures={"lag": 7, "batch_ms": 3.5}), 0)
    assert (row.lag, row.batch_ms, row.in_rate, row.late_rows) == (7, 3.5, None, None)


def test_a_line_for_each_figure_that_is_reported() -> None:
    lines = lines_of([Point(1, (None, None, 3, None, 0)), Point(2, (None, None, None, None, 1))])
    assert [(each.label, each.values) for each in lines] == [("Lag in records", (3, None)), ("Late rows", (0, 1))]
    assert lines_of([]) == ()


def test_why_nothing_is_shown() -> None:
    def why(code: ErrorCode) -> str:
        return why_of("r\u202e", BrokerError(code, "topic r"))

    assert why(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == "No pipeline reports yet: there is no topic r\\u202e."
    assert why(ErrorCode.TOPIC_AUTHORIZATION_FAILED).startswith("You may not read the topic r\\u202e")
    assert "NOT_LEADER_OR_FOLLOWER" in why(ErrorCode.NOT_LEADER_OR_FOLLOWER)


# ---- pages ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with the reports of four pipelines, the last of which is silent, and a record that is no report."""
    with EmbeddedBroker() as broker, Client(broker.bootstrap_servers) as client:
        broker.create_topic("logs")
        client.produce_raw("logs", 0, bytes(build_batch([Record(each, 0, None, b"line") for each in range(4)])))
        for lag in (40, 20, 0):
            figures = {"rows": 1_000 - lag, "in_rate": 12.5, "processed_rate": 80, "lag": lag, "batch_ms": 420}
            known = {"host": "web1", "pid": 4242, "ottla": "1.0", "reads": ("clicks",), "writes": ("/lake",)}
            lake = report(LAKE, every_ms=HOUR_MS, figures={**figures, "late_rows": 2}, **known)
            write_reports(client, lake)
        write_reports(
            client,
            report(TRACKER, kind="kmq-tracker", state=FAILED, host="web1", error="There is no topic jobs."),
            report(SHIP, kind="ship", state=STOPPED, host="web2", summary="3 records acknowledged."),
            report(
                GONE,
                kind="logs",
                every_ms=0,
                host="web3",
                pid=17,
                figures={"batches": 3, "batch_ms": 420, "rows": 1, "lag": 2},
                offsets={"logs": {"0": 1}, "lost": {"0": 5}},
                command="cd /srv && ottla pipeline logs /logs",
            ),
        )
        client.produce_raw("ottla.reports", 0, bytes(build_batch([Record(0, 0, b"k", b"nonsense")])))
        yield broker


def test_pipelines_with_their_states_and_figures(visitor: User) -> None:
    view = visitor.json("/pipelines")
    assert [(each["name"], each["state"]) for each in view["pipelines"]] == [
        (TRACKER, FAILED),
        (GONE, SILENT),
        (LAKE, "running"),
        (SHIP, STOPPED),
    ]
    assert (view["pipelines"][2]["lag"], view["pipelines"][2]["in_rate"]) == (0, 12.5)
    assert view["unseen"] == ["Records of ottla.reports that are no reports of this version of Ottla: 1."]
    assert view["command"] == "ottla pipeline list"
    assert [each["name"] for each in visitor.json("/pipelines", q="SHIP")["pipelines"]] == [SHIP]
    assert "No pipeline matches." in visitor.get("/pipelines", q="nowhere")


def test_a_pipeline_with_its_recent_reports(visitor: User) -> None:
    view = visitor.json("/pipeline", name=LAKE)
    assert [each["values"] for each in view["lines"] if each["label"] == "Lag in records"] == [[40, 20, 0]]
    assert [each["values"][2] for each in view["points"]] == [0, 20, 40]
    assert dict(view["figures"])["rows"] == 1_000
    assert view["command"] == f"ottla pipeline describe {LAKE}"
    assert "There is no topic jobs." in visitor.get("/pipeline", name=TRACKER)
    assert "3 records acknowledged." in visitor.get("/pipeline", name=SHIP)
    assert "There is no pipeline nowhere." in visitor.get("/pipeline", 404, name="nowhere")


def test_a_silent_pipeline_shows_where_it_stopped_and_how_to_start_it(visitor: User) -> None:
    view = visitor.json("/pipeline", name=GONE)
    silence = view["silence"]
    assert silence["for_ms"] >= 0
    assert silence["said"] == "batch 3, duration of a batch 420 ms, records read 1, lag 2"
    assert silence["behind"] == [{"topic": "logs", "partition": 0, "offset": 1, "end": 4, "lag": 3}]
    assert (silence["lag"], silence["command"]) == (3, "cd /srv && ottla pipeline logs /logs")
    assert "Lag in lost: the topic does not exist, or you may not see it." in view["unseen"]
    text = visitor.get("/pipeline", name=GONE)
    assert "Silent since" in text
    assert "Look at the process 17 on web3" in text
    assert visitor.json("/pipeline", name=LAKE)["silence"] is None


def test_new_reports_appear_and_old_ones_are_read_once(visitor: User, console_broker: EmbeddedBroker) -> None:
    before = visitor.json("/pipeline", name=SHIP)
    with Client(console_broker.bootstrap_servers) as client:
        write_reports(client, report(SHIP, kind="ship", state=STOPPED, host="web2", summary="3 records acknowledged."))
    after = visitor.json("/pipeline", name=SHIP)
    assert len(after["points"]) == len(before["points"]) + 1


def test_another_topic_and_none(console_broker: EmbeddedBroker) -> None:
    with user(console_broker.bootstrap_servers, reports="others") as visitor:
        view = visitor.json("/pipelines")
        assert view["why"] == "No pipeline reports yet: there is no topic others."
        assert view["command"] == "ottla pipeline list --reports-from others"
        assert "--reports-to others" in visitor.get("/pipelines")
        assert "There is no pipeline x: there is no topic others." in visitor.get("/pipeline", 404, name="x")
        assert "others" not in {each["name"] for each in visitor.json("/topics")["topics"]}
    console_broker.create_topic("others")
    with user(console_broker.bootstrap_servers, reports="others") as visitor:
        assert "The topic has no report." in visitor.get("/pipelines")
    console_broker.delete_topic("others")


def test_hidden_records_hide_reports_too(console_broker: EmbeddedBroker) -> None:
    with user(console_broker.bootstrap_servers, no_records=True) as visitor:
        view = visitor.json("/pipelines")
        assert (view["pipelines"], view["why"]) == (
            [],
            "This console shows no records: it was started with --no-records.",
        )


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_pages_of_pipelines_are_as_recorded_and_accessible(opened: Opened, update: bool) -> None:
    opened.go("/overview")
    opened.page.keyboard.press("g")
    opened.page.keyboard.press("p")
    expect(opened.page.get_by_role("heading", name="Pipelines", level=1)).to_be_visible()
    for name, path in {
        "pipelines": "/pipelines",
        "pipeline": f"/pipeline?name={LAKE}",
        "pipeline-failed": f"/pipeline?name={TRACKER}",
        "pipeline-silent": f"/pipeline?name={GONE}",
    }.items():
        opened.go(path)
        assert opened.accessibility() == []
        check_golden(opened, name, update)
