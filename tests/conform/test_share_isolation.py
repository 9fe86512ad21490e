"""Share groups with `share.isolation.level` and librdkafka's transactions: who sees what, and when."""

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import AcknowledgeType, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from test_share_groups import Worker, configure, numbers, produce, values

from ottla.testing import EmbeddedBroker

WAIT_S = 30.0


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:8]}"


def producer_of(broker: EmbeddedBroker) -> Producer:
    name = f"t-{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    return producer


def write(producer: Producer, topic: str, first: int, end: int, partitions: int = 1) -> None:
    """Begin a transaction with these numbers."""
    producer.begin_transaction()
    for number in range(first, end):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(WAIT_S) == 0


def test_a_group_sees_what_was_committed_and_what_is_open_later(
    broker: EmbeddedBroker, make_topic: Callable[..., str], group: str
) -> None:
    topic, address = make_topic(2), broker.bootstrap_servers
    configure(address, group, share_isolation_level="read_committed")
    configure(address, f"{group}-dirty")
    one, two = producer_of(broker), producer_of(broker)
    for first in range(0, 60, 20):
        write(one, topic, first, first + 10, 2)
        write(two, topic, first + 10, first + 20, 2)
        one.commit_transaction(WAIT_S)
        two.abort_transaction(WAIT_S)
    clean = [number for first in range(0, 60, 20) for number in range(first, first + 10)]
    write(one, topic, 60, 70, 2)
    produce(address, topic, numbers(70, 80))
    with Worker(address, group, topic) as worker, Worker(address, f"{group}-dirty", topic) as dirty:
        assert values(dirty.take(80)) == list(range(80))
        assert values(worker.take(len(clean))) == clean
        assert worker.take(1, patience_s=0.5) == []
        one.commit_transaction(WAIT_S)
        assert values(worker.take(20)) == list(range(60, 80))
        write(two, topic, 80, 90, 2)
        two.abort_transaction(WAIT_S)
        assert worker.take(1, patience_s=0.5) == []


def test_dead_letters_are_of_committed_records_only(
    broker: EmbeddedBroker, make_topic: Callable[..., str], group: str
) -> None:
    topic, address = make_topic(), broker.bootstrap_servers
    letters = f"dlq.{topic}"
    admin = AdminClient({"bootstrap.servers": address, "log_level": 3})
    enabled = {"errors.deadletterqueue.group.enable": "true"}
    admin.create_topics([NewTopic(letters, 1, 1, config=enabled)])[letters].result(WAIT_S)
    configure(address, group, share_isolation_level="read_committed", errors_deadletterqueue_topic_name=letters)
    configure(address, f"{group}-letters", share_isolation_level="read_committed")
    producer = producer_of(broker)
    for first, commits in ((0, True), (3, False), (6, True)):
        write(producer, topic, first, first + 3)
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_S)
    with Worker(address, group, topic, explicit=True) as worker:
        worker.acknowledge(worker.take(6), AcknowledgeType.REJECT)
    with Worker(address, f"{group}-letters", letters) as reader:
        assert values(reader.take(6)) == [0, 1, 2, 6, 7, 8]
        assert reader.take(1, patience_s=0.5) == []
