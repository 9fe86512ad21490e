"""The client of a cluster: leaders, raw records, offsets, errors by name, and a broker that comes back."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from ottla.client import BrokerError, Client, ClientError, ConnectionClosedError, TimedOutError, delete_offsets
from ottla.client.client import EARLIEST, LATEST, MAX_TIMESTAMP
from ottla.client.transactions import OpenTransaction, abort_transaction, open_transactions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.records.batch import set_crc
from ottla.protocol.records.record import Record, build_batch, decode_records
from ottla.testing import EmbeddedBroker
from tests.server.test_throttling import ScriptedQuotas, Throttling


@pytest.fixture
def client(broker: EmbeddedBroker) -> Iterator[Client]:
    with Client(broker.bootstrap_servers) as made:
        yield made


def batch(*values: bytes, timestamp_ms: int = 1000) -> bytes:
    return bytes(build_batch([Record(value=value, timestamp_ms=timestamp_ms + i) for i, value in enumerate(values)]))


def test_produce_and_fetch_raw(client: Client, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(partitions=2)
    first = client.produce_raw(topic, 1, batch(b"a", b"b"))
    second = client.produce_raw(topic, 1, batch(b"c"), acks=1)
    assert first is not None
    assert second is not None
    assert (first.base_offset, second.base_offset, second.log_append_time_ms) == (0, 2, -1)
    got = client.fetch_raw(topic, 1, 0)
    assert (got.high_watermark, got.last_stable_offset, got.log_start_offset) == (3, 3, 0)
    size = len(batch(b"a", b"b"))
    parts = [decode_records(memoryview(got.records)[:size]), decode_records(memoryview(got.records)[size:])]
    assert [record.value for part in parts for record in part] == [b"a", b"b", b"c"]
    assert client.fetch_raw(topic, 1, 3, max_wait_ms=0).records == b""
    assert client.fetch_raw(topic, 0, 0, max_wait_ms=0).high_watermark == 0


def test_a_throttled_fetch_is_sent_again() -> None:
    """The answer to it has no partition, and the node delays the next one (KIP-219)."""
    with Throttling() as broker, Client(broker.bootstrap_servers) as client:
        topic = broker.create_topic()
        client.produce_raw(topic, 0, batch(b"a"))
        quotas = ScriptedQuotas(1, 1)
        broker.plant(quotas)
        assert [record.value for record in decode_records(client.fetch_raw(topic, 0, 0).records)] == [b"a"]
        assert not quotas.throttle_ms
        broker.plant(ScriptedQuotas(*[50] * 1_000))
        with Client(broker.bootstrap_servers, timeout_s=0.5) as hasty, pytest.raises(TimedOutError):
            hasty.fetch_raw(topic, 0, 0)


def test_acks_0_has_no_answer(client: Client, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic()
    assert client.produce_raw(topic, 0, batch(b"x"), acks=0) is None
    assert client.fetch_raw(topic, 0, 0, max_wait_ms=10_000).high_watermark == 1


def test_list_offsets(client: Client, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(partitions=2)
    client.produce_raw(topic, 0, batch(b"a", b"b", b"c"))
    assert client.list_offsets(topic, [0, 1]) == {0: 3, 1: 0}
    assert client.list_offsets(topic, [0], EARLIEST) == {0: 0}
    assert client.list_offsets(topic, [0], LATEST) == {0: 3}
    assert client.list_offsets(topic, [0], MAX_TIMESTAMP) == {0: 2}
    assert client.list_offsets(topic, [0], 1001) == {0: 1}
    assert client.list_offsets(topic, [0, 1], 9999) == {0: -1, 1: -1}


def test_an_offset_by_time_within_records_that_nobody_can_read(client: Client, broker: EmbeddedBroker) -> None:
    """Batches are opaque, so broken gzip is taken; looking for a time in it must not fail."""
    topic = broker.create_topic()
    broken = bytearray(build_batch([Record(value=b"x" * 50, timestamp_ms=1000)], compression="gzip"))
    broken[-8] ^= 0xFF
    set_crc(broken)
    client.produce_raw(topic, 0, batch(b"a", timestamp_ms=10))
    client.produce_raw(topic, 0, broken)
    assert client.list_offsets(topic, [0], 500) == {0: 1}
    assert client.list_offsets(topic, [0], MAX_TIMESTAMP) == {0: 1}


def test_topics(client: Client, broker: EmbeddedBroker) -> None:
    name = broker.create_topic(partitions=3)
    topic = client.topic(name)
    assert (topic.name, len(topic.leaders), topic.is_internal) == (name, 3, False)
    assert len(topic.topic_id) == 16
    assert any(topic.topic_id)
    assert name in [each.name for each in client.topics()]


def test_errors_have_kafkas_names(client: Client, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic()
    with pytest.raises(BrokerError, match=f"fetch from {topic}-0 at 7: OFFSET_OUT_OF_RANGE: ") as refused:
        client.fetch_raw(topic, 0, 7)
    assert (refused.value.name, refused.value.retriable, refused.value.code) == ("OFFSET_OUT_OF_RANGE", False, 1)
    with pytest.raises(BrokerError, match="CORRUPT_MESSAGE"):
        client.produce_raw(topic, 0, batch(b"x")[:-1] + b"\x02")
    with pytest.raises(ClientError, match="no broker 99"):
        client.broker(99)


def test_an_unknown_topic_is_looked_for_until_time_is_up(broker: EmbeddedBroker) -> None:
    with Client(broker.bootstrap_servers, timeout_s=0.2) as client:
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            client.fetch_raw("nowhere", 0, 0)
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            client.fetch_raw(broker.create_topic(), 5, 0)


class Leaderless(Client):
    """Hears of no leader in its first answers, as of a cluster whose node has just died."""

    def __init__(self, bootstrap: str, answers: int, **options: Any) -> None:
        super().__init__(bootstrap, **options)
        self.left = answers

    def metadata(self, topics: Iterable[str] | None = None, *, create: bool = False) -> Any:
        send = super().send
        self.send = lambda *asked: self.without_leaders(send(*asked))  # type: ignore[method-assign]
        try:
            return super().metadata(topics, create=create)
        finally:
            del self.send

    def without_leaders(self, answer: Any) -> Any:
        if answer.topics and self.left > 0:
            self.left -= 1
            for part in answer.topics[0].partitions:
                part.leader_id, part.error_code = -1, ErrorCode.LEADER_NOT_AVAILABLE
        return answer


ASKED: dict[str, Callable[[Client, str], object]] = {
    "produce": lambda client, topic: client.produce_raw(topic, 0, batch(b"a")),
    "fetch": lambda client, topic: client.fetch_raw(topic, 0, 0, max_wait_ms=0),
    "offsets": lambda client, topic: client.list_offsets(topic, [0]),
    "open transactions": lambda client, topic: open_transactions(client, [topic]),
    "abort": lambda client, topic: abort_transaction(client, OpenTransaction(topic, 0, 7, 0, 0, 0, 0)),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_a_leader_that_is_missing_at_this_moment_is_waited_for(
    broker: EmbeddedBroker, ask: Callable[[Client, str], object]
) -> None:
    topic = broker.create_topic()
    with Leaderless(broker.bootstrap_servers, 3) as client:
        ask(client, topic)
        assert client.left == 0


def test_a_leader_that_stays_away_is_told_when_time_is_up(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic()
    with (
        Leaderless(broker.bootstrap_servers, 1_000, timeout_s=0.1) as client,
        pytest.raises(BrokerError, match=f"{topic}-0: LEADER_NOT_AVAILABLE"),
    ):
        client.fetch_raw(topic, 0, 0)


def test_a_topic_that_was_deleted_and_made_anew_is_found_again(client: Client, broker: EmbeddedBroker) -> None:
    """Its id is another one, which the client has to learn: UNKNOWN_TOPIC_ID is retried with new metadata."""
    topic = broker.create_topic()
    client.produce_raw(topic, 0, batch(b"old"))
    broker.delete_topic(topic)
    broker.create_topic(topic)
    sent = client.produce_raw(topic, 0, batch(b"new"))
    assert sent is not None
    assert sent.base_offset == 0


def test_a_broker_that_comes_back_is_connected_again(broker: EmbeddedBroker) -> None:
    topic = broker.create_topic()
    with Client(broker.bootstrap_servers) as client:
        client.produce_raw(topic, 0, batch(b"a"))
        broker.restart()
        with pytest.raises(ConnectionClosedError):  # an answer may be lost: the caller decides whether to ask again
            client.produce_raw(topic, 0, batch(b"b"))
        assert client.fetch_raw(topic, 0, 0).high_watermark == 1


def test_a_connection_that_its_user_has_closed_is_made_again(client: Client) -> None:
    """A caller may take the failure of one broker and go on; the next request must not meet the closed socket."""
    client.metadata([])
    (node_id,) = client.broker_ids()
    client.broker(node_id).close()
    assert client.broker(node_id).send(ListGroupsRequest()).groups is not None


def test_group_offsets_are_deleted(client: Client, broker: EmbeddedBroker) -> None:
    topic = broker.create_topic(partitions=2)
    rows = [OffsetCommitRequestPartition(p, 5) for p in (0, 1)]
    commit = OffsetCommitRequest("g", member_id="", topics=[OffsetCommitRequestTopic(topic, partitions=rows)])
    answer = client.send_to_coordinator("g", commit, 9)
    assert [part.error_code for part in answer.topics[0].partitions] == [0, 0]
    host, _, port = broker.bootstrap_servers.rpartition(":")
    delete_offsets([(host, int(port))], "g", [(topic, 0)])
    left = client.send_to_coordinator("g", OffsetFetchRequest(groups=[OffsetFetchRequestGroup("g", topics=None)]), 9)
    assert [part.partition_index for part in left.groups[0].topics[0].partitions] == [1]
    with pytest.raises(BrokerError, match="the offsets of group nobody: GROUP_ID_NOT_FOUND"):
        delete_offsets([(host, int(port))], "nobody", [(topic, 0)])


def test_the_second_bootstrap_address_will_do(broker: EmbeddedBroker) -> None:
    with Client(f"127.0.0.1:1,{broker.bootstrap_servers}") as client:
        assert client.metadata([]).brokers


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "localhost:port", ","])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        Client(text)
