"""The pages of messages over a broker: order, continuing, searches, transactions, producing, downloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

import pytest
from confluent_kafka import Producer

from ottla.client import Client
from ottla.console.browsing.filters import Filter
from ottla.console.browsing.scan import Budget, Scan
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.console.over_http import User

NONE = Filter(texts={})


@pytest.fixture(scope="module")
def numbered(console_broker: EmbeddedBroker) -> Iterator[str]:
    """A topic of two partitions with the records 0 to 29, one a millisecond, in turns."""
    name = console_broker.create_topic(partitions=2, configs={"retention.ms": -1})  # the times are of 1970
    with Client(console_broker.bootstrap_servers) as client:
        for partition in (0, 1):
            numbers = range(partition, 30, 2)
            records = [
                Record(place, 1_000 + each, f"k{each}".encode(), json.dumps({"n": each}).encode())
                for place, each in enumerate(numbers)
            ]
            client.produce_raw(name, partition, bytes(build_batch(records)))
    yield name
    console_broker.delete_topic(name)


def numbers(view: dict) -> list[int]:
    return [json.loads(row["value"]["text"])["n"] for row in view["rows"]]


def followed(visitor: User, view: dict) -> dict:
    """The view behind the link to continue."""
    parts = urlsplit(view["next"])
    return visitor.json(parts.path, **dict(parse_qsl(parts.query)))


def test_the_newest_come_first_and_older_ones_follow(visitor: User, numbered: str) -> None:
    view = visitor.json("/messages", topic=numbered, limit=20)
    assert numbers(view) == list(range(29, 9, -1))
    assert not view["is_over"]
    older = followed(visitor, view)
    assert numbers(older) == list(range(9, -1, -1))
    assert older["is_over"]
    assert older["next"] == ""
    assert older["tail"] == ""


def test_from_the_start_they_come_in_the_order_of_time(visitor: User, numbered: str) -> None:
    view = visitor.json("/messages", topic=numbered, limit=20, **{"from": "start"})
    assert numbers(view) == list(range(20))
    assert numbers(followed(visitor, view)) == list(range(20, 30))


def test_from_an_offset_or_a_time(visitor: User, numbered: str) -> None:
    assert numbers(visitor.json("/messages", topic=numbered, at=10, **{"from": "offset"})) == list(range(20, 30))
    assert numbers(visitor.json("/messages", topic=numbered, at=1_025, **{"from": "time"})) == list(range(25, 30))
    one = visitor.json("/messages", topic=numbered, partition=1, at=13, **{"from": "offset"})
    assert numbers(one) == [27, 29]
    assert "--partition 1" in one["command"]


def test_a_search_says_how_far_it_got(visitor: User, numbered: str) -> None:
    view = visitor.json("/messages", topic=numbered, path="$.n", **{"is": "3"})
    assert numbers(view) == [3]
    assert (view["is_over"], view["records"]) == (True, 30)
    by_key = visitor.json("/messages", topic=numbered, key="k3", everywhere=1)
    assert numbers(by_key) == [3]
    assert visitor.json("/messages", topic=numbered, key="k3")["only_partition"] in (0, 1)


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_search_continues_where_its_budget_ended(
    console_broker: EmbeddedBroker, numbered: str, newest_first: bool
) -> None:
    with Client(console_broker.bootstrap_servers) as client:
        client.metadata([numbered])
        starts, ends = {0: 0, 1: 0}, {0: 15, 1: 15}
        seen: list[int] = []
        at = ends if newest_first else starts
        for _ in range(100):
            scan = Scan(client, numbered, NONE, Budget(bytes_left=1))
            scanned = scan.backwards(starts, at, 4) if newest_first else scan.forwards(at, ends, 4)
            seen += [json.loads(each.record.value or b"")["n"] for each in scanned.found]
            at = scanned.positions
            if scanned.is_over:
                break
        assert sorted(seen) == list(range(30))


def test_new_messages_arrive_behind_the_positions(visitor: User, console_broker: EmbeddedBroker) -> None:
    name = console_broker.create_topic()
    view = visitor.json("/messages", topic=name)
    assert visitor.post("/messages/produce", {"step": "preview", "key": "a", "value": "b"}, {"topic": name}).is_success
    done = visitor.change("/messages/produce", form={"key": "a", "value": "b", "headers": "h=1"}, topic=name)
    assert done.status_code == 303
    parts = urlsplit(view["tail"])
    tail = visitor.json(parts.path, **dict(parse_qsl(parts.query)))
    assert [(each["key"]["text"], each["value"]["text"], each["headers"][0][0]) for each in tail["rows"]] == [
        ("a", "b", "h")
    ]
    parts = urlsplit(tail["tail"])
    assert visitor.json(parts.path, **dict(parse_qsl(parts.query)))["rows"] == []
    text = visitor.get(parts.path, **dict(parse_qsl(parts.query)))
    assert 'hx-trigger="every 1s"' in text
    console_broker.delete_topic(name)


def test_transactions_and_their_markers_are_shown(visitor: User, console_broker: EmbeddedBroker) -> None:
    name = console_broker.create_topic()
    producer = Producer({"bootstrap.servers": console_broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions()
    for value, ends in (("1", producer.commit_transaction), ("2", producer.abort_transaction), ("3", producer.flush)):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush()
        ends()
    rows = visitor.json("/messages", topic=name, **{"from": "start"})["rows"]
    assert [(each["value"]["text"], each["transaction"], each["control"]) for each in rows] == [
        ("1", "committed", ""),
        (None, "committed", "commit marker"),
        ("2", "aborted", ""),
        (None, "aborted", "abort marker"),
        ("3", "open", ""),
    ]
    assert rows[0]["producer_id"] == rows[4]["producer_id"] >= 0
    assert [each["value"]["text"] for each in visitor.json("/messages", topic=name, text="2")["rows"]] == ["2"]
    producer.abort_transaction()
    console_broker.delete_topic(name)


def test_one_message_is_shown_downloaded_and_sent_again(visitor: User, console_broker: EmbeddedBroker) -> None:
    name, target = (console_broker.create_topic(configs={"retention.ms": -1}) for _ in range(2))
    record = Record(0, 5, None, b"\x00\x01</pre>", (("n\u202e", b"\xff"), ("none", None)))
    with Client(console_broker.bootstrap_servers) as client:
        client.produce_raw(name, 0, bytes(build_batch([record], compression="zstd")))
    place = {"topic": name, "partition": 0, "offset": 0}
    view = visitor.json("/message", **place)
    assert (view["row"]["codec"], view["row"]["value"]["format"], view["row"]["key"]["text"]) == ("zstd", "hex", None)
    text = visitor.get("/message", format="text", **place)
    assert "\\x00\\x01&lt;/pre&gt;" in text
    assert "n\\u202e" in text
    assert "\u202e" not in text
    answer = visitor.client.get("/message/download/value", params=place)
    assert (answer.content, answer.headers["content-type"]) == (record.value, "application/octet-stream")
    assert answer.headers["content-disposition"].startswith("attachment; ")
    sent = visitor.change("/message/resend", form={"target": target}, **place)
    assert sent.status_code == 303
    copy = visitor.json("/message", topic=target, partition=0, offset=0)["row"]
    assert (copy["value"], copy["headers"]) == (view["row"]["value"], view["row"]["headers"])
    missing = visitor.json("/message", 404, topic=name, partition=0, offset=9)["error"]
    reason = "It was deleted, compacted away, or not written yet."
    assert missing == f"There is no record in {name}, partition 0, offset 9. {reason}"
    wrong = visitor.post("/message/resend", {"step": "preview", "target": "nowhere"}, place)
    assert (wrong.status_code, "There is no topic nowhere." in wrong.text) == (400, True)
    console_broker.delete_topic(name)
    console_broker.delete_topic(target)


def test_a_tombstone_is_produced_by_key(visitor: User, console_broker: EmbeddedBroker) -> None:
    name = console_broker.create_topic(partitions=3)
    done = visitor.change("/messages/produce", form={"key": "a", "tombstone": "yes", "value": "x"}, topic=name)
    row = visitor.json("/messages", topic=name)["rows"][0]
    assert row["value"]["text"] is None
    assert f"partition={row['partition']}" in done.headers["location"]
    for form in ({"partition": "3"}, {"partition": "x"}, {"headers": "no sign"}):
        assert visitor.post("/messages/produce", {"step": "preview", **form}, {"topic": name}).status_code == 400
    console_broker.delete_topic(name)


def test_the_page_without_a_topic_offers_topics(visitor: User) -> None:
    assert "/messages?topic=clicks" in visitor.get("/messages")
    assert "no topic nowhere" in visitor.get("/messages", 404, topic="nowhere")
    assert "has the partitions 0 to 2" in visitor.get("/messages", 400, topic="clicks", partition=3)
