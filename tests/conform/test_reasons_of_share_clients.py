"""Reasons beside librdkafka's ShareConsumer: `ottla.client.ShareReasons` with the consumer's own properties."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from ottla.client import Client, ShareReasons, share_reasons
from ottla.client.dead_letters import Letter, Redrive
from ottla.client.share_partitions import describe_share_partitions
from ottla.client.share_reasons import reason_text
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest
from ottla.testing import EmbeddedBroker, EmbeddedCluster
from tests.harness.waiting import soon

CONFIGS = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": "dlq.jobs",
    "share.delivery.count.limit": "3",
}
IN_CLUSTER = {
    "min.insync.replicas": 2,
    "offsets.topic.num.partitions": 1,
    "share.coordinator.state.topic.num.partitions": 1,
}


def set_up(address: str, copies: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    letters = NewTopic("dlq.jobs", 1, copies, config={"errors.deadletterqueue.group.enable": "true"})
    for future in admin.create_topics([NewTopic("jobs", 1, copies), letters]).values():
        future.result(30)
    entries = [ConfigEntry(*each, incremental_operation=AlterConfigOpType.SET) for each in CONFIGS.items()]
    for future in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.GROUP, "g", incremental_configs=entries)]
    ).values():
        future.result(30)


def produce(address: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": address, "acks": "all", "log_level": 3})
    for value in values:
        producer.produce("jobs", value)
    assert producer.flush(30) == 0


def settings(address: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": address,
        "group.id": "g",
        "client.id": "ada",
        "share.acknowledgement.mode": "explicit",
        "log_level": 2,
    }


def polled(worker: ShareConsumer, count: int) -> list[Message]:
    found: list[Message] = []
    until = time.monotonic() + 60
    while len(found) < count and time.monotonic() < until:
        found += [each for each in worker.poll(0.5) if each.error() is None]
    assert len(found) == count
    return found


def letters(address: str, count: int) -> list[Letter]:
    """The group's dead letters, once there are so many."""
    found: list[Letter] = []

    def are_there() -> bool:
        with Client(address) as client:
            redrive = Redrive(client, "g", "dlq.jobs")
            redrive.open()
            found[:] = redrive.letters()
        return len(found) == count

    soon(are_there)
    return found


@pytest.fixture
def address() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        set_up(broker.bootstrap_servers)
        yield broker.bootstrap_servers


def test_a_worker_says_why_it_gives_records_back(address: str) -> None:
    produce(address, "busy", "broken")
    given = settings(address)
    with ShareConsumer(given) as worker, ShareReasons(given) as reasons:
        worker.subscribe(["jobs"])
        busy, broken = polled(worker, 2)
        assert reasons.give(busy, TimeoutError("the shop is busy")), reasons.why_not
        assert reasons.give(broken, ValueError("<b>not a picture</b>")), reasons.why_not
        worker.acknowledge(busy, AcknowledgeType.RELEASE)
        worker.acknowledge(broken, AcknowledgeType.REJECT)
        worker.commit_sync()
        (again,) = polled(worker, 1)
        assert (again.offset(), again.delivery_count()) == (0, 2)
        with Client(address) as client:
            (part,) = describe_share_partitions(client, "g").partitions
        assert [(run.reason, run.reason_delivery) for run in part.runs] == [("TimeoutError: the shop is busy", 1)]
        assert {each.text for each in part.reasons} == {
            "TimeoutError: the shop is busy",
            "ValueError: <b>not a picture</b>",
        }
        assert not reasons.give(busy, "its delivery is over")
        assert "INVALID_RECORD_STATE" in (reasons.why_not or "")
        worker.acknowledge(again, AcknowledgeType.REJECT)
        worker.commit_sync()
    first, second = letters(address, 2)
    assert (first.worker_reason, first.reason_delivery, first.client_id) == (
        "ValueError: <b>not a picture</b>",
        1,
        "ada",
    )
    assert (second.worker_reason, second.reason_delivery) == ("TimeoutError: the shop is busy", 1)
    assert second.headers == [], "what the dead letter added does not go back"


def test_acknowledgements_do_not_depend_on_reasons(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No node answers, or it is not one of Ottla."""
    produce(address, "a", "b")
    monkeypatch.setattr(share_reasons, "TIMEOUT_S", 0.2)
    given = settings(address)
    with ShareConsumer(given) as worker, ShareReasons({**given, "bootstrap.servers": "127.0.0.1:1"}) as reasons:
        worker.subscribe(["jobs"])
        for message in polled(worker, 2):
            assert not reasons.give(message, "x")
            worker.acknowledge(message, AcknowledgeType.REJECT)
        worker.commit_sync()
    assert [each.worker_reason for each in letters(address, 2)] == [None, None]


def test_a_node_that_is_not_ottla_gets_no_request_that_it_lacks(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(address, "a")
    monkeypatch.setattr("ottla.client.private_requests.PRIVATE_REQUESTS", "no.such.entry")
    given = settings(address)
    with ShareConsumer(given) as worker, ShareReasons(given) as reasons:
        worker.subscribe(["jobs"])
        (message,) = polled(worker, 1)
        asked: list[int] = []
        monkeypatch.setattr(DescribeConfigsRequest, "encode", _counted(DescribeConfigsRequest.encode, asked))
        assert not reasons.give(message, "x")
        assert "does not serve ExplainShareRecords" in (reasons.why_not or "")
        assert not reasons.give(message, "x")
        assert len(asked) == 1, "it is left alone after that"
        worker.acknowledge(message, AcknowledgeType.ACCEPT)
        worker.commit_sync()


def _counted(encode: Any, calls: list[int]) -> Any:
    def counting(*args: Any) -> None:
        calls.append(1)
        encode(*args)

    return counting


def test_a_reason_is_cut_to_what_a_leader_accepts() -> None:
    assert reason_text("é" * 2_000) == "é" * 512
    assert (reason_text(KeyError("id")), reason_text(OSError()), reason_text("  ")) == (
        "KeyError: 'id'",
        "OSError",
        "no reason",
    )


@pytest.mark.parametrize("without", ["bootstrap.servers", "group.id"])
def test_properties_that_name_too_little_are_refused(without: str) -> None:
    with pytest.raises(ValueError, match=r"group\.id is|bootstrap address"):
        ShareReasons({name: value for name, value in settings("localhost:9092").items() if name != without})


def test_a_new_leader_does_not_know_the_reasons_and_keeps_new_ones() -> None:
    """Three nodes: the leader is killed after a release with a reason."""
    with EmbeddedCluster(settings=IN_CLUSTER) as cluster:
        servers = cluster.bootstrap_servers
        set_up(servers, 3)
        produce(servers, "a", "b")
        given = settings(servers)
        with ShareConsumer(given) as worker, ShareReasons(given) as reasons:
            worker.subscribe(["jobs"])
            for message in polled(worker, 2):
                assert reasons.give(message, "of the first leader"), reasons.why_not
                worker.acknowledge(message, AcknowledgeType.RELEASE)
            worker.commit_sync()
            with Client(servers) as client:
                leader = client.known_topic("jobs").leaders[0]
            cluster.kill(leader)
            for message in polled(worker, 2):
                assert message.delivery_count() == 2
                assert reasons.give(message, f"of {message.value()!r}"), reasons.why_not
                worker.acknowledge(message, AcknowledgeType.REJECT)
            worker.commit_sync()
        found = letters(servers, 2)
        assert [(each.worker_reason, each.reason_delivery) for each in found] == [("of b'a'", 2), ("of b'b'", 2)]
