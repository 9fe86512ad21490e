"""Who reads what in a share group, over TCP with librdkafka's ShareConsumer: members and topics that come and go.

Heartbeats are as frequent here as the broker's lower bounds allow, so that a change is heard of soon; only the test of
joining gives them an hour, to show that no second one is needed.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaException, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, NewPartitions

from ottla.client import BrokerError, Client
from ottla.client.share_groups import (
    alter_share_group_offsets,
    delete_share_group,
    describe_share_group,
    list_share_groups,
    share_group_offsets,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.testing import EmbeddedBroker

GROUP_RESOURCE = 32
SETTINGS = {
    "group.share.min.heartbeat.interval.ms": 100,
    "group.share.heartbeat.interval.ms": 100,
    "group.share.max.heartbeat.interval.ms": 3_600_000,
    "group.share.min.session.timeout.ms": 1_000,
    "group.share.max.session.timeout.ms": 7_200_000,
    "group.share.assignment.interval.ms": 0,
}

WORKER = """
import sys
from confluent_kafka import ShareConsumer
consumer = ShareConsumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "client.id": "victim"})
consumer.subscribe([sys.argv[3]])
print("subscribed", flush=True)
while True:
    consumer.poll(0.1)
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as started:
        yield started


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as made:
        yield made


class Members:
    """ShareConsumers of one group, polled in turns until something holds."""

    def __init__(self, broker: EmbeddedBroker, client: Client, group: str) -> None:
        self.address, self.client, self.group = broker.bootstrap_servers, client, group
        self.consumers: dict[str, ShareConsumer] = {}
        self.received: list[bytes] = []
        configs = [AlterableConfig("share.auto.offset.reset", 0, "earliest")]
        client.send(IncrementalAlterConfigsRequest([AlterConfigsResource(GROUP_RESOURCE, group, configs)]))

    def join(self, name: str, *topics: str) -> None:
        settings = {"bootstrap.servers": self.address, "group.id": self.group, "client.id": name, "log_level": 3}
        self.consumers[name] = ShareConsumer(settings)
        self.consumers[name].subscribe(list(topics))

    def leave(self, name: str) -> None:
        consumer = self.consumers.pop(name)
        consumer.commit_sync()
        consumer.close()

    def until(self, holds: Callable[[], bool]) -> None:
        """The suite's own time limit ends what never comes."""
        while not holds():
            for consumer in self.consumers.values():
                self.received += [each.value() or b"" for each in consumer.poll(0.02) if each.error() is None]

    def reads(self) -> dict[str, list[tuple[str, int]]]:
        """By client id, what the group's coordinator says each member has been told to read."""
        try:
            described = describe_share_group(self.client, self.group)
        except BrokerError:  # nobody has joined yet
            return {}
        return {
            member.client_id: sorted(
                (part.topic_name, index)
                for part in (member.assignment.topic_partitions if member.assignment else ())
                for index in part.partitions
            )
            for member in described.members
        }

    def sizes(self) -> list[int]:
        return sorted(map(len, self.reads().values()))

    def close(self) -> None:
        for name in list(self.consumers):
            self.leave(name)


@pytest.fixture
def members(broker: EmbeddedBroker, client: Client, request: pytest.FixtureRequest) -> Iterator[Members]:
    made = Members(broker, client, f"group-{request.node.name}")
    yield made
    made.close()


def produce(broker: EmbeddedBroker, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(30) == 0


def poll_for_ever(consumer: ShareConsumer) -> None:
    while True:
        consumer.poll(0.1)


def test_one_heartbeat_is_enough_to_join(broker: EmbeddedBroker, client: Client, members: Members) -> None:
    """The next heartbeat would come after an hour."""
    hour = AlterableConfig("share.heartbeat.interval.ms", 0, "3600000")
    session = AlterableConfig("share.session.timeout.ms", 0, "7200000")
    resource = AlterConfigsResource(GROUP_RESOURCE, members.group, [hour, session])
    (answer,) = client.send(IncrementalAlterConfigsRequest([resource])).responses
    assert answer.error_code == 0, answer.error_message
    topic = broker.create_topic()
    produce(broker, topic, "a")
    members.join("ann", topic)
    members.until(lambda: members.received == [b"a"])
    assert describe_share_group(client, members.group).group_epoch == 1


def test_partitions_are_shared_out_and_taken_over(broker: EmbeddedBroker, members: Members) -> None:
    topic = broker.create_topic(partitions=6)
    for name in ("ann", "bob", "cleo"):
        members.join(name, topic)
    members.until(lambda: members.sizes() == [2, 2, 2])
    members.leave("bob")
    members.until(lambda: members.sizes() == [3, 3])
    every = {place for places in members.reads().values() for place in places}
    assert every == {(topic, index) for index in range(6)}


def test_more_members_than_partitions_all_have_work(broker: EmbeddedBroker, members: Members) -> None:
    topic = broker.create_topic()
    for n in range(5):
        members.join(f"m{n}", topic)
    members.until(lambda: members.sizes() == [1] * 5)


def test_a_killed_workers_partition_is_read_by_another_long_before_its_session_ends(
    broker: EmbeddedBroker, members: Members
) -> None:
    topic = broker.create_topic(partitions=2)
    members.join("ann", topic)
    members.until(lambda: members.sizes() == [2])
    command = [sys.executable, "-c", WORKER, broker.bootstrap_servers, members.group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as victim:
        members.until(lambda: members.sizes() == [1, 1])
        (index,) = [index for _, index in members.reads()["victim"]]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        produce(broker, topic, "for the dead", partition=index)
        members.until(lambda: b"for the dead" in members.received)
    assert set(members.reads()) == {"ann", "victim"}, "it stays a member until its session ends"


def test_topics_change_under_a_live_group(broker: EmbeddedBroker, members: Members) -> None:
    topic, other = broker.create_topic(), broker.create_topic()
    members.join("ann", topic, other)
    members.until(lambda: members.sizes() == [2])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_partitions([NewPartitions(topic, 3)]).values():
        future.result(30)
    members.until(lambda: members.sizes() == [4])
    produce(broker, topic, "new partition", partition=2)
    members.until(lambda: b"new partition" in members.received)
    broker.delete_topic(other)
    members.until(lambda: members.sizes() == [3])
    broker.create_topic(other, partitions=2)
    members.until(lambda: members.sizes() == [5])
    produce(broker, other, "new life", partition=1)
    members.until(lambda: b"new life" in members.received)


def test_members_outlive_a_restart_of_the_broker() -> None:
    with EmbeddedBroker(settings=SETTINGS) as broker:
        topic = broker.create_topic(partitions=2)
        with Client(broker.bootstrap_servers) as client:
            members = Members(broker, client, "g")
            members.join("ann", topic)
            members.join("bob", topic)
            members.until(lambda: members.sizes() == [1, 1])
            before = members.reads()
            broker.restart()
        with Client(broker.bootstrap_servers) as client:
            members.client = client
            assert members.reads() == before
            for partition in (0, 1):
                produce(broker, topic, f"after {partition}", partition=partition)
            members.until(lambda: sorted(members.received) == [b"after 0", b"after 1"])
            members.close()


def test_offsets_are_described_altered_and_deleted(broker: EmbeddedBroker, client: Client, members: Members) -> None:
    topic = broker.create_topic()
    produce(broker, topic, *"abcde")
    members.join("ann", topic)
    members.until(lambda: len(members.received) == 5)
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        alter_share_group_offsets(client, members.group, [(topic, 0, 2)])
    with pytest.raises(BrokerError, match="NON_EMPTY_GROUP"):
        delete_share_group(client, members.group)
    members.leave("ann")
    assert (members.group, "Empty") in list_share_groups(client)
    assert share_group_offsets(client, members.group) == [(topic, 0, 5, 0)]
    alter_share_group_offsets(client, members.group, [(topic, 0, 3)])
    assert share_group_offsets(client, members.group) == [(topic, 0, 3, 2)]
    members.received.clear()
    members.join("bob", topic)
    members.until(lambda: members.received == [b"d", b"e"])
    members.leave("bob")
    delete_share_group(client, members.group)
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        describe_share_group(client, members.group)
    members.received.clear()
    members.join("cleo", topic)
    members.until(lambda: members.received == [b"a", b"b", b"c", b"d", b"e"])


def test_a_group_is_full() -> None:
    with (
        EmbeddedBroker(settings={**SETTINGS, "group.share.max.size": 1}) as broker,
        Client(broker.bootstrap_servers) as client,
    ):
        topic = broker.create_topic()
        members = Members(broker, client, "g")
        members.join("ann", topic)
        members.until(lambda: members.sizes() == [1])
        with ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}) as late:
            late.subscribe([topic])
            with pytest.raises(KafkaException, match="GROUP_MAX_SIZE_REACHED"):
                poll_for_ever(late)
        members.close()
