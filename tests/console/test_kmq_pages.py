"""KMQ queues: what waits, what is in work and until when, what is overdue; dead letters go back once."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from ottla.client import Client
from ottla.client.errors import ClientError
from ottla.client.reports import RUNNING, SILENT
from ottla.console.browsing.found import Found
from ottla.console.browsing.scan import NONE
from ottla.console.kmq_reading import Span, done_from, follow, queue_names
from ottla.console.pages.kmq_queue import (
    Reported,
    TrackerReport,
    doing,
    partition_row,
    spans_of,
    whole,
    why_of,
    work_rows,
)
from ottla.doctor.snapshot import Committed, Group
from ottla.kmq import KmqClient, KmqConfig, create_topics
from ottla.kmq.events import Reason
from ottla.kmq.markers import END, Kind, pack_key, start
from ottla.kmq.redrive import redrive_group
from ottla.kmq.stats import InWork
from ottla.protocol.records import Record
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Opened
from tests.harness.console.golden import check_golden
from tests.harness.console.over_http import User, user
from tests.harness.reports import report, write_reports
from tests.harness.waiting import soon
from tests.kmq.conftest import QUICK, QueueStage, take
from tests.kmq.test_redrive import write_letter

QUEUE = "parcels"


# ---- views ---------------------------------------------------------------------------------------------------------


def marker(at: int, offset: int, value: bytes, stamp_ms: int) -> Found:
    return Found(0, Record(at, stamp_ms, pack_key(0, offset), value), NONE, "", -1, "none", 0)


def test_queues_are_found_by_the_names_of_topics() -> None:
    assert queue_names(["b", "b__markers", "a", "a__markers", "lone", "gone__markers", "__markers"]) == ["a", "b"]


def test_what_markers_say_of_messages() -> None:
    config = KmqConfig(queue="q")
    read = follow(
        config,
        0,
        [
            marker(10, 0, start(5_000), 1_000),
            marker(11, 1, start(5_000), 1_000),
            marker(12, 2, start(5_000), 1_000),
            marker(13, 3, start(5_000), 1_000),
            marker(14, 0, END, 2_000),
            marker(15, 1, start(9_000, Kind.FAILED, "busy"), 2_000),
            marker(16, 3, start(0, Kind.REJECTED, "no\u202ea"), 2_500),
        ],
        17,
    )
    rows = work_rows({0: read}, 7_000)
    assert [(each.offset, each.doing, each.since_ms, each.until_ms, each.left_ms) for each in rows] == [
        (3, "rejected, dead letter to be written", 1_000, 2_500, -4_500),
        (2, "overdue", 1_000, 6_000, -1_000),
        (1, "failed, waits for its redelivery", 1_000, 11_000, 4_000),
    ]
    assert [each.text for each in rows][1:] == ["", "busy"]
    assert "\u202e" not in rows[0].text
    row = partition_row(0, {0: Span(4, 9)}, {0: Span(10, 17)}, {0: read}, 7_000)
    assert (row.waiting, row.in_work, row.overdue, row.overdue_ms, row.markers_lag) == (5, 3, 2, 4_500, 7)
    unread = partition_row(0, {}, {0: Span(10, 17)}, {}, 7_000)
    assert (unread.waiting, unread.in_work, unread.overdue, unread.markers_lag) == (None, None, None, 7)
    assert (whole([1, 2]), whole([1, None])) == (3, None)
    late = InWork(0, 0, None, 0, Reason.FAILED, "")
    assert doing(late, is_overdue=True) == "failed, redelivery is overdue"


def test_a_position_outside_the_topic_is_not_used() -> None:
    group = Group("g", "classic", "Stable", committed={("t", 0): Committed(2), ("t", 1): Committed(99)})
    starts, ends = {("t", 0): 5, ("t", 1): 0, ("t", 2): 3, ("u", 0): 0}, {("t", 0): 9, ("t", 1): 8, ("t", 2): 4}
    assert spans_of("t", group, starts, ends) == {0: Span(5, 9), 1: Span(8, 8), 2: Span(3, 4)}


def test_what_stops_a_queue_in_words() -> None:
    config = KmqConfig(queue="q")
    none, silent = Reported(), Reported((TrackerReport("t", SILENT, 0, "web1"),))
    running = Reported((TrackerReport("t", RUNNING, 0, "web1"),))
    assert why_of(config, 0, 2, 1, 0, none).startswith("Messages are overdue, and no tracker is known to run")
    assert why_of(config, 0, 0, 1, 0, silent).startswith("No tracker is known to run")
    assert "the group kmq-q has no members" in why_of(config, 3, 0, 0, 1, none)
    assert why_of(config, 3, 1, 1, 1, none) == why_of(config, 3, 1, 1, 0, running) == ""


def test_the_progress_of_redrives_is_read_with_care() -> None:
    done = done_from(3, "2+1,1+2", 4)
    assert [offset for offset in range(12) if offset in done] == [0, 1, 2, 3, 5, 7, 8]
    for metadata in ("0+999999999999", "another program's"):
        with pytest.raises(ClientError, match="can't be read"):
            done_from(0, metadata, 0)


# ---- pages ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker for one queue."""
    with EmbeddedBroker() as broker:
        yield broker


def created(broker: EmbeddedBroker, config: KmqConfig) -> QueueStage:
    """A new queue of one partition."""
    made = QueueStage(broker.bootstrap_servers, config)
    create_topics(AdminClient(made.properties), config)
    return made


@pytest.fixture(scope="module")
def queue(console_broker: EmbeddedBroker) -> Iterator[QueueStage]:
    """A queue whose worker has one message, one that is overdue, and one that failed; two messages wait. There is one
    dead letter, and no tracker."""
    config = KmqConfig(queue=QUEUE, timeout_ms=3_600_000, batch_size=3)
    made = created(console_broker, config)
    made.send(b"held", b"late", b"failed", b"fourth", b"fifth")
    write_letter(made, b"bad", reason=Reason.REJECTED, text="no address", offset=0)

    def timeout_ms(message: Any) -> int:
        return 1 if message.value() == b"late" else 3_600_000

    named = {**made.properties, "client.id": "worker"}
    with KmqClient(named, config, consumer=QUICK, timeout_ms_of=timeout_ms) as client:
        client.failed(take(client, 3)[2], delay_ms=7_200_000, reason="busy")
        soon(lambda: len(made.markers()) == 4, "every marker is written")
        soon(lambda: made.committed(QUEUE, config.group_id) == 3, "the position is committed")
        yield made


def test_a_queue_with_its_messages_workers_and_what_is_overdue(visitor: User, queue: QueueStage) -> None:
    (row,) = visitor.json("/kmq-queues", q=QUEUE)["queues"]
    assert (row["name"], row["partitions"], row["markers"], row["has_dead_letters"]) == (QUEUE, 1, 1, True)
    assert (row["waiting"], row["workers"], row["trackers"], row["lacks_tracker"]) == (2, 1, 0, True)
    assert 'bad">none is known<' in visitor.get("/kmq-queues", q=QUEUE)
    view = visitor.json("/kmq-queue", name=QUEUE)
    assert view["unseen"] == []
    assert (view["waiting"], view["in_work"], view["overdue"]) == (2, 3, 1)
    assert (view["letters"], view["letters_left"], view["left_out"]) == (1, 1, 0)
    assert [(each["offset"], each["doing"], each["text"]) for each in view["messages"]] == [
        (1, "overdue", ""),
        (0, "in work", ""),
        (2, "failed, waits for its redelivery", "busy"),
    ]
    assert view["messages"][1]["until_ms"] - view["messages"][1]["since_ms"] == 3_600_000
    assert view["workers"][0]["host"] == "/127.0.0.1"
    assert view["trackers"] == []
    assert "no tracker is known to run" in view["why"]
    assert "there is no topic ottla.reports" in view["reported"]["why"]
    page = visitor.get("/kmq-queue", name=QUEUE)
    assert "Whether a tracker runs on Spark cannot be known here." in page
    assert "ottla kmq tracker parcels</pre>" in page
    assert view["command"] == "ottla kmq stats parcels"
    assert "no address" in visitor.get("/kmq-dead-letters", name=QUEUE)


def test_a_tracker_is_known_by_its_reports(visitor: User, console_broker: EmbeddedBroker) -> None:
    queue = created(console_broker, KmqConfig(queue="tracked"))
    about = {"kind": "kmq-tracker", "host": "web1"}
    with user(console_broker.bootstrap_servers, reports="of-trackers") as other:
        with Client(console_broker.bootstrap_servers) as client:
            ours = report("on Spark", reads=("tracked__markers",), every_ms=3_600_000, **about)
            write_reports(client, report("other", reads=("a__markers",), **about), topic="of-trackers")
            view = other.json("/kmq-queue", name="tracked")
            assert view["reported"] == {"trackers": [], "why": ""}
            assert view["why"].startswith("No tracker is known to run")
            assert "No tracker of this queue reports to" in other.get("/kmq-queue", name="tracked")
            write_reports(client, ours, topic="of-trackers")
        view = other.json("/kmq-queue", name="tracked")
        assert [(each["name"], each["state"], each["host"]) for each in view["reported"]["trackers"]] == [
            ("on Spark", "running", "web1")
        ]
        assert view["why"] == ""
        assert "To find one that does not report" not in other.get("/kmq-queue", name="tracked")
        queue.send(b"first")
        (row,) = other.json("/kmq-queues", q="tracked")["queues"]
        assert (row["waiting"], row["trackers"], row["lacks_tracker"]) == (1, 0, False)
    # This console reads other reports; its list of topics may be two seconds old.
    soon(lambda: [each["lacks_tracker"] for each in visitor.json("/kmq-queues", q="tracked")["queues"]] == [True])


def test_a_queue_with_names_of_its_own(visitor: User, console_broker: EmbeddedBroker) -> None:
    """The address names them, links and commands keep them, and redrives are remembered in their group."""
    config = KmqConfig(
        queue="odd", markers="starts", dead_letters="dead", group_id="their workers", tracker_group_id="trackers"
    )
    queue = created(console_broker, config)
    queue.send(b"waits")
    write_letter(queue, b"bad", reason=Reason.REJECTED, text="no address", offset=0)
    assert "there is no markers topic odd__markers" in visitor.get("/kmq-queue", 404, name="odd")
    names = {"markers": "starts", "dead_letters": "dead", "group": "their workers", "tracker_group": "trackers"}
    view = visitor.json("/kmq-queue", name="odd", **names)
    assert (view["waiting"], view["letters"], view["group"], view["unseen"]) == (1, 1, "their workers", [])
    options = "--markers starts --dead-letters dead --group 'their workers' --tracker-group trackers"
    assert view["command"] == f"ottla kmq stats odd {options}"
    link = re.search(r'href="(/kmq-dead-letters[^"]+)"', visitor.get("/kmq-queue", name="odd", **names))
    assert link is not None
    assert visitor.client.get(html.unescape(link[1])).status_code == 200
    assert visitor.json("/kmq-dead-letters", name="odd", **names)["command"] == (
        "ottla kmq redrive odd --markers starts --dead-letters dead --tracker-group trackers"
    )
    done = visitor.change("/kmq-dead-letters/redrive", "odd", form={"most": "10"}, name="odd", **names)
    assert done.headers["location"] == link[1].replace("&amp;", "&")
    assert [each.value() for each in queue.records("odd")] == [b"waits", b"bad"]
    assert queue.committed("dead", "trackers-redrive") == 1
    assert "three different topics" in visitor.get("/kmq-queue", 400, name="odd", markers="odd")


def test_looking_at_a_queue_joins_no_group(visitor: User, queue: QueueStage) -> None:
    groups = {each["name"] for each in visitor.json("/groups")["groups"]}
    for path in ("/kmq-queues", "/kmq-queue", "/kmq-dead-letters"):
        visitor.get(path, name=QUEUE)
    assert {each["name"] for each in visitor.json("/groups")["groups"]} == groups


def test_what_is_no_queue(visitor: User, queue: QueueStage) -> None:
    assert "There is no topic nowhere." in visitor.get("/kmq-queue", 404, name="nowhere")
    other = f"{QUEUE}__markers"
    assert f"is no KMQ queue: there is no markers topic {other}__markers." in visitor.get("/kmq-queue", 404, name=other)
    assert "There is no topic" in visitor.get("/kmq-dead-letters", 404, name=other)
    assert visitor.get("/kmq-queue", 400, name="")
    assert "No queue matches." in visitor.get("/kmq-queues", q="nowhere")


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_pages_of_kmq_are_as_recorded_and_accessible(opened: Opened, queue: QueueStage, update: bool) -> None:
    for name, path in {
        "kmq_queues": f"/kmq-queues?q={QUEUE}",
        "kmq_queue": f"/kmq-queue?name={QUEUE}",
        "kmq_dead_letters": f"/kmq-dead-letters?name={QUEUE}",
    }.items():
        opened.go(path)
        assert opened.accessibility() == []
        check_golden(opened, name, update)


def test_without_records_the_rest_is_shown(queue: QueueStage) -> None:
    with user(queue.bootstrap, no_records=True) as visitor:
        view = visitor.json("/kmq-queue", name=QUEUE)
        assert (view["waiting"], view["in_work"], view["letters"], view["why"]) == (2, None, 1, "")
        assert "started with --no-records" in view["unseen"][0]
        assert "started with --no-records" in visitor.get("/kmq-dead-letters", 403, name=QUEUE)


def test_dead_letters_go_back_once_as_the_command_remembers(visitor: User, console_broker: EmbeddedBroker) -> None:
    queue = created(console_broker, KmqConfig(queue="returns"))
    write_letter(queue, b"bad", reason=Reason.REJECTED, text="no address")
    write_letter(queue, b"gone", reason=Reason.LOST, text="lost")
    write_letter(queue, b"slow", reason=Reason.TIMED_OUT, offset=9)
    form = {"reason": "timed-out", "partition": "", "most": "10"}
    shown = visitor.post("/kmq-dead-letters/redrive", {"step": "preview", **form}, {"name": "returns"})
    assert "Sends 1 message back: 1 to returns." in shown.text
    assert "ottla kmq redrive returns --reason timed-out --max-records 10 --execute" in shown.text
    done = visitor.change("/kmq-dead-letters/redrive", "returns", form=form, name="returns")
    assert (done.status_code, done.headers["location"]) == (303, "/kmq-dead-letters?name=returns")
    back = queue.records("returns")[-1]
    assert (back.key(), back.value()) == (b"k", b"slow")
    assert back.headers() == [("h", b"slow"), ("kmq-redrive-count", b"\x01")]
    view = visitor.json("/kmq-dead-letters", name="returns")
    assert (view["waiting"], [each["is_back"] for each in view["letters"]]) == (2, [False, False, True])
    assert (view["letters"][2]["back_to"], type(view["letters"][2]["back_ms"])) == ("returns", int)
    assert "<strong>2 of 3 dead letters</strong> are still" in visitor.get("/kmq-dead-letters", name="returns")
    form = {"reason": "any", "partition": "0", "most": "10"}
    shown = visitor.post("/kmq-dead-letters/redrive", {"step": "preview", **form}, {"name": "returns"})
    assert "1 dead letter of them have no message" in shown.text
    visitor.change("/kmq-dead-letters/redrive", "returns", form=form, name="returns")
    assert [each.value() for each in queue.records("returns")] == [b"slow", b"bad"]
    assert queue.committed(queue.config.dead_letters, redrive_group(queue.config)) == 3
    text = visitor.get("/kmq-dead-letters", name="returns")
    assert "All 3 dead letters were sent back, but for lost messages." in text
    assert "nothing to send back: the message was lost" in text
    refused = visitor.post("/kmq-dead-letters/redrive", {"step": "preview", **form}, {"name": "returns"})
    assert "No dead letter of this kind waits" in refused.text
    for wrong in ({"most": "9999"}, {"most": "1", "reason": "bored"}, {"most": "1", "partition": "x"}):
        answer = visitor.post("/kmq-dead-letters/redrive", {"step": "preview", **wrong}, {"name": "returns"})
        assert answer.status_code == 400
