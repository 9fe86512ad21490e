"""Kafka's own commands against three nodes, where KAFKA_LIBS names a directory with Kafka's jars (kafka-tools too).

Without it these tests are skipped: the jars are 100 MB, and each command takes seconds to start.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

LIBS = os.environ.get("KAFKA_LIBS")
JAVA = shutil.which("java")
TOPIC = "org.apache.kafka.tools.TopicCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
CONFIGS = "kafka.admin.ConfigCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
MESSAGES = 1_000

pytestmark = pytest.mark.skipif(
    not (LIBS and JAVA), reason="KAFKA_LIBS does not name Kafka's jars, or there is no Java"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"replica.fetch.max.bytes": 50_000}) as cluster:
        yield cluster


def tool(cluster: EmbeddedCluster, name: str, *words: str) -> str:
    """What a command prints. Its end is not looked at: not all say by it whether they failed."""
    assert JAVA is not None
    where = ["--bootstrap-server", cluster.bootstrap_servers]
    words = (*where, *words) if name in (FEATURES, TRANSACTIONS) else (*words, *where)
    command = [JAVA, "-cp", f"{LIBS}/*", name, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return ended.stdout + ended.stderr


def planned(path: Path, topic: str, *replicas: list[int]) -> str:
    rows = [{"topic": topic, "partition": index, "replicas": each} for index, each in enumerate(replicas)]
    path.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(path)


def placed(cluster: EmbeddedCluster, topic: str) -> list[tuple[str, str]]:
    """The leader and the replicas of each partition, as kafka-topics shows them."""
    shown = tool(cluster, TOPIC, "--describe", "--topic", topic)
    return re.findall(r"Leader: (\S+)\s+Replicas: (\S+)", shown)


def test_partitions_are_moved_with_a_throttle_verified_and_taken_back(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    assert "Created" in tool(cluster, TOPIC, "--create", "--topic", "t", "--replica-assignment", "1:2,2:3")
    assert placed(cluster, "t") == [("1", "1,2"), ("2", "2,3")]
    wanted = tmp_path / "topics.json"
    wanted.write_text('{"version": 1, "topics": [{"topic": "t"}]}')
    words = ["--generate", "--topics-to-move-json-file", str(wanted), "--broker-list", "1,2,3"]
    assert "Proposed partition reassignment" in tool(cluster, REASSIGN, *words)
    plan = planned(tmp_path / "plan.json", "t", [3, 1], [2, 3, 1])
    words = ["--execute", "--reassignment-json-file", plan, "--throttle", "1000000"]
    assert "Successfully started partition reassignments" in tool(cluster, REASSIGN, *words)
    assert "leader.replication.throttled.rate=1000000" in tool(cluster, CONFIGS, "--describe", "--broker", "1")
    told = "still in progress"
    for _ in range(20):
        told = tool(cluster, REASSIGN, "--verify", "--reassignment-json-file", plan)
        if "still in progress" not in told:
            break
    assert "t-0 is completed" in told
    assert "Clearing broker-level throttles" in told
    assert "throttled" not in tool(cluster, CONFIGS, "--describe", "--broker", "1")
    assert placed(cluster, "t") == [("1", "3,1"), ("2", "2,3,1")]
    assert "No partition reassignments found" in tool(cluster, REASSIGN, "--list")


def test_a_move_is_taken_back(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """It is held up by a throttle. (Kafka's tool refuses targets that are down.)"""
    assert "Created" in tool(cluster, TOPIC, "--create", "--topic", "c", "--replica-assignment", "1")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(50):
        producer.produce("c", bytes(20_000))
    assert producer.flush(30) == 0
    plan = planned(tmp_path / "plan.json", "c", [2])
    words = ["--execute", "--reassignment-json-file", plan, "--throttle", "1000"]
    assert "Successfully started partition reassignment" in tool(cluster, REASSIGN, *words)
    assert "c-0: replicas: 2,1. adding: 2. removing: 1." in tool(cluster, REASSIGN, "--list")
    assert "Successfully cancelled" in tool(cluster, REASSIGN, "--cancel", "--reassignment-json-file", plan)
    assert placed(cluster, "c") == [("1", "1")]


def test_leaders_and_the_cluster_are_told(cluster: EmbeddedCluster) -> None:
    assert "Created" in tool(
        cluster, TOPIC, "--create", "--topic", "l", "--partitions", "3", "--replication-factor", "3"
    )
    told = tool(cluster, ELECT, "--election-type", "preferred", "--all-topic-partitions")
    assert "rror" not in told
    assert "Cluster ID" in tool(cluster, CLUSTER, "cluster-id")
    assert len(re.findall("unfenced", tool(cluster, CLUSTER, "list-endpoints"))) == 3


def test_levels_of_features_are_lowered_and_raised(cluster: EmbeddedCluster) -> None:
    def levels() -> dict[str, str]:
        told = tool(cluster, FEATURES, "describe")
        return dict(re.findall(r"Feature: (\S+).*FinalizedVersionLevel: (\d+)", told))

    highest = {"group.version": "1", "share.version": "1", "transaction.version": "2"}
    assert levels() == highest
    lower = ["downgrade", "--feature", "transaction.version=1"]
    assert "can be downgraded to 1" in tool(cluster, FEATURES, *lower, "--dry-run")
    assert levels() == highest
    assert "was downgraded to 1" in tool(cluster, FEATURES, *lower)
    assert "was disabled" in tool(cluster, FEATURES, "disable", "--feature", "share.version")
    assert levels() == highest | {"transaction.version": "1", "share.version": "0"}
    assert "only supports versions 0-1" in tool(cluster, FEATURES, "upgrade", "--feature", "group.version=2")
    raised = ["--feature", "transaction.version=2", "--feature", "share.version=1"]
    assert "was upgraded to 2" in tool(cluster, FEATURES, "upgrade", *raised)
    assert levels() == highest


def test_quotas_are_set_told_of_and_removed(cluster: EmbeddedCluster) -> None:
    who = ["--entity-type", "users", "--entity-name", "ada"]
    for more in ([], ["--entity-type", "clients", "--entity-default"]):
        words = ["--alter", *who, *more, "--add-config", "producer_byte_rate=20000,request_percentage=12.5"]
        assert "Completed updating" in tool(cluster, CONFIGS, *words)
        told = tool(cluster, CONFIGS, "--describe", *who, *more)
        limits = {"producer_byte_rate": "20000.0", "request_percentage": "12.5"}
        assert dict(re.findall(r"(\w+_\w+)=([\d.]+)", told)) == limits
        words = ["--alter", *who, *more, "--delete-config", "producer_byte_rate,request_percentage"]
        assert "Completed updating" in tool(cluster, CONFIGS, *words)
        assert "Quota" not in tool(cluster, CONFIGS, "--describe", *who, *more)


def test_transactions_are_told(cluster: EmbeddedCluster) -> None:
    """One that is open does not hang: its coordinator knows of it."""
    assert "Created" in tool(cluster, TOPIC, "--create", "--topic", "x", "--replication-factor", "3")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": "paying"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("x", b"open")
    assert producer.flush(30) == 0
    assert re.search(r"paying\s+\d+\s+\d+\s+Ongoing", tool(cluster, TRANSACTIONS, "list"))
    described = tool(cluster, TRANSACTIONS, "describe", "--transactional-id", "paying")
    ((producer_id, epoch),) = re.findall(r"paying\s+(\d+)\s+(\d+)\s+Ongoing.*x-0", described)
    words = ["describe-producers", "--topic", "x", "--partition", "0"]
    assert re.search(rf"\n{producer_id}\s+{epoch}\s", tool(cluster, TRANSACTIONS, *words))
    assert not re.search(rf"\nx\s+0\s+{producer_id}\s", tool(cluster, TRANSACTIONS, "find-hanging", "--topic", "x"))
    producer.commit_transaction(30)
    assert re.search(r"paying.*CompleteCommit", tool(cluster, TRANSACTIONS, "describe", "--transactional-id", "paying"))


def test_the_message_copier_moves_every_message_once_while_a_node_is_killed(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """TransactionalMessageCopier of Kafka's own system tests: a process for each partition, which aborts at random."""
    for name in ("input", "output"):
        words = ["--create", "--topic", name, "--partitions", "2", "--replication-factor", "3"]
        assert "Created" in tool(cluster, TOPIC, *words, "--config", "min.insync.replicas=2")
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(2 * MESSAGES):
        producer.produce("input", b"%d" % number, partition=number % 2)
    assert producer.flush(60) == 0
    copiers = [copier(cluster, partition, tmp_path / f"copier-{partition}") for partition in range(2)]
    soon(lambda: all((tmp_path / f"copier-{partition}").read_text().count("ProcessLoop") > 3 for partition in range(2)))
    cluster.kill(2)
    cluster.start_node(2)
    for each in copiers:
        assert each.wait(120) == 0
    for partition in range(2):
        wanted = [b"%d" % number for number in range(partition, 2 * MESSAGES, 2)]
        assert committed(cluster, "output", partition) == wanted


def copier(cluster: EmbeddedCluster, partition: int, log: Path) -> "subprocess.Popen[bytes]":
    """Kafka's copier of one partition, started."""
    assert JAVA is not None
    words = ["--input-topic", "input", "--output-topic", "output", "--input-partition", str(partition)]
    words += ["--transactional-id", f"copier-{partition}", "--consumer-group", f"copiers-{partition}"]
    words += ["--transaction-size", "20", "--enable-random-aborts", "--use-group-metadata"]
    command = [JAVA, "-Xmx256m", "-cp", f"{LIBS}/*", COPIER, *words, "--broker-list", cluster.bootstrap_servers]
    with open(log, "wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


def committed(cluster: EmbeddedCluster, topic: str, partition: int) -> list[bytes | None]:
    """The values that a reader of committed records is shown, to the end."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    values: list[bytes | None] = []
    try:
        while (message := consumer.poll(60)) is not None and message.error() is None:
            values.append(message.value())
    finally:
        consumer.close()
    return values
