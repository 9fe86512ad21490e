"""Run kminion, the Prometheus exporter of Redpanda, against a node and hold what it exports against what is there.

    python -m tools.conform_kminion [PATH]

PATH is the kminion program, else the one on the PATH is taken. It runs once for each way it has to learn of groups
(the Admin API, and by reading `__consumer_offsets`), with topics, log directories and its own end-to-end messages.
What it must say is known from elsewhere: the records written, the offsets committed, the files in the data directory.
Ends with 1 when one of these is wrong. kminion describes groups of the classic protocol only, as with any Kafka; lags
it has of both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tools.node_process import NodeProcess, free_port

TOPIC = "orders"
WRITTEN = {0: 100, 1: 60, 2: 25}
COMMITTED = {0: 90, 1: 60, 2: 5}
LAGS = {partition: WRITTEN[partition] - COMMITTED[partition] for partition in WRITTEN}
GROUPS = {"billing": "classic", "shipping": "consumer"}
WAIT_S = 60.0

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def main() -> int:
    program = sys.argv[1] if sys.argv[1:] else shutil.which("kminion")
    if not program:
        print("kminion is not on the PATH: install it, or say where it is (make conform-kminion KMINION=...)")
        return 1
    with tempfile.TemporaryDirectory(prefix="ottla-kminion-") as directory:
        node = NodeProcess(Path(directory) / "node", {"offsets.topic.num.partitions": "5"})
        node.start()
        try:
            with _filled(node.bootstrap):
                wrong = [
                    f"{mode}: {line}" for mode in ("adminApi", "offsetsTopic") for line in _run(program, mode, node)
                ]
        finally:
            node.stop()
    wrong += node.tracebacks
    for line in wrong:
        print(f"FAILED: {line}")
    return 1 if wrong else 0


# ---- what is there -------------------------------------------------------------------------------------------------


@contextmanager
def _filled(bootstrap: str) -> Iterator[None]:
    """A topic, and a group of each protocol, whose only member has committed and goes on being there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, len(WRITTEN))])[TOPIC].result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition, count in WRITTEN.items():
        for number in range(count):
            producer.produce(TOPIC, f"order {number}".encode(), partition=partition)
    assert producer.flush(30) == 0
    members = [_member(bootstrap, group, protocol) for group, protocol in GROUPS.items()]
    try:
        yield
    finally:
        for member in members:
            member.close()


def _member(bootstrap: str, group: str, protocol: str) -> Consumer:
    member = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    member.subscribe([TOPIC])
    until = time.monotonic() + WAIT_S
    while len(member.assignment()) < len(WRITTEN):
        assert time.monotonic() < until, f"{group} was assigned nothing"
        member.poll(0.1)
    member.commit(offsets=[TopicPartition(TOPIC, *pair) for pair in COMMITTED.items()], asynchronous=False)
    return member


# ---- what kminion says ---------------------------------------------------------------------------------------------


def _run(program: str, mode: str, node: NodeProcess) -> list[str]:
    """What is wrong, a line each."""
    port = free_port()
    environment = {
        "KAFKA_BROKERS": node.bootstrap,
        "MINION_CONSUMERGROUPS_SCRAPEMODE": mode,
        "MINION_ENDTOEND_ENABLED": "true",
        "EXPORTER_HOST": "127.0.0.1",
        "EXPORTER_PORT": str(port),
        "LOGGER_LEVEL": "error",
    }
    running = subprocess.Popen([program], env=os.environ | environment)
    try:
        until = time.monotonic() + WAIT_S
        wrong = ["it did not answer"]
        while wrong and running.poll() is None and time.monotonic() < until:
            time.sleep(0.5)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                    wrong = list(_wrong(_samples(answer.read().decode()), mode, node))
            except OSError as failure:
                wrong = [f"it did not answer: {failure}"]
        if running.poll() is not None:
            wrong.append(f"it ended with {running.returncode}")
    finally:
        running.terminate()
        running.wait(30)
    print(f"{mode}: {'wrong' if wrong else 'all is exported as it is'}")
    return wrong


def _samples(text: str) -> Samples:
    return {
        (sample.name.removeprefix("kminion_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _wrong(samples: Samples, mode: str, node: NodeProcess) -> Iterator[str]:
    def said(name: str, **labels: str) -> float | None:
        """The sum of the samples with these labels among theirs; None without one."""
        found = [value for (key, has), value in samples.items() if key == name and has >= set(labels.items())]
        return sum(found) if found else None

    expected = [("exporter_up", {}, 1.0)]
    for partition, count in WRITTEN.items():
        labels = {"topic_name": TOPIC, "partition_id": str(partition)}
        expected.append(("kafka_topic_partition_high_water_mark", labels, count))
        expected.append(("kafka_topic_partition_low_water_mark", labels, 0))
        for group in GROUPS:
            expected.append(("kafka_consumer_group_topic_partition_lag", labels | {"group_id": group}, LAGS[partition]))
    for group in GROUPS:
        labels = {"group_id": group, "topic_name": TOPIC}
        expected.append(("kafka_consumer_group_topic_lag", labels, sum(LAGS.values())))
        expected.append(("kafka_consumer_group_topic_offset_sum", labels, sum(COMMITTED.values())))
    labels = {"topic_name": TOPIC, "partition_count": "3", "replication_factor": "1", "cleanup_policy": "delete"}
    expected.append(("kafka_topic_info", labels, 1))
    expected.append(("kafka_consumer_group_members", {"group_id": "billing"}, 1))
    expected.append(("kafka_consumer_group_info", {"group_id": "billing", "state": "Stable"}, 1))
    size = sum(file.stat().st_size for file in Path(node.directory).glob(f"{TOPIC}-*/*.log"))
    expected.append(("kafka_topic_log_dir_size_total_bytes", {"topic_name": TOPIC}, size))
    expected.append(("end_to_end_messages_produced_failed_total", {}, 0))
    expected.append(("end_to_end_messages_lost_total", {}, 0))
    for name, labels, value in expected:
        if (is_said := said(name, **labels)) != value:
            yield f"{name} {labels} is {is_said}, not {value}"
    more_than_none = ["kafka_broker_log_dir_size_total_bytes"]
    more_than_none += [
        f"end_to_end_{what}_total" for what in ("messages_produced", "messages_received", "offset_commits")
    ]
    if mode == "offsetsTopic":
        more_than_none += ["exporter_offset_consumer_records_consumed_total"]
    for name in more_than_none:
        if not said(name):
            yield f"{name} is {said(name)}"
    versions = [dict(has).get("cluster_version", "") for key, has in samples if key == "kafka_cluster_info"]
    if len(versions) != 1 or "v4." not in versions[0]:
        yield f"the cluster's version is {versions}"


if __name__ == "__main__":
    sys.exit(main())
