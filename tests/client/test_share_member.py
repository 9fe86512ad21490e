"""A member of a share group that takes no more than it is asked to, against a real node."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ottla.client import BadResponseError, BrokerError, Client
from ottla.client import share_member as kinds
from ottla.client.share_groups import share_group_offsets
from ottla.client.share_member import Delivered, ShareMember
from ottla.protocol.records.batch import HEADER_BYTES, set_crc
from ottla.protocol.records.record import Record, build_batch
from ottla.testing import EmbeddedBroker

SETTINGS = {
    "group.share.min.record.lock.duration.ms": 3000,
    "group.share.record.lock.duration.ms": 3000,
    "group.share.delivery.count.limit": 5,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def connect(broker: EmbeddedBroker) -> Callable[[], Client]:
    return lambda: Client(broker.bootstrap_servers)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    return broker.create_topic()


def produce(connect: Callable[[], Client], topic: str, *values: bytes, partition: int = 0) -> None:
    with connect() as client:
        client.produce_raw(topic, partition, build_batch([Record(value=value, timestamp_ms=1) for value in values]))


@contextmanager
def member(connect: Callable[[], Client], topic: str) -> Iterator[ShareMember]:
    """A member of the group that has the topic's name, which begins at the records to come."""
    with ShareMember(connect, topic, [topic]) as made:
        with connect() as client:
            partitions = len(client.known_topic(topic).leaders)
            while sum(each.start_offset >= 0 for each in share_group_offsets(client, topic)) < partitions:
                assert made.poll(10, 100) == []
        yield made


def take(member: ShareMember, most: int, within_s: float = 20.0) -> list[Delivered]:
    until = time.monotonic() + within_s
    while not (got := member.poll(most, 100)) and time.monotonic() < until:
        pass
    return got


def values(got: list[Delivered]) -> list[bytes | None]:
    return [each.record.value for each in got]


def test_a_member_gets_what_it_asks_for_and_others_the_rest(connect: Callable[[], Client], topic: str) -> None:
    with member(connect, topic) as first, member(connect, topic) as second:
        produce(connect, topic, b"0", b"1", b"2")
        got = take(first, 1)
        assert values(got) == [b"0"]
        rest = take(second, 1) + take(second, 1)
        assert values(rest) == [b"1", b"2"]
        assert first.acknowledge(got, kinds.ACCEPT) == []
        assert second.acknowledge(rest[:1], kinds.REJECT) == []
        assert second.acknowledge(rest[1:], kinds.RELEASE) == []
        again = take(first, 10)
        assert [(each.record.value, each.delivery_count) for each in again] == [(b"2", 2)]
    with connect() as client:
        starts = {each.partition: each.start_offset for each in share_group_offsets(client, topic)}
    assert starts[0] == 2, "what a member held when it left is not done"


def test_what_is_held_is_held_however_long_a_person_thinks(connect: Callable[[], Client], topic: str) -> None:
    with member(connect, topic) as first, member(connect, topic) as second:
        produce(connect, topic, b"0")
        got = take(first, 1)
        assert take(second, 1, within_s=4.0) == [], "the lock of 3 s was renewed"
        assert first.acknowledge(got, kinds.ACCEPT) == []


def test_what_was_let_go_is_refused(connect: Callable[[], Client], topic: str) -> None:
    with member(connect, topic) as first:
        produce(connect, topic, b"0")
        got = take(first, 1)
        assert first.acknowledge(got, kinds.ACCEPT) == []
        ((_, error),) = first.acknowledge(got, kinds.ACCEPT)
        assert error.name == "INVALID_RECORD_STATE"


def test_records_that_cannot_be_read_are_told_of(connect: Callable[[], Client], topic: str) -> None:
    with member(connect, topic) as first, connect() as client:
        batch = bytearray(build_batch([Record(value=b"x" * 100, timestamp_ms=1)], compression="zstd"))
        batch[HEADER_BYTES:] = bytes(len(batch) - HEADER_BYTES)
        set_crc(batch)
        client.produce_raw(topic, 0, batch)
        with pytest.raises(BadResponseError, match=f"{topic}-0 can't be read from offset 0 on"):
            take(first, 1)


def test_a_member_outlives_its_broker(connect: Callable[[], Client], topic: str, broker: EmbeddedBroker) -> None:
    with member(connect, topic) as first:
        broker.restart()
        produce(connect, topic, b"0")
        got: list[Delivered] = []
        while not got:
            try:
                got = take(first, 1)
            except kinds.ClientError:
                continue
        assert values(got) == [b"0"]
        assert first.acknowledge(got, kinds.ACCEPT) == []


def test_every_partition_is_read(connect: Callable[[], Client], broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(partitions=2)
    with member(connect, topic) as first:
        produce(connect, topic, b"0")
        produce(connect, topic, b"1", partition=1)
        assert {each.place[1] for each in take(first, 1) + take(first, 1)} == {0, 1}


def test_who_may_not_join_is_told(connect: Callable[[], Client], topic: str) -> None:
    before = threading.active_count()
    with pytest.raises(BrokerError):
        ShareMember(connect, "", [topic])
    assert threading.active_count() == before
