"""Transactions: who is open for how long, whose readers wait, what aborting does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from ottla.client import Client
from ottla.client.transactions import Listed
from ottla.console.pages.transactions import row_of
from ottla.protocol.messages.describe_transactions import TopicData, TransactionState
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Opened
from tests.harness.console.golden import check_golden
from tests.harness.console.over_http import User, user


@pytest.fixture(scope="module")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker whose topic `payments` has an open transaction of `pay-1`, and the group `ledger`, which reads it."""
    with EmbeddedBroker() as broker:
        broker.create_topic("payments")
        producer = begun(broker, "pay-1")
        consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "ledger"})
        consumer.commit(offsets=[TopicPartition("payments", 0, 0)], asynchronous=False)
        consumer.close()
        yield broker
        del producer


def begun(broker: EmbeddedBroker, name: str, topic: str = "payments") -> Producer:
    """A producer with an open transaction of three records."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, str(number))
    producer.flush()
    return producer


def test_a_row_of_an_id_whose_coordinator_does_not_answer() -> None:
    listed = Listed("pay", 1, 7, "Ongoing")
    assert row_of(listed, None, 5_000).open_ms is None
    state = TransactionState(0, "pay", "Ongoing", 60_000, 2_000, 7, 0, [TopicData("t", [0, 1])])
    row = row_of(listed, state, 5_000)
    assert (row.open_ms, row.timeout_ms, row.partitions) == (3_000, 60_000, 2)
    state.transaction_state = "CompleteCommit"
    assert row_of(listed, state, 5_000).open_ms is None


def test_the_open_transaction_its_readers_and_what_it_holds_back(visitor: User) -> None:
    view = visitor.json("/transactions")
    assert (view["under_way"], view["transactions"][0]["name"], view["transactions"][0]["state"]) == (
        1,
        "pay-1",
        "Ongoing",
    )
    (held,) = visitor.json("/transactions/part/held")["held"]
    assert (held["topic"], held["stable"], held["end"], held["waiting"], held["name"]) == ("payments", 0, 3, 3, "pay-1")
    one = visitor.json("/transaction", name="pay-1")
    assert one["is_open"]
    assert [(each["topic"], each["waiting"]) for each in one["partitions"]] == [("payments", 3)]
    (reader,) = visitor.json("/transaction/part/readers", name="pay-1")["readers"]
    assert (reader["group"], reader["partitions"]) == ("ledger", 1)
    assert visitor.json("/transactions", q="nothing")["transactions"] == []
    assert "is no state of a transaction" in visitor.get("/transactions", 400, state="Sleeping")


def test_aborting_fences_the_producer_and_frees_the_readers(visitor: User, console_broker: EmbeddedBroker) -> None:
    console_broker.create_topic("shipments")
    producer = begun(console_broker, "ship-1", "shipments")
    preview = visitor.get("/transaction/abort", name="ship-1")
    assert "Aborts the transaction of ship-1 in 1 partition" in preview
    done = visitor.change("/transaction/abort", "ship-1", name="ship-1")
    assert (done.status_code, done.headers["location"]) == (303, "/transaction?name=ship-1")
    assert [each["topic"] for each in visitor.json("/transactions/part/held")["held"]] == ["payments"]
    with pytest.raises(KafkaException, match=r"fenced|newer instance|producer with the same"):
        producer.commit_transaction(60)
    again = visitor.get("/transaction/abort", 400, name="ship-1")
    assert "It has no transaction to abort" in again


def test_a_transaction_that_its_coordinator_knows_does_not_hang(visitor: User) -> None:
    text = visitor.get("/transactions/abort-hanging", 400, topic="payments", partition=0)
    assert "The transaction belongs to pay-1" in text
    text = visitor.get("/transactions/abort-hanging", 400, topic="payments", partition=7)
    assert "are not known" in text


def test_a_transaction_of_a_topic_that_does_not_exist_is_refused_at_once(visitor: User) -> None:
    """Without the name being looked up first, the client waits for a leader until the deadline."""
    assert "There is no topic nowhere." in visitor.get("/transactions/abort-hanging", 404, topic="nowhere", partition=0)


def test_one_that_hangs_is_aborted_with_a_marker() -> None:
    """Written without asking any coordinator, as by a broker that does not verify, an hour ago."""
    with EmbeddedBroker(settings={"transaction.partition.verification.enable": "false"}) as careless:
        name = careless.create_topic("careless")
        record = Record(value=b"x", timestamp_ms=int(time.time() * 1000) - 3_600_000)
        batch = build_batch([record], producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
        data = TopicProduceData(name, partition_data=[PartitionProduceData(0, bytes(batch))])
        with Client(careless.bootstrap_servers) as client:
            answer = client.leader(name, 0).send(ProduceRequest("nobody", -1, 1000, [data]), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        with user(careless.bootstrap_servers) as found:
            assert "which no coordinator knows" in found.get("/transactions/part/held")
            done = found.change("/transactions/abort-hanging", name, topic=name, partition=0)
            assert (done.status_code, done.headers["location"]) == (303, "/transactions")
            assert found.json("/transactions/part/held")["held"] == []


def test_an_id_that_does_not_exist_creates_nothing() -> None:
    with EmbeddedBroker() as broker, user(broker.bootstrap_servers) as found:
        assert "There is no transactional id nobody." in found.get("/transaction", 404, name="nobody")
        assert found.json("/topics", internal=1)["topics"] == []


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize(
    ("name", "path"), [("transactions", "/transactions?q=pay"), ("transaction", "/transaction?name=pay-1")]
)
def test_transaction_pages_are_as_recorded_and_accessible(opened: Opened, name: str, path: str, update: bool) -> None:
    opened.go(path)
    assert opened.accessibility() == []
    check_golden(opened, name, update)
