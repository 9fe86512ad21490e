"""`ottla topics`, `configs` and `records` against a real node."""

import uuid
from base64 import urlsafe_b64encode

import pytest

from ottla.cli.topics import shown_id
from ottla.client import Client
from ottla.testing import EmbeddedBroker

from .conftest import Run


@pytest.fixture
def name() -> str:
    return f"cli-{uuid.uuid4().hex[:8]}"


def test_a_topic_is_created_described_and_deleted(ottla: Run, name: str) -> None:
    ottla("topics", "create", name, "--partitions", "3", "--config", "retention.ms=1000")
    described = ottla("topics", "describe", name, "--format", "json").json()[0]
    assert described["topic"] == name
    assert described["configs"] == {"retention.ms": "1000"}
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert [name, "3", "1"] in ottla("topics", "list").rows()
    ottla("topics", "delete", name)
    assert name not in ottla("topics", "list").out


def test_offsets_and_sizes_are_shown(ottla: Run, name: str) -> None:
    ottla("topics", "create", name, "--partitions", "2")
    ottla("produce", name, "-p", "1", stdin="a\nb\nc\n")
    ottla("records", "delete", name, "-p", "1", "--before", "1")
    described = ottla("topics", "describe", name)
    heading, first, second = (line.split() for line in described.out.splitlines()[2:5])
    assert heading[-3:] == ["EARLIEST", "LATEST", "SIZE"]
    assert first[-3:] == ["0", "0", "0B"]
    assert second[-3:-1] == ["1", "3"]
    (topic,) = ottla("topics", "describe", name, "--format", "json").json()
    assert topic["partitions"][1]["size"] > 0
    assert second[-1] == f"{topic['partitions'][1]['size']}B"
    assert ottla("topics", "describe", name, "-X", "client.id=me").out == described.out
    ottla("topics", "delete", name)


def test_what_kafka_says_is_told_in_a_sentence(ottla: Run, name: str) -> None:
    ottla("topics", "create", name)
    again = ottla("topics", "create", name, code=1)
    assert again.err == f"ottla: {name}: Topic '{name}' already exists (TOPIC_ALREADY_EXISTS).\n"
    ottla("topics", "create", name, "--if-not-exists")
    ottla("topics", "delete", name)
    assert "UNKNOWN_TOPIC_OR_PARTITION" in ottla("topics", "delete", name, code=1).err
    ottla("topics", "delete", name, "--if-exists")


def test_validate_only_creates_nothing(ottla: Run, name: str) -> None:
    ottla("topics", "create", name, "--validate-only")
    assert name not in ottla("topics", "list").out


def test_partitions_are_added(ottla: Run, name: str) -> None:
    ottla("topics", "create", name)
    ottla("topics", "add-partitions", name, "--total", "4")
    assert [name, "4", "1"] in ottla("topics", "list").rows()
    assert "INVALID_PARTITIONS" in ottla("topics", "add-partitions", name, "--total", "2", code=1).err


def test_internal_topics_are_shown_when_asked_for(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, stdin="x\n")
    ottla("consume", ottla_topic, "--group", "internal", "--from-beginning", "-n", "1")
    assert "__consumer_offsets" not in ottla("topics", "list").out
    assert "__consumer_offsets" in ottla("topics", "list", "--internal").out


def test_configs_are_altered_and_described(ottla: Run, ottla_topic: str) -> None:
    ottla("topics", "alter", ottla_topic, "--set", "retention.ms=5000", "--set", "cleanup.policy=delete")
    ottla("configs", "alter", "topic", ottla_topic, "--append", "cleanup.policy=compact", "--delete", "retention.ms")
    described = ottla("configs", "describe", "topic", ottla_topic, "--format", "json").json()
    assert {each["name"]: each["value"] for each in described} == {"cleanup.policy": "delete,compact"}
    everything = ottla("configs", "describe", "topic", ottla_topic, "--all", "--format", "json").json()
    assert {"name", "value", "source", "read_only", "sensitive"} == set(everything[0])
    assert "INVALID_CONFIG" in ottla("topics", "alter", ottla_topic, "--set", "no.such.config=1", code=1).err
    assert "Nothing to alter" in ottla("configs", "alter", "topic", ottla_topic, code=2).err


def test_configs_of_brokers_and_groups_are_described(ottla: Run) -> None:
    named = {each["name"] for each in ottla("configs", "describe", "broker", "1", "--all", "--format", "json").json()}
    assert {"log.segment.bytes", "num.partitions"} <= named
    ottla("configs", "alter", "group", "some-group", "--set", "consumer.session.timeout.ms=50000")
    row = ottla("configs", "describe", "group", "some-group", "--format", "json").json()[0]
    assert (row["name"], row["value"], row["source"]) == ("consumer.session.timeout.ms", "50000", "GROUP_CONFIG")


def test_records_are_deleted(ottla: Run, ottla_topic: str) -> None:
    ottla("produce", ottla_topic, stdin="a\nb\nc\n")
    assert ottla("records", "delete", ottla_topic, "--before", "2").rows() == [[ottla_topic, "0", "2"]]
    assert ottla("consume", ottla_topic, "--from-beginning", "--exit-at-end").out == "c\n"
    assert "OFFSET_OUT_OF_RANGE" in ottla("records", "delete", ottla_topic, "--before", "99", code=1).err
    assert ottla("records", "delete", ottla_topic, "--before", "end").rows() == [[ottla_topic, "0", "3"]]


def test_a_topic_id_is_written_as_kafka_and_the_files_write_it(ottla: Run, ottla_topic: str) -> None:
    assert shown_id("+/8AAAAAAAAAAAAAAAAAAA==") == "-_8AAAAAAAAAAAAAAAAAAA"
    (described,) = ottla("topics", "describe", ottla_topic, "--format", "json").json()
    with Client(ottla("nodes", "list").rows()[0][1]) as client:
        topic_id = client.topic(ottla_topic).topic_id
    assert described["topic_id"] == urlsafe_b64encode(topic_id).decode().rstrip("=")


def test_the_nodes_are_listed(ottla: Run, ottla_broker: EmbeddedBroker) -> None:
    (node,) = ottla("nodes", "list", "--bootstrap-server", ottla_broker.bootstrap_servers).rows()
    assert node == ["1", ottla_broker.bootstrap_servers, "-", "up", "true"]
