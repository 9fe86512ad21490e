"""`ottla transactions` against a real node."""

import uuid
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from ottla.client import Client
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from ottla.testing import EmbeddedBroker

WAIT_S = 30.0


@pytest.fixture
def topic(ottla_broker: EmbeddedBroker) -> str:
    return ottla_broker.create_topic(f"t-{uuid.uuid4().hex[:8]}")


def open_one(ottla_broker: EmbeddedBroker, topic: str) -> tuple[Producer, str]:
    name = f"tx-{topic}"
    producer = Producer({"bootstrap.servers": ottla_broker.bootstrap_servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(WAIT_S)
    return producer, name


def test_what_is_open_is_listed_and_described(ottla: Any, ottla_broker: EmbeddedBroker, topic: str) -> None:
    producer, name = open_one(ottla_broker, topic)
    listed = {row["transactional_id"]: row for row in ottla("transactions", "list", "--format", "json").json()}
    assert listed[name]["state"] == "Ongoing"
    assert name not in ottla("transactions", "list", "--state", "Empty").out
    assert name not in ottla("transactions", "list", "--longer-than-ms", "600000").out
    (row,) = ottla("transactions", "describe", name, "--format", "json").json()
    assert (row["state"], row["partitions"], row["timeout_ms"]) == ("Ongoing", f"{topic}-0", 60_000)
    assert row["open_ms"] >= 0
    assert ottla("transactions", "find-hanging", "--topic", topic, "--idle-ms", "0", "--format", "json").json() == []
    producer.commit_transaction(WAIT_S)
    (row,) = ottla("transactions", "describe", name, "--format", "json").json()
    assert (row["state"], row["open_ms"]) == ("CompleteCommit", None)


def test_what_has_ended_is_open_no_longer_however_long_ago_it_began(
    ottla: Any, ottla_broker: EmbeddedBroker, topic: str
) -> None:
    producer, ended = open_one(ottla_broker, topic)
    producer.commit_transaction(WAIT_S)
    other, opened = open_one(ottla_broker, ottla_broker.create_topic(f"{topic}-2"))
    listed = [row["transactional_id"] for row in ottla("transactions", "list", "--format", "json").json()]
    longer = ottla("transactions", "list", "--longer-than-ms", "1", "--format", "json").json()
    assert {ended, opened} <= {*listed}
    assert ended not in (named := [row["transactional_id"] for row in longer])
    assert opened in named
    other.abort_transaction(WAIT_S)


def test_an_open_one_is_aborted_by_its_id(ottla: Any, ottla_broker: EmbeddedBroker, topic: str) -> None:
    """Its producer is as good as dead, and its readers would wait for its time-out."""
    producer, name = open_one(ottla_broker, topic)
    assert "Would abort the transaction" in ottla("transactions", "abort", name, "--dry-run").out
    failed = ottla("transactions", "abort", name, stdin="n\n", code=1)
    assert "If its producer is alive, it is fenced" in failed.err
    assert "Nothing was changed" in failed.err
    done = ottla("transactions", "abort", name, "--yes")
    assert done.out.startswith(f"Aborted the transaction of {name} (producer ")
    assert "has no open transaction: it is in state Empty" in ottla("transactions", "abort", name, "-y", code=1).err
    with pytest.raises(KafkaException) as fenced:
        producer.commit_transaction(WAIT_S)
    assert fenced.value.args[0].fatal()


def test_an_open_one_is_aborted_by_its_place(ottla: Any, ottla_broker: EmbeddedBroker, topic: str) -> None:
    _, name = open_one(ottla_broker, topic)
    place = ("transactions", "abort", "--topic", topic, "--partition", "0", "--start-offset", "0")
    assert "Would abort the transaction" in ottla(*place).out
    assert f"transaction of {name}" in ottla(*place, "--execute", stdin="y\n").out
    assert "No transaction is open" in ottla(*place, "--execute", code=1).err


NO_TOPIC = "There is no topic nosuch. `ottla topics list` shows the existing ones."


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("describe nosuch", 1, "There is no transactional id nosuch. `ottla transactions list` shows"),
        ("find-hanging --topic nosuch", 1, NO_TOPIC),
        ("abort --topic nosuch --partition 0 --start-offset 0", 1, NO_TOPIC),
        ("abort nosuch", 1, "There is no transactional id nosuch. `ottla transactions list` shows"),
        ("abort", 2, "Name a transactional id, or --topic, --partition and --start-offset."),
        ("abort nosuch --topic t", 2, "Name a transactional id, or --topic, --partition and --start-offset."),
        (f"list --longer-than-ms {2**63}", 2, "Invalid value for '--longer-than-ms'"),
        ("list --state open", 2, "'open' is no state of a transaction: choose of Empty, Ongoing, PrepareCommit"),
    ],
)
def test_what_is_not_there_is_said(ottla: Any, words: str, code: int, said: str) -> None:
    assert ottla("transactions", *words.split(), code=code).err.startswith(f"ottla: {said}")


def test_one_that_hangs_is_found_and_aborted(ottla: Any, topic: str) -> None:
    """Written without asking any coordinator, as by a broker that does not verify."""
    with EmbeddedBroker(settings={"transaction.partition.verification.enable": "false"}) as careless:
        name = careless.create_topic(topic)
        batch = build_batch([Record(value=b"x")], producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
        data = TopicProduceData(name, partition_data=[PartitionProduceData(0, bytes(batch))])
        with Client(careless.bootstrap_servers) as client:
            answer = client.leader(name, 0).send(ProduceRequest("nobody", -1, 1000, [data]), 9)
            assert answer.responses[0].partition_responses[0].error_code == 0
        where = ("--bootstrap", careless.bootstrap_servers)
        twice = ("--topic", name, "--topic", name)
        (row,) = ottla("transactions", "find-hanging", "--idle-ms", "0", "--format", "json", *where, *twice).json()
        assert (row["topic"], row["partition"], row["producer_id"], row["start_offset"]) == (name, 0, 77, 0)
        asked = ("transactions", "abort", "--topic", name, "--partition", "0", "--start-offset", "0", *where)
        assert "Would abort" in ottla(*asked).out
        assert "Aborted" in ottla(*asked, "--execute").out
        assert ottla("transactions", "find-hanging", "--idle-ms", "0", "--format", "json", *where).json() == []
