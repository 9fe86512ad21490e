"""Faults that only a node can remember, on a real node: what the doctor says of them, and what it says without."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter

import pytest
from confluent_kafka import Producer

from ottla.broker.api import k10901_describe_observations
from ottla.client import Client, private_requests, read_together
from ottla.client.errors import ClientError, UnsupportedVersionError
from ottla.client.observations import observations
from ottla.doctor import Evidence, Snapshot, diagnose, gather
from ottla.doctor.checks import clients
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.private_requests import parsed
from ottla.testing import EmbeddedBroker

WINDOW_MS = 30_000
REBALANCE_MS = 200


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(settings={"group.initial.rebalance.delay.ms": "0"}) as made:
        yield made


def _seen(broker: EmbeddedBroker) -> Snapshot:
    with Client(broker.bootstrap_servers) as client:
        return gather(client)


def _findings(broker: EmbeddedBroker, check: str, first: Snapshot | None = None) -> dict[str, str]:
    """What a check says now, by subject. `first`: an earlier snapshot, which counts as half a minute old."""
    last = _seen(broker)
    first = replace(first or last, at_ms=last.at_ms - WINDOW_MS)
    return {each.finding.subject: each.finding.sentence for each in diagnose(Evidence(first, last), [check])}


def _client(broker: EmbeddedBroker, name: str) -> Client:
    return Client(broker.bootstrap_servers, client_id=name)


def _join(client: Client, group: str) -> JoinGroupResponse:
    """Join as a new member whose rebalance timeout is short, and get an assignment."""
    protocols = [JoinGroupRequestProtocol("range", b"")]
    member = ""
    while True:
        asked = JoinGroupRequest(group, 10_000, REBALANCE_MS, member, None, "consumer", protocols)
        answer: JoinGroupResponse = client.send_to_coordinator(group, asked, 5)
        if not answer.error_code:
            break
        member = answer.member_id
    assigned = [SyncGroupRequestAssignment(each.member_id, b"") for each in answer.members]
    synced = SyncGroupRequest(group, answer.generation_id, answer.member_id, assignments=assigned)
    client.send_to_coordinator(group, synced, 3)
    return answer


def test_a_client_that_does_not_poll_in_time(broker: EmbeddedBroker) -> None:
    group = "slow"
    with _client(broker, "worker-1") as one, _client(broker, "worker-2") as two:
        for number in range(4):  # each join ends the membership of the other one, which does not join again
            _join(two if number % 2 else one, group)
            assert not _findings(broker, "slow-polls") or number == 3
        found = _findings(broker, "slow-polls")
    assert "worker-1 (/127.0.0.1) of slow took over 0 s for one poll, 2 times in 10 min" in found[group]


def test_a_batch_that_is_too_large(broker: EmbeddedBroker) -> None:
    name = broker.create_topic(configs={"max.message.bytes": "1000"})
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "loader", "log_level": 0})
    producer.produce(name, b"x" * 500)
    producer.flush(30)
    assert not _findings(broker, "too-large-batches")
    producer.produce(name, b"x" * 2_000)
    producer.flush(30)
    found = _findings(broker, "too-large-batches")
    assert f"{name} has refused 1 batch request of loader: A batch of 2" in found[name]
    assert "exceeds max.message.bytes, 1000" in found[name]


def test_a_client_that_a_quota_slows_down(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "greedy", "log_level": 0})
    producer.produce(name, b"x")
    producer.flush(30)
    first = _seen(broker)
    with _client(broker, "admin") as client:
        entry = RequestEntryData([RequestEntityData("client-id", "greedy")], [OpData("producer_byte_rate", 1_000.0)])
        assert client.send(AlterClientQuotasRequest([entry])).entries[0].error_code == 0
    assert not _findings(broker, "throttled", first)
    producer.produce(name, b"x" * 100_000)
    producer.flush(30)
    assert "greedy (User:ANONYMOUS) was throttled for" in _findings(broker, "throttled", first)["greedy"]


def test_a_reader_whose_records_wait_for_more_bytes(broker: EmbeddedBroker) -> None:
    name = broker.create_topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    producer.produce(name, b"x")
    producer.flush(30)
    with _client(broker, "reader") as client:
        _fetch(client, name, min_bytes=1)
        first = _seen(broker)
        _fetch(client, name, min_bytes=1)
        assert not _findings(broker, "waits-for-bytes", first)
        _fetch(client, name, min_bytes=100_000)
        said = _findings(broker, "waits-for-bytes", first)["reader"]
    assert "gets its records 5 ms late: 4 of 4 waiting fetches had records" in said


def _fetch(client: Client, name: str, *, min_bytes: int) -> None:
    """Fetch the topic's record four times."""
    parts = [FetchPartition(0, fetch_offset=0, partition_max_bytes=200_000)]
    topics = [FetchTopic(name, partitions=parts)]
    asked = FetchRequest(max_wait_ms=5, min_bytes=min_bytes, max_bytes=200_000, session_epoch=-1, topics=topics)
    for _ in range(4):
        assert client.broker(1).send(asked, 12).responses


def test_a_group_alone_can_be_asked_for(broker: EmbeddedBroker) -> None:
    with _client(broker, "worker-3") as client:
        _join(client, "one")
        _join(client, "other")
        answer = observations(client, [1], "one")[1]
        assert not isinstance(answer, ClientError)
        assert [each.group_id for each in answer.groups] == ["one"]
        assert not answer.connections
        assert not answer.errors


def test_on_other_kafkas_the_doctor_says_that_it_cannot_know(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        read_together, "ask_nodes", lambda client, asked: dict.fromkeys(asked, UnsupportedVersionError("no"))
    )
    found = _seen(broker)
    assert found.observed == ()
    assert [each for each in found.unseen if "only Ottla remembers" in each and "1 node" in each]


def test_a_node_of_an_earlier_version_lacks_the_changes_of_replicas_and_configs(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _seen(broker)
    assert not [each for each in found.unseen if "does not remember them" in each]
    monkeypatch.setattr(private_requests, "parsed", lambda text: {**parsed(text), ApiKey.DESCRIBE_OBSERVATIONS: (0, 0)})
    found = _seen(broker)
    assert len(found.observed) == 1
    assert [each for each in found.unseen if "on 1 node, whose version of Ottla does not remember them" in each]


def test_a_client_that_speaks_tls_to_a_plain_listener(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    for number in range(3):
        assert bool(_findings(broker, "strangers")) == (number > 2)
        with socket.create_connection((host, int(port)), 30) as plain:
            plain.sendall(b"\x16\x03\x01\x02\x00\x01")
            assert plain.recv(1) == b"", "the node closes it"
    said = _findings(broker, "strangers")["node 1"]
    assert said.startswith("Node 1 has closed 3 connections from 127.0.0.1: it began a TLS handshake on a plaintext")


def test_a_request_during_which_the_event_loop_stands_still(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_of = k10901_describe_observations.__dict__["_answer"]

    def slow(*given: object) -> object:
        until = perf_counter() + 0.11
        while perf_counter() < until:
            pass  # as a handler with much to do
        return answer_of(*given)

    monkeypatch.setattr(clients, "STILL_MS", 220)
    with _client(broker, "curious") as client, monkeypatch.context() as patch:
        patch.setattr(k10901_describe_observations, "_answer", slow)
        for _ in range(2):
            assert observations(client, [1], "none")
    last = _seen(broker)
    said = [each.finding.sentence for each in diagnose(Evidence(last, last), ["slow-turns"])]
    mine = [each for each in said if "by DescribeObservations of curious." in each and "were 2 such turns" in each]
    assert len(mine) == 1, said
