"""Consumer groups: lists, positions, ages, the last hour; resets with a preview, and what they do."""

from __future__ import annotations

import html
import json
import logging
import re
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.client.errors import UnsupportedVersionError
from ottla.console.page import time_in
from ottla.console.pages import member_changes
from ottla.console.pages.group import position_row
from ottla.console.pages.group_changes import effect
from ottla.console.pages.group_past import lag_at, positions_at, rebalances_of, waited_at
from ottla.console.pages.groups import matching
from ottla.console.pages.member_changes import CAUSES, row_of
from ottla.doctor.groups import Listed
from ottla.doctor.snapshot import Commit, Committed, Generation, Group, GroupMember, Member
from ottla.groups.history import Cause
from ottla.protocol.messages.describe_observations import Change
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Opened
from tests.harness.console.golden import check_golden
from tests.harness.console.over_http import User

ADA, BOB, CAT = (GroupMember(name, "/127.0.0.1", 300_000) for name in ("ada", "bob", "cat"))


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker with the group `billing`, which has read 5 of 10 records, and no members."""
    with EmbeddedBroker() as broker:
        broker.create_topic("orders", partitions=2)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
        for number in range(10):
            producer.produce("orders", str(number), partition=number % 2, timestamp=1_700_000_000_000 + number * 1000)
        producer.flush()
        commit(broker, "billing", [("orders", 0, 5), ("orders", 1, 0)])
        yield broker


def commit(broker: EmbeddedBroker, group: str, offsets: list[tuple[str, int, int]]) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(*each) for each in offsets], asynchronous=False)
    consumer.close()


def offsets_of(visitor: User, group: str) -> dict[tuple[str, int], int]:
    rows = visitor.json("/group", name=group)["positions"]
    return {(each["topic"], each["partition"]): each["committed"] for each in rows}


# ---- views ---------------------------------------------------------------------------------------------------------


def test_groups_are_found_by_name_and_state() -> None:
    listed = [Listed("Mail", "classic", "Stable"), Listed("bill", "consumer", "Empty")]
    assert [each.name for each in matching(listed, "")] == ["Mail", "bill"]
    assert [each.name for each in matching(listed, "MA")] == ["Mail"]
    assert [each.name for each in matching(listed, "", inactive=True)] == ["bill"]


def test_a_position_below_the_log_start_counts_what_was_lost() -> None:
    place = "t", 0
    group = Group("g", "classic", "Stable", committed={place: Committed(5)})
    row = position_row(place, group, {place: 8}, {place: 20}, {place: 15}, Member("m", "ada", "/h"))
    assert (row.lag, row.lost, row.held, row.owner) == (12, 3, 5, "ada")
    unread = position_row(place, Group("g", "classic", "Stable"), {place: 8}, {place: 20}, {}, None)
    assert (unread.committed, unread.lag, unread.lost, unread.owner) == (None, None, 0, None)


def test_the_lag_at_a_time_needs_the_position_then() -> None:
    place = "t", 0
    group = Group("g", "classic", "Stable", committed={place: Committed(9)})
    commits = {place: [Commit(3, 100), Commit(9, 200)]}
    assert lag_at(positions_at(150, group, commits), {place: 10}) == 7
    assert lag_at(positions_at(250, group, commits), {place: 10}) == 1
    assert lag_at(positions_at(50, group, commits), {place: 10}) is None
    assert lag_at(positions_at(50, group, {place: []}), {place: 10}) == 1
    assert lag_at(positions_at(250, group, commits), {}) is None


def test_the_lag_in_time_is_the_wait_of_the_oldest_unread_record() -> None:
    one, two = ("t", 0), ("t", 1)
    seen = [(0, {one: 0}), (100, {one: 10}), (200, {one: 10}), (300, {one: 30})]
    assert [waited_at({one: position}, seen) for position in (30, 29, 20, 10, 9, 0)] == [0, 5, 50, 100, 210, 300]
    assert waited_at({one: 5}, seen[1:]) is None, "it waited since before the first of the times"
    assert waited_at({one: 5}, seen[:2]) == 50
    assert waited_at({one: None}, seen) is None
    assert waited_at({one: 20, two: 0}, seen) is None, "the end of one partition is unknown"
    assert waited_at({one: 20, two: 4}, [(at, {**ends, two: at // 50}) for at, ends in seen]) == 100
    assert waited_at({one: 20}, [seen[0], (100, {}), *seen[2:]]) == 50
    assert waited_at({}, seen) == 0


def test_rebalances_name_who_came_and_went() -> None:
    generations = [
        Generation(10, 1, frozenset({ADA})),
        Generation(11, 1, frozenset({ADA})),
        Generation(20, 2, frozenset({ADA, BOB, CAT})),
        Generation(30, 3, frozenset({BOB})),
    ]
    found = rebalances_of(generations)
    assert [(each.at_ms, each.generation, each.members, each.came, each.went) for each in found] == [
        (30, 3, 1, "", "ada /127.0.0.1 and cat /127.0.0.1"),
        (20, 2, 3, "bob /127.0.0.1 and cat /127.0.0.1", ""),
        (10, 1, 1, "", ""),
    ]


def test_the_effect_of_a_move_in_words() -> None:
    assert [effect(5, 2), effect(2, 5), effect(2, 2), effect(None, 2)] == [
        "3 records again",
        "3 records skipped",
        "unchanged",
        "begins here",
    ]
    assert time_in("1970-01-01T00:00:01Z") == time_in("1970-01-01T00:00:01") == 1000


# ---- pages ---------------------------------------------------------------------------------------------------------


def test_the_list_has_lag_and_the_group_its_positions(visitor: User) -> None:
    (row,) = visitor.json("/groups")["groups"]
    assert (row["name"], row["state"], row["lag"], row["partitions"]) == ("billing", "Empty", 5, 2)
    view = visitor.json("/group", name="billing")
    assert (view["lag"], view["members"]) == (5, [])
    assert offsets_of(visitor, "billing") == {("orders", 0): 5, ("orders", 1): 0}
    assert "No client reads" in visitor.get("/group", name="billing")
    (age,) = visitor.json("/group/part/ages", name="billing")["ages"]
    assert (age["partition"], age["lag"], age["at_ms"]) == (1, 5, 1_700_000_001_000)


def test_large_batches_hide_no_partition(visitor: User, console_broker: EmbeddedBroker) -> None:
    console_broker.create_topic("large", partitions=3)
    producer = Producer({"bootstrap.servers": console_broker.bootstrap_servers, "linger.ms": 0})
    for partition in range(3):
        producer.produce("large", b"x" * 300_000, partition=partition)
    producer.flush()
    commit(console_broker, "slow", [("large", partition, 0) for partition in range(3)])
    assert len(visitor.json("/group/part/ages", name="slow")["ages"]) == 3


def test_the_last_hour_shows_the_lag(visitor: User) -> None:
    past = visitor.json("/group/part/past", name="billing")
    assert past["lags"][-1]["lag"] == 5
    assert past["lags"][-1]["waited_ms"] is None, "the records are years old"
    assert past["lags"][0]["lag"] is None
    assert past["is_whole"]
    assert "<svg" in visitor.get("/group/part/past", name="billing")


def test_the_last_hour_shows_the_lag_in_time(visitor: User, console_broker: EmbeddedBroker) -> None:
    """To within the distance of two points, and 0 for a group that has read everything."""
    console_broker.create_topic("recent")
    producer = Producer({"bootstrap.servers": console_broker.bootstrap_servers, "linger.ms": 0})
    minutes = (50, 40, 20)
    for each in minutes:
        producer.produce("recent", b"", timestamp=int((time.time() - 60 * each) * 1000))
    producer.flush()
    for position, waits in ((1, 40), (2, 20), (3, 0)):
        commit(console_broker, f"reads-{position}", [("recent", 0, position)])
        last = visitor.json("/group/part/past", name=f"reads-{position}")["lags"][-1]
        assert last["lag"] == 3 - position
        assert waits * 60_000 <= last["waited_ms"] <= (waits + 5) * 60_000 if waits else last["waited_ms"] == 0


def test_causes_of_changes_are_shown(visitor: User, console_broker: EmbeddedBroker) -> None:
    for protocol in ("classic", "consumer"):
        settings = {"bootstrap.servers": console_broker.bootstrap_servers, "group.id": f"why-{protocol}"}
        consumer = Consumer({**settings, "client.id": "ada", "group.protocol": protocol})
        consumer.subscribe(["orders"])
        until = time.monotonic() + 60
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < until
            consumer.poll(0.1)
        consumer.close()
        view = visitor.json("/group/part/changes", name=f"why-{protocol}")
        rows = [(each["cause"], each["member"]) for each in view["changes"]]
        left, joined = ("a member left, or was removed", "ada /127.0.0.1"), ("a member joined", "ada /127.0.0.1")
        assert (rows[0], rows[-1], view["missing"]) == (left, joined, "")
        assert "a member left, or was removed" in visitor.get("/group/part/changes", name=f"why-{protocol}")


def test_causes_that_no_node_remembers(
    visitor: User, console_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        member_changes, "observations", lambda client, nodes, group: dict.fromkeys(nodes, UnsupportedVersionError("no"))
    )
    assert "nodes remember why a group changed" in visitor.json("/group/part/changes", name="billing")["missing"]
    assert "No node has seen" not in visitor.get("/group/part/changes", name="billing")


def test_each_cause_has_words() -> None:
    assert CAUSES.keys() == set(Cause)
    change = Change(1, 2, Cause.REBALANCE_TIMEOUT, "m", "ada", "/127.0.0.1", "", 300_000)
    assert row_of(change).cause == "a member exceeded its rebalance timeout of 5 min"


def test_a_group_that_does_not_exist_creates_nothing() -> None:
    from tests.harness.console.over_http import user

    with EmbeddedBroker() as broker, user(broker.bootstrap_servers) as found:
        assert "There is no group nobody." in found.get("/group", 404, name="nobody")
        assert found.get("/group/reset", 404, name="nobody")
        assert found.json("/topics", internal=1)["topics"] == []


def test_members_and_who_reads_what(visitor: User, console_broker: EmbeddedBroker) -> None:
    settings = {"bootstrap.servers": console_broker.bootstrap_servers, "group.id": "mail", "client.id": "ada"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    try:
        until = time.monotonic() + 60
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < until
            consumer.poll(0.1)
        view = visitor.json("/group", name="mail")
        assert (view["state"], view["members"][0]["client_id"]) == ("Stable", "ada")
        assert view["members"][0]["owned"] == ["orders (0, 1)"]
        assert {each["owner"] for each in view["positions"]} == {"ada"}
        assert "The group has 1 member." in visitor.get("/group/delete", 400, name="mail")
        refused = visitor.post("/group/reset", {"step": "preview", "to": "the end"}, {"name": "mail"})
        assert refused.status_code == 400
        assert "The group has 1 member." in refused.text
        past = visitor.json("/group/part/past", name="mail")["rebalances"]
        assert [(each["members"], each["came"]) for each in past] == [(1, "ada /127.0.0.1"), (0, "")]
    finally:
        consumer.close()


# ---- changes -------------------------------------------------------------------------------------------------------


def reset(visitor: User, group: str, **form: str) -> str:
    """Reset, and return the text of the preview."""
    preview = visitor.post("/group/reset", {"step": "preview", **form}, {"name": group})
    assert preview.status_code == 200, preview.text[-2000:]
    done = visitor.change("/group/reset", group, form=form, name=group)
    assert (done.status_code, done.headers["location"]) == (303, f"/group?name={group}")
    return preview.text


def test_resets_show_what_comes_again_and_what_is_skipped(
    visitor: User, console_broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ottla.console.audit")
    commit(console_broker, "resets", [("orders", 0, 3), ("orders", 1, 1)])
    everything = {"topic": "every topic for which the group has offsets"}
    text = reset(visitor, "resets", to="the first record", **everything)
    assert "4 records will be read again." in text
    assert "3 records again" in text
    assert "ottla groups reset-offsets resets --all-topics --to-earliest --execute" in text
    assert offsets_of(visitor, "resets") == {("orders", 0): 0, ("orders", 1): 0}
    text = reset(visitor, "resets", to="a shift of the present offset", value="7", **everything)
    assert "10 records will be skipped" in text
    assert "orders-0: 7 is outside the log" in text
    assert offsets_of(visitor, "resets") == {("orders", 0): 5, ("orders", 1): 5}
    reset(visitor, "resets", to="the first record since a time", value="2023-11-14T22:13:25Z", **everything)
    assert offsets_of(visitor, "resets") == {("orders", 0): 3, ("orders", 1): 2}
    reset(visitor, "resets", to="an offset", value="1", topic="orders")
    reset(visitor, "resets", to="the end", topic="orders")
    assert offsets_of(visitor, "resets") == {("orders", 0): 5, ("orders", 1): 5}
    lines = [json.loads(each.message) for each in caplog.records]
    assert lines[0]["details"]["before"] == {"orders-0": 3, "orders-1": 1}
    assert lines[0]["details"]["after"] == {"orders-0": 0, "orders-1": 0}


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({"to": "the first record since a time", "value": "soon"}, "Give a time such as"),
        ({"to": "an offset", "value": "-1"}, "Give a whole number"),
        ({"to": "nowhere", "value": "1"}, "Choose where to move to."),
        ({"to": "the end", "other": "nothing"}, "There is no topic nothing."),
        ({"to": "a shift of the present offset", "value": "1", "other": "more"}, "no offset to shift in more-0"),
    ],
)
def test_wrong_resets_are_refused_with_the_form(
    visitor: User, console_broker: EmbeddedBroker, form: dict[str, str], sentence: str
) -> None:
    if form.get("other") == "more":
        console_broker.create_topic("more")
    answer = visitor.post("/group/reset", {"step": "preview", **form}, {"name": "billing"})
    assert answer.status_code in (400, 404)
    assert sentence in answer.text


def test_a_commit_between_preview_and_confirmation_stops_the_reset(
    visitor: User, console_broker: EmbeddedBroker
) -> None:
    commit(console_broker, "race", [("orders", 0, 1)])
    form = {"step": "preview", "to": "the end", "topic": "orders"}
    shown = visitor.post("/group/reset", form, {"name": "race"})
    hidden = {
        name: html.unescape(value)
        for name, value in re.findall(r'<input type="hidden" name="(asked|digest)" value="([^"]*)"', shown.text)
    }
    commit(console_broker, "race", [("orders", 0, 2)])
    answer = visitor.post("/group/reset", {"step": "apply", "typed": "race", **hidden}, {"name": "race"})
    assert (answer.status_code, "has changed since the preview" in answer.text) == (400, True)
    assert offsets_of(visitor, "race") == {("orders", 0): 2}


def test_offsets_of_a_topic_and_the_group_are_deleted(visitor: User, console_broker: EmbeddedBroker) -> None:
    console_broker.create_topic("old")
    commit(console_broker, "gone", [("orders", 0, 1), ("old", 0, 0)])
    done = visitor.change("/group/forget", "gone", form={"topic": "old"}, name="gone")
    assert done.status_code == 303
    assert offsets_of(visitor, "gone") == {("orders", 0): 1}
    done = visitor.change("/group/delete", "gone", name="gone")
    assert (done.status_code, done.headers["location"]) == (303, "/groups")
    assert "gone" not in [each["name"] for each in visitor.json("/groups")["groups"]]


# ---- in a browser --------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(("name", "path"), [("groups", "/groups?q=bill"), ("group", "/group?name=billing")])
def test_group_pages_are_as_recorded_and_accessible(opened: Opened, name: str, path: str, update: bool) -> None:
    opened.go(path)
    assert opened.accessibility() == []
    check_golden(opened, name, update)
