"""Pages show what the cluster reports, as HTML and as JSON."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.client import Client, observations
from ottla.client.errors import UnsupportedVersionError
from ottla.console.page import ROWS, paged
from ottla.console.pages import overview
from ottla.console.pages.overview import overview_of
from ottla.console.pages.topics import matching
from ottla.console.rendering import rate
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.testing import EmbeddedBroker
from tests.harness.console.over_http import User, user


def partition(index: int, leader: int, replicas: list[int], isr: list[int]) -> MetadataResponsePartition:
    return MetadataResponsePartition(partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=isr)


def topic(name: str, *partitions: MetadataResponsePartition, internal: bool = False) -> MetadataResponseTopic:
    return MetadataResponseTopic(name=name, is_internal=internal, partitions=list(partitions))


def cluster(*topics: MetadataResponseTopic) -> Any:
    brokers = [MetadataResponseBroker(node_id, "localhost", 9090 + node_id, None) for node_id in (2, 1)]
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=2, topics=list(topics))


def test_the_overview_counts_what_is_behind_and_what_has_no_leader() -> None:
    view = overview_of(
        cluster(
            topic("a", partition(0, 1, [1, 2], [1]), partition(1, -1, [2], [])),
            topic("__b", partition(0, 2, [2, 1], [2, 1]), internal=True),
        ),
        "command",
    )
    assert (view.topics, view.internal_topics, view.partitions) == (1, 1, 3)
    assert (view.under_replicated, view.without_leader) == (2, 1)
    assert [(each.id, each.is_controller, each.leads, each.hosts, each.behind) for each in view.nodes] == [
        (1, False, 1, 2, 0),
        (2, True, 1, 3, 2),
    ]


def test_topics_are_found_by_a_part_of_their_name() -> None:
    topics = [
        topic("Orders", partition(0, 1, [1], [1])),
        topic("clicks", partition(0, -1, [1], [])),
        topic("__offsets", internal=True),
    ]
    assert [each.name for each in matching(topics, "")] == ["Orders", "clicks"]
    assert [each.name for each in matching(topics, "ORD")] == ["Orders"]
    assert [each.name for each in matching(topics, "", internal=True, unhealthy=True)] == ["clicks"]


def test_lists_are_paged() -> None:
    names = list(range(2 * ROWS + 1))
    where, rows = paged(names, 3)
    assert (where.pages, where.total, rows) == (3, len(names), [2 * ROWS])
    assert paged(names, 99)[0].page == 3
    assert paged([], 0)[0] == replace(where, page=1, pages=1, total=0, first=0)


def test_the_overview_shows_the_node_and_the_command(visitor: User, console_broker: EmbeddedBroker) -> None:
    text = visitor.get("/overview")
    assert f"127.0.0.1:{console_broker.port}" in text
    assert "ottla cluster describe" in text
    assert visitor.json("/overview")["nodes"][0]["is_controller"]


def test_configs_show_who_set_them(
    visitor: User, console_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = console_broker.create_topic(configs={"retention.ms": "5000000"})
    (own,) = visitor.json("/topic/part/configs", name=name)["differing"]
    assert own["set_by"].startswith("User:ANONYMOUS (")
    assert own["set_ms"]
    with Client(console_broker.bootstrap_servers, client_id="an-admin") as client:
        changes = [AlterConfigsResource(4, "1", [AlterableConfig("message.max.bytes", 0, "5000000")])]
        assert not client.send(IncrementalAlterConfigsRequest(changes)).responses[0].error_code
    (row,) = visitor.json("/cluster/part/configs")["changes"]
    shown = {key: row[key] for key in ("of", "name", "old", "new", "principal", "client")}
    assert list(shown.values()) == [
        "node 1", "message.max.bytes", None, "5000000", "User:ANONYMOUS", "an-admin, 127.0.0.1",
    ]  # fmt: skip
    assert "an-admin" in visitor.get("/cluster/part/configs")

    def unserved(client: object, messages: dict[int, object], least: int) -> dict[int, UnsupportedVersionError]:
        return {node_id: UnsupportedVersionError("no") for node_id in messages}

    monkeypatch.setattr(observations, "ask_nodes", unserved)
    for path in ("/topic/part/configs", "/cluster/part/configs"):
        assert "Only Ottla&#39;s nodes remember who changed configs" in visitor.get(path, name=name)
    console_broker.delete_topic(name)


def test_the_doctor_and_the_disks_are_parts_of_the_overview(visitor: User) -> None:
    findings = visitor.json("/overview/part/findings")
    assert findings["took_s"] > 0
    assert not findings["is_waiting"]
    assert findings["unseen"] == [], "the doctor needs an API that the console refuses: READS in access.py"
    (disk,) = visitor.json("/overview/part/disks")["disks"]
    assert disk["total"] > disk["usable"] > 0
    assert "<svg" in visitor.get("/overview/part/disks")


def test_a_topic_shows_its_partitions_and_its_own_configs_first(visitor: User) -> None:
    view = visitor.json("/topic", name="clicks")
    assert [each["index"] for each in view["partitions"]] == [0, 1, 2]
    assert (view["records"], view["partitions"][0]["end"], view["partitions"][0]["held"]) == (0, 0, 0)
    configs = visitor.json("/topic/part/configs", name="clicks")
    assert configs["differing"][0]["name"] == "retention.ms"
    assert configs["differing"][0]["source"] == "this topic"
    assert "retention.ms" in visitor.get("/topic/part/configs", name="clicks")


def test_rates_count_the_records_of_the_last_minute(console_broker: EmbeddedBroker) -> None:
    """By their timestamps: not those of an hour ago, and none of a topic that gets nothing."""
    console_broker.create_topic("busy", partitions=2)
    console_broker.create_topic("quiet")
    producer = Producer({"bootstrap.servers": console_broker.bootstrap_servers})
    now_ms = int(time.time() * 1000)
    for topic in ("busy", "quiet"):
        for _ in range(300):
            producer.produce(topic, b"", timestamp=now_ms - 3_600_000, partition=0)
    for number in range(120):
        producer.produce("busy", b"", timestamp=now_ms, partition=number % 2)
    producer.flush()
    with user(console_broker.bootstrap_servers) as visitor:
        rows = {each["name"]: (each["records"], each["rate"]) for each in visitor.json("/topics")["topics"]}
        assert rows["busy"] == (420, 2.0)
        assert rows["quiet"] == (300, 0.0)
        topic = visitor.json("/topic", name="busy")
        assert (topic["rate"], [each["rate"] for each in topic["partitions"]]) == (2.0, [1.0, 1.0])


def test_traffic_is_what_arrived_since_the_last_reading(
    console_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    console_broker.create_topic("arriving")
    clock = time.monotonic()
    monkeypatch.setattr(overview, "time", SimpleNamespace(monotonic=lambda: clock))
    with user(console_broker.bootstrap_servers) as visitor:
        first = visitor.json("/overview/part/traffic")
        assert (first["rate"], first["busiest"], first["window_s"]) == (0, [], 0)
        assert "it takes two readings" in visitor.get("/overview/part/traffic")
        producer = Producer({"bootstrap.servers": console_broker.bootstrap_servers})
        for _ in range(20):
            producer.produce("arriving", b"", timestamp=1)
        producer.flush()
        clock += 10
        found = visitor.json("/overview/part/traffic")
        assert (found["rate"], found["nodes"], found["window_s"]) == (2.0, {"1": 2.0}, 10.0)
        assert found["busiest"] == [{"name": "arriving", "rate": 2.0}]
        clock += 5
        assert "write <strong>0</strong> records a second" in visitor.get("/overview/part/traffic")
        clock += 1_000
        assert visitor.json("/overview/part/traffic")["window_s"] == 0, "the last reading is too old"


@pytest.mark.parametrize(
    ("value", "text"), [(None, "?"), (0.0, "0"), (1 / 60, "0.0167"), (12.34, "12.3"), (99.96, "100"), (1234.5, "1,234")]
)
def test_rates_are_short(value: float | None, text: str) -> None:
    assert rate(value) == text


def test_the_search_finds_topics_groups_and_queues(console_broker: EmbeddedBroker) -> None:
    for name in ("mails", "mails__markers"):
        console_broker.create_topic(name)
    reader = Consumer({"bootstrap.servers": console_broker.bootstrap_servers, "group.id": "mailers"})
    reader.commit(offsets=[TopicPartition("mails", 0, 0)], asynchronous=False)
    reader.close()
    with user(console_broker.bootstrap_servers) as visitor:
        found = visitor.json("/search", q="MAIL")["found"]
        assert [(each["kind"], each["names"]) for each in found] == [
            ("Topics", ["mails", "mails__markers"]),
            ("Consumer groups", ["mailers"]),
            ("KMQ queues", ["mails"]),
        ]
        text = visitor.get("/search", q="mailers")
        assert '<a href="/group?name=mailers">mailers</a>' in text
        assert 'No topic, group or queue has "nothing" in its name.' in visitor.get("/search", q="nothing")
    for name in ("mails", "mails__markers"):
        console_broker.delete_topic(name)


def test_a_topic_that_does_not_exist_is_not_created(visitor: User, console_broker: EmbeddedBroker) -> None:
    assert "There is no topic nowhere." in visitor.get("/topic", 404, name="nowhere")
    assert visitor.json("/topic", 404, name="nowhere")["error"] == "There is no topic nowhere."
    with Client(console_broker.bootstrap_servers) as client:
        assert "nowhere" not in [each.name for each in client.topics()]


def test_a_cluster_that_is_gone_is_said_in_the_place_of_the_page() -> None:
    from tests.harness.console.over_http import user

    with user("127.0.0.1:1", deadline_s=5.0) as found:
        assert "No broker can be reached" in found.get("/overview", 502)


def test_names_from_an_address_are_text(visitor: User) -> None:
    text = visitor.get("/topics", q='"><script>alert(1)</script>')
    assert "<script>alert" not in text
    assert "No topic matches." in text
    assert "must be a number" in visitor.get("/topics", 400, page="one")
    assert "There is no such page." in visitor.get("/no/such", 404)
