"""Groups of the new consumer protocol (KIP-848), with librdkafka's members over TCP."""

import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, ConsumerGroupType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.testing import EmbeddedBroker

PATIENCE_S = 60


@pytest.fixture
def group() -> str:
    return f"g-{uuid.uuid4().hex[:10]}"


class Members:
    """librdkafka's consumers of one group, polled together."""

    def __init__(self, broker: EmbeddedBroker, group: str, topic: str) -> None:
        self._conf = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        self._topic = topic
        self.consumers: list[Consumer] = []
        self.seen: list[tuple[int, int]] = []

    def start(self, **more: object) -> Consumer:
        consumer = Consumer(self._conf | more)
        consumer.subscribe([self._topic])
        self.consumers.append(consumer)
        return consumer

    def stop(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.close()

    def poll_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, [self.owned(each) for each in self.consumers]
            for consumer in self.consumers:
                message = consumer.poll(0.02)
                if message is not None and message.error() is None:
                    self.seen.append((message.partition(), message.offset()))

    def owned(self, consumer: Consumer) -> list[int]:
        return sorted(each.partition for each in consumer.assignment())

    def shared(self, partitions: int) -> bool:
        """Whether everything is owned, once, and everybody has something."""
        owned = [self.owned(each) for each in self.consumers]
        return all(owned) and sorted(partition for each in owned for partition in each) == list(range(partitions))


@pytest.fixture
def members(broker: EmbeddedBroker, group: str, make_topic: Callable[..., str]) -> Iterator[Members]:
    topic = make_topic(6)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(60):
        producer.produce(topic, str(number), partition=number % 6)
    producer.flush()
    made = Members(broker, group, topic)
    yield made
    for consumer in made.consumers:
        consumer.close()


def test_members_come_and_go_and_every_record_is_read(members: Members) -> None:
    first = members.start()
    members.poll_until(lambda: len(set(members.seen)) == 60)
    assert sorted(set(members.seen)) == [(partition, offset) for partition in range(6) for offset in range(10)]
    first.commit(asynchronous=False)
    for _ in range(2):
        members.start()
    members.poll_until(lambda: members.shared(6) and len(members.consumers) == 3)
    members.stop(first)
    members.poll_until(lambda: members.shared(6))
    assert len(set(members.seen)) == 60


def test_offsets_outlive_the_members(members: Members, broker: EmbeddedBroker, group: str) -> None:
    first = members.start()
    members.poll_until(lambda: len(set(members.seen)) == 60)
    committed = first.commit(asynchronous=False)
    assert {each.offset for each in committed} == {10}
    members.stop(first)
    members.seen.clear()
    second = members.start()
    members.poll_until(lambda: members.shared(6))
    assert {each.offset for each in second.committed(second.assignment())} == {10}
    assert members.seen == []


def test_a_static_member_comes_back_to_its_partitions(members: Members) -> None:
    first = members.start(**{"group.instance.id": "one"})
    members.start(**{"group.instance.id": "two"})
    members.poll_until(lambda: members.shared(6))
    had = members.owned(first)
    members.stop(first)
    again = members.start(**{"group.instance.id": "one"})
    members.poll_until(lambda: members.shared(6))
    assert members.owned(again) == had


def test_topics_by_regular_expression_also_those_made_later(
    broker: EmbeddedBroker, group: str, members: Members
) -> None:
    pytest.importorskip("re2")
    stem = f"re-{uuid.uuid4().hex[:8]}"
    broker.create_topic(f"{stem}-1", partitions=2)
    consumer = members.start()
    consumer.subscribe([f"^{stem}.*"])
    members.poll_until(lambda: members.owned(consumer) == [0, 1])
    broker.create_topic(f"{stem}-2", partitions=3)
    members.poll_until(lambda: members.owned(consumer) == [0, 0, 1, 1, 2])


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_classic_group_goes_over_member_by_member_and_back(members: Members, strategy: str) -> None:
    classic = {"group.protocol": "classic", "partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200,
               "session.timeout.ms": 10_000}  # fmt: skip
    old = [members.start(**classic) for _ in range(2)]
    members.poll_until(lambda: members.shared(6) and len(set(members.seen)) == 60)
    old[0].commit(asynchronous=False)
    new = members.start()
    members.poll_until(lambda: members.shared(6))
    members.stop(old[0])
    another = members.start()
    members.poll_until(lambda: members.shared(6))
    members.stop(new)
    members.stop(another)
    members.poll_until(lambda: members.owned(old[1]) == list(range(6)) and len(set(members.seen)) == 60)


def test_administrators_see_and_change_it(members: Members, broker: EmbeddedBroker, group: str) -> None:
    first = members.start(**{"client.id": "reader"})
    members.poll_until(lambda: members.shared(6))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result().valid
    assert [each.state.name for each in listed if each.group_id == group] == ["STABLE"]
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.type is ConsumerGroupType.CONSUMER
    assert described.partition_assignor == "uniform"
    (member,) = described.members
    assert (member.client_id, len(member.assignment.topic_partitions)) == ("reader", 6)
    topic = member.assignment.topic_partitions[0].topic
    members.stop(first)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
    (altered,) = admin.alter_consumer_group_offsets([asked])[group].result().topic_partitions
    assert altered.error is None
    admin.delete_consumer_groups([group])[group].result()
    assert group not in [each.group_id for each in admin.list_consumer_groups().result().valid]
