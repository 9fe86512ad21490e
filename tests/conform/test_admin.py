"""Every admin call that Ottla serves, by the admin clients of confluent-kafka, kafka-python and aiokafka."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioType
from confluent_kafka import ElectionType, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)
from kafka import TopicPartition as PyPartition  # pyright: ignore[reportAttributeAccessIssue]
from kafka.admin import ConfigResource as PyResource
from kafka.admin import ConfigResourceType as PyType
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PyTopic
from kafka.admin import OffsetSpec as PySpec  # pyright: ignore[reportAttributeAccessIssue]
from kafka.errors import (
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from ottla.testing import EmbeddedBroker
from tests.harness import waiting

WAIT_S = 30


@pytest.fixture
def topic() -> str:
    return f"admin-{uuid.uuid4().hex[:8]}"


def produce(broker: EmbeddedBroker, topic: str, count: int, **how: Any) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **how})
    for index in range(count):
        producer.produce(topic, b"v%d" % index, key=b"k", partition=0, timestamp=1_700_000_000_000 + index)
    assert producer.flush(WAIT_S) == 0


def soon(ask: Callable[[], Any], wanted: Any) -> None:
    """Ask until this is the answer: one node of several hears of a change later than another."""
    waiting.soon(lambda: ask() == wanted, ask)


# ---- confluent-kafka -----------------------------------------------------------------------------------------------


@pytest.fixture
def confluent(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers})


def results(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(WAIT_S) for future in futures.values()]


def failure(futures: dict[Any, Any]) -> str:
    with pytest.raises(KafkaException) as raised:
        results(futures)
    return raised.value.args[0].name()


def test_confluent_topics(broker: EmbeddedBroker, confluent: AdminClient, topic: str) -> None:
    new = NewTopic(topic, 2, 1, config={"retention.ms": "-1"})
    assert results(confluent.create_topics([new], validate_only=True)) == [None]
    assert topic not in confluent.list_topics(timeout=WAIT_S).topics
    assert results(confluent.create_topics([new])) == [None]
    assert failure(confluent.create_topics([new])) == "TOPIC_ALREADY_EXISTS"
    assert failure(confluent.create_topics([NewTopic("a b", 1, 1)])) == "TOPIC_EXCEPTION"
    assert failure(confluent.create_topics([NewTopic(topic + "x", 1, 3)])) == "INVALID_REPLICATION_FACTOR"
    assert failure(confluent.create_topics([NewTopic(topic + "x", 1, 1, config={"x": "y"})])) == "INVALID_CONFIG"
    assert results(confluent.create_topics([NewTopic(topic + "a", 2, replica_assignment=[[1], [1]])])) == [None]
    (described,) = results(confluent.describe_topics(TopicCollection([topic]), include_authorized_operations=True))
    assert [partition.id for partition in described.partitions] == [0, 1]
    assert [partition.leader.id for partition in described.partitions] == [1, 1]
    assert len(described.authorized_operations) == 8
    assert results(confluent.create_partitions([NewPartitions(topic, 5)])) == [None]
    assert failure(confluent.create_partitions([NewPartitions(topic, 3)])) == "INVALID_PARTITIONS"
    fresh = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(fresh.list_topics(topic, timeout=WAIT_S).topics[topic].partitions) == 5
    assert results(confluent.delete_topics([topic, topic + "a"])) == [None, None]
    assert failure(confluent.delete_topics([topic])) == "UNKNOWN_TOPIC_OR_PART"


def test_confluent_configs(confluent: AdminClient, topic: str) -> None:
    results(confluent.create_topics([NewTopic(topic, 1, 1)]))
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

    def described() -> dict[str, Any]:
        (configs,) = results(confluent.describe_configs([resource]))
        return configs

    before = described()
    assert len(before) >= 33
    assert before["retention.ms"].value == "604800000"
    assert before["retention.ms"].is_default
    changes = [
        ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    ]
    changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    assert results(confluent.incremental_alter_configs([changed])) == [None]
    soon(lambda: [described()[name].value for name in ("retention.ms", "cleanup.policy")], ["5000", "delete,compact"])
    assert not described()["retention.ms"].is_default
    bad = [ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)]
    refused = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=bad)
    assert failure(confluent.incremental_alter_configs([refused])) == "INVALID_CONFIG"
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        replaced = confluent.alter_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"flush.ms": "9"})]
        )
    assert results(replaced) == [None]
    soon(lambda: [described()[name].value for name in ("flush.ms", "retention.ms")], ["9", "604800000"])
    (broker_configs,) = results(confluent.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")]))
    assert broker_configs["num.partitions"].is_read_only
    assert broker_configs["ssl.key.password"].is_sensitive


def test_confluent_sets_what_has_no_meaning_here(confluent: AdminClient) -> None:
    node = ConfigResource(ConfigResource.Type.BROKER, "1")
    wanted = {"log.cleaner.threads": "2", "sasl.kerberos.min.time.before.relogin": "58000"}
    changes = [ConfigEntry(name, to, incremental_operation=AlterConfigOpType.SET) for name, to in wanted.items()]
    changed = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=changes)
    assert results(confluent.incremental_alter_configs([changed])) == [None]
    (shown,) = results(confluent.describe_configs([node]))
    assert {name: shown[name].value for name in wanted} == wanted


def test_confluent_asks_what_operators_ask(confluent: AdminClient, topic: str) -> None:
    results(confluent.create_topics([NewTopic(topic, 1, 1)]))
    credentials: Any = confluent.describe_user_scram_credentials(["ada"])
    place = ResourceType.TOPIC, topic, ResourcePatternType.LITERAL
    binding = AclBinding(*place, "User:ada", "*", AclOperation.READ, AclPermissionType.ALLOW)
    assert failure(confluent.create_acls([binding])) == "SECURITY_DISABLED"
    with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
        credentials["ada"].result(WAIT_S)
    partition = TopicPartition(topic, 0)
    elected = confluent.elect_leaders(ElectionType.PREFERRED, [partition]).result(WAIT_S)
    assert elected[partition].code() == KafkaError.ELECTION_NOT_NEEDED


def test_kafka_python_asks_what_operators_ask(broker: EmbeddedBroker, topic: str) -> None:
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        admin.create_topics([PyTopic(topic, 1, 1)])
        assert admin.list_partition_reassignments() == {}
        assert not any(admin.list_transactions().values())
        assert admin.describe_metadata_quorum()["topics"][0]["partitions"][0]["leader_id"] == 1
    finally:
        admin.close()


def test_confluent_offsets_and_records(broker: EmbeddedBroker, confluent: AdminClient, topic: str) -> None:
    results(confluent.create_topics([NewTopic(topic, 1, 1, config={"retention.ms": "-1"})]))
    produce(broker, topic, 5)
    partition = TopicPartition(topic, 0)

    def offset(spec: Any) -> int:
        (found,) = results(confluent.list_offsets({partition: spec}))
        return found.offset

    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest())) == (0, 5)
    assert offset(OffsetSpec.max_timestamp()) == 4
    assert offset(OffsetSpec.for_timestamp(1_700_000_000_002)) == 2
    (deleted,) = results(confluent.delete_records([TopicPartition(topic, 0, 3)]))
    assert deleted.low_watermark == 3
    assert offset(OffsetSpec.earliest()) == 3
    assert failure(confluent.delete_records([TopicPartition(topic, 0, 30)])) == "OFFSET_OUT_OF_RANGE"


def test_confluent_cluster(broker: EmbeddedBroker, confluent: AdminClient) -> None:
    cluster = confluent.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    host, _, port = broker.bootstrap_servers.rpartition(":")
    assert [(node.id, node.host, node.port) for node in cluster.nodes] == [(1, host, int(port))]
    assert cluster.controller.id == 1
    assert len(cluster.authorized_operations) == 7
    assert cluster.cluster_id == confluent.list_topics(timeout=WAIT_S).cluster_id


# ---- kafka-python --------------------------------------------------------------------------------------------------


@pytest.fixture
def python(broker: EmbeddedBroker) -> Iterator[Any]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    yield client
    client.close()


def test_python_topics(python: Any, topic: str) -> None:
    new = PyTopic(topic, num_partitions=2, replication_factor=1)
    python.create_topics([new], validate_only=True)
    assert topic not in python.list_topics()
    created = python.create_topics([new])["topics"][0]
    assert (created["error_code"], created["num_partitions"]) == (0, 2)
    with pytest.raises(TopicAlreadyExistsError):
        python.create_topics([new])
    with pytest.raises(InvalidReplicationFactorError):
        python.create_topics([PyTopic(topic + "x", 1, 2)])
    (described,) = python.describe_topics([topic])
    assert (described["topic_id"], len(described["partitions"])) == (created["topic_id"], 2)
    assert len(described["authorized_operations"]) == 8
    python.create_partitions({topic: 4})
    page = python.describe_topic_partitions([topic], response_partition_limit=3)
    assert [partition["partition_index"] for partition in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"] is not None
    python.delete_topics([topic])
    with pytest.raises(UnknownTopicOrPartitionError):
        python.delete_topics([topic])


def test_python_configs(python: Any, topic: str) -> None:
    python.create_topics([PyTopic(topic, 1, 1, topic_configs={"retention.ms": "5000"})])

    def modified() -> dict[str, str]:
        (configs,) = python.describe_configs([PyResource(PyType.TOPIC, topic)])["topic"].values()
        return {name: config["value"] for name, config in configs.items()}

    soon(modified, {"retention.ms": "5000"})
    python.alter_configs([PyResource(PyType.TOPIC, topic, configs={"flush.ms": "7"})])
    soon(modified, {"retention.ms": "5000", "flush.ms": "7"})
    unset: Any = {"retention.ms": None}
    python.reset_configs([PyResource(PyType.TOPIC, topic, configs=unset)])
    soon(modified, {"flush.ms": "7"})
    refused = python.alter_configs([PyResource(PyType.TOPIC, topic, configs={"flush.ms": "x"})])
    assert "Not a number of type LONG" in str(refused["topic"][topic])
    every = python.describe_configs([PyResource(PyType.BROKER, "1")], include_synonyms=True, config_filter="all")
    assert every["broker"]["1"]["log.segment.bytes"]["config_type"] == "INT"
    assert topic in python.list_config_resources()["topic"]


def test_python_offsets_records_and_producers(broker: EmbeddedBroker, python: Any, topic: str) -> None:
    python.create_topics([PyTopic(topic, 1, 1, topic_configs={"retention.ms": "-1"})])
    produce(broker, topic, 5, **{"enable.idempotence": True})
    partition = PyPartition(topic, 0)

    def offset(spec: Any) -> int:
        return python.list_partition_offsets({partition: spec})[partition].offset

    assert [offset(spec) for spec in (PySpec.EARLIEST, PySpec.LATEST, PySpec.MAX_TIMESTAMP)] == [0, 5, 4]
    assert python.delete_records({partition: 2})[partition]["low_watermark"] == 2
    assert offset(PySpec.EARLIEST) == 2
    (producer,) = python.describe_producers([partition])[partition].active_producers
    assert (producer.producer_epoch, producer.last_sequence) == (0, 4)
    (directory,) = python.describe_log_dirs()[0]["log_dirs"]
    sizes = {found["name"]: found["partitions"][0]["partition_size"] for found in directory["topics"]}
    assert sizes[topic] > 0


def test_python_cluster(python: Any) -> None:
    cluster = python.describe_cluster()
    assert (cluster["controller_id"], len(cluster["brokers"])) == (1, 1)
    assert len(cluster["authorized_operations"]) == 7
    assert python.api_versions()
    features = python.describe_features()
    assert {name: (each["supported"], each["finalized"]) for name, each in features.items()} == {
        "group.version": ((0, 1), (1, 1)),
        "share.version": ((0, 1), (1, 1)),
        "transaction.version": ((0, 2), (2, 2)),
    }


# ---- aiokafka ------------------------------------------------------------------------------------------------------


def test_aiokafka(broker: EmbeddedBroker, topic: str) -> None:
    async def everything() -> None:
        client: Any = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await client.start()
        try:
            created = await client.create_topics([AioTopic(topic, 2, 1)])
            assert [row[1] for row in created.topic_errors] == [0]
            assert topic in await client.list_topics()
            (described,) = await client.describe_topics([topic])
            assert len(described["partitions"]) == 2
            assert (await client.describe_cluster())["controller_id"] == 1
            await client.alter_configs([AioResource(AioType.TOPIC, topic, {"retention.ms": "-1"})])
            (configs,) = await client.describe_configs([AioResource(AioType.TOPIC, topic)])
            entries = {entry[0]: entry[1] for entry in configs.resources[0][4]}
            assert (len(entries) >= 33, entries["retention.ms"]) == (True, "-1")
            grown = await client.create_partitions({topic: AioPartitions(3)})
            assert [row[1] for row in grown.topic_errors] == [0]
            await asyncio.to_thread(produce, broker, topic, 3)
            partition = AioPartition(topic, 0)
            assert await client.delete_records({partition: RecordsToDelete(2)}) == {partition: 2}
            deleted = await client.delete_topics([topic])
            assert [row[1] for row in deleted.topic_error_codes] == [0]
        finally:
            await client.close()

    asyncio.run(everything())
