"""What users of `ottla.testing` rely on, seen from outside: real clients against the embedded broker."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from ottla.client import BrokerError
from ottla.testing import EmbeddedBroker, ServeRefusedError


def produce(broker: EmbeddedBroker, topic: str, value: bytes) -> int:
    """Produce one record and return its offset."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 2})
    producer.produce(topic, value, on_delivery=lambda error, message: offsets.append(error or message.offset()))
    producer.flush(30)
    return offsets[0]


def consume(broker: EmbeddedBroker, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "embedded",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        return [message.value() for message in consumer.consume(count, 30)]
    finally:
        consumer.close()


def test_records_go_in_and_come_out() -> None:
    with EmbeddedBroker() as broker:
        topic = broker.create_topic(partitions=1)
        assert [produce(broker, topic, b"a"), produce(broker, topic, b"b")] == [0, 1]
        assert consume(broker, topic, 2) == [b"a", b"b"]


async def test_it_is_an_async_context_manager_too() -> None:
    async with EmbeddedBroker() as broker:
        topic = await asyncio.to_thread(broker.create_topic)
        assert await asyncio.to_thread(produce, broker, topic, b"a") == 0


def test_a_restart_keeps_the_address_and_the_records() -> None:
    with EmbeddedBroker() as broker:
        topic = broker.create_topic()
        produce(broker, topic, b"a")
        address = broker.bootstrap_servers
        broker.restart()
        assert broker.bootstrap_servers == address
        assert produce(broker, topic, b"b") == 1
        assert consume(broker, topic, 2) == [b"a", b"b"]


def test_brokers_live_side_by_side() -> None:
    with EmbeddedBroker() as one, EmbeddedBroker() as other:
        assert one.port != other.port
        one.create_topic("here")
        other.create_topic("here")
        assert produce(one, "here", b"a") == 0
        assert consume(other, "here", 0) == []


def test_settings_are_kafkas() -> None:
    with EmbeddedBroker(settings={"auto.create.topics.enable": False, "num.partitions": 3}) as broker:
        name = broker.create_topic(partitions=-1)
        assert produce(broker, name, b"x") == 0
        with pytest.raises(BrokerError, match="INVALID_CONFIG"):
            broker.create_topic(configs={"no.such.config": 1})
    with pytest.raises(ServeRefusedError, match=r"no\.such\.setting"):
        EmbeddedBroker(settings={"no.such.setting": "1"}).start()


def test_a_port_that_is_taken_is_refused_without_advice_on_commands() -> None:
    with EmbeddedBroker() as broker, pytest.raises(ServeRefusedError, match=f"{broker.port}.*in use") as refused:
        EmbeddedBroker(port=broker.port).start()
    assert "--" not in str(refused.value)


def test_a_directory_that_was_given_stays(tmp_path: Path) -> None:
    with EmbeddedBroker(directory=tmp_path) as broker:
        broker.create_topic("kept")
        produce(broker, "kept", b"a")
        with pytest.raises(ServeRefusedError, match="locked"):
            EmbeddedBroker(directory=tmp_path).start()
    with EmbeddedBroker(directory=tmp_path) as broker:
        assert produce(broker, "kept", b"b") == 1


def test_a_temporary_directory_goes_with_the_broker() -> None:
    with EmbeddedBroker() as broker:
        directory = broker.directory
        assert os.path.isdir(directory)
    assert not os.path.exists(directory)
    broker.stop()
    with pytest.raises(RuntimeError):
        EmbeddedBroker().bootstrap_servers  # noqa: B018


def test_the_plugin_needs_nothing_but_the_package(tmp_path: Path) -> None:
    """A user's suite that only names the fixtures: one broker for the run, a topic for each test."""
    (tmp_path / "test_theirs.py").write_text(
        "from confluent_kafka.admin import AdminClient\n"
        "seen = []\n"
        "def test_one(ottla_broker, ottla_topic):\n"
        "    admin = AdminClient({'bootstrap.servers': ottla_broker.bootstrap_servers})\n"
        "    assert ottla_topic in admin.list_topics(timeout=30).topics\n"
        "    seen.append((ottla_broker, ottla_topic))\n"
        "def test_two(ottla_broker, ottla_topic):\n"
        "    broker, topic = seen[0]\n"
        "    assert broker is ottla_broker and topic != ottla_topic\n"
        "    admin = AdminClient({'bootstrap.servers': ottla_broker.bootstrap_servers})\n"
        "    assert topic not in admin.list_topics(timeout=30).topics\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "2 passed" in ended.stdout


def test_a_suite_may_have_a_broker_with_its_own_settings(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "from ottla.testing import EmbeddedBroker\n"
        "@pytest.fixture(scope='session')\n"
        "def ottla_broker():\n"
        "    with EmbeddedBroker(settings={'auto.create.topics.enable': False}) as broker:\n"
        "        yield broker\n"
    )
    (tmp_path / "test_theirs.py").write_text(
        "from ottla.client import Client\n"
        "def test_one(ottla_broker, ottla_topic):\n"
        "    with Client(ottla_broker.bootstrap_servers) as client:\n"
        "        answer = client.metadata([ottla_topic, 'absent'], create=True)\n"
        "    assert [topic.error_code for topic in answer.topics] == [0, 3]\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
