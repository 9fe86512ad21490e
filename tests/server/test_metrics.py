"""What a scrape shows, after real traffic; and the counters below it."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.metrics import Metrics
from ottla.client import BrokerError, Client
from ottla.protocol.apis import ApiKey
from ottla.server.main import Server, ServerOptions
from ottla.server.metrics import quantile_micros
from ottla.testing import EmbeddedBroker
from ottla.testing.embedded import run_in_thread
from tests.harness.waiting import soon
from tests.testing.test_embedded import consume, produce

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Measured(EmbeddedBroker):
    """An embedded broker with a metrics port."""

    def start(self) -> None:
        self._running = run_in_thread(ServerOptions(listen=("127.0.0.1:0",), metrics="127.0.0.1:0"))
        self._port = self._running.server.port

    @property
    def server(self) -> Server:
        assert self._running is not None
        return self._running.server


@pytest.fixture(scope="module")
def broker() -> Iterator[Measured]:
    with Measured() as started:
        yield started


def fetch(broker: Measured, path: str = "/metrics") -> str:
    assert broker.server.metrics is not None
    with urllib.request.urlopen(f"http://{broker.server.metrics.address}{path}", timeout=30) as answer:
        return answer.read().decode()


def scrape(broker: Measured) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(fetch(broker))
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_traffic_is_counted_per_topic(broker: Measured) -> None:
    topic = broker.create_topic()
    before = scrape(broker)
    for value in (b"a", b"b", b"c"):
        produce(broker, topic, value)
    consume(broker, topic, 2)
    after = scrape(broker)
    prefix = "kafka_server_brokertopicmetrics_"
    assert of(after, prefix + "messagesin_total", topic=topic) == 3
    assert of(after, prefix + "totalproducerequests_total", topic=topic) == 3
    assert of(after, prefix + "bytesin_total", topic=topic) > 3 * 61
    assert of(after, prefix + "bytesout_total", topic=topic) > 61
    assert of(after, prefix + "messagesin_total") >= of(before, prefix + "messagesin_total") + 3
    requests = "kafka_network_requestmetrics_requests_total"
    assert of(after, requests, request="Produce") >= 3
    times = "kafka_network_requestmetrics_totaltimems"
    assert of(after, f"{times}_count", request="Produce") == of(after, requests, request="Produce")
    assert of(after, times, request="Produce", quantile="0.5") <= of(after, times, request="Produce", quantile="0.99")


def test_failed_requests_are_counted(broker: Measured) -> None:
    topic = broker.create_topic(configs={"max.message.bytes": 100})
    assert produce(broker, topic, b"x" * 1000) != 0
    name = "kafka_server_brokertopicmetrics_failedfetchrequests_total"
    before = of(scrape(broker), name)
    with Client(broker.bootstrap_servers) as client, pytest.raises(BrokerError, match="OFFSET_OUT_OF_RANGE"):
        client.fetch_raw(topic, 0, 99)
    after = scrape(broker)
    assert of(after, name) == before + 1
    assert of(after, "kafka_server_brokertopicmetrics_failedproducerequests_total", topic=topic) == 1


def test_logs_and_groups_are_shown_as_they_are(broker: Measured) -> None:
    topic = broker.create_topic(partitions=2)
    samples = scrape(broker)
    assert of(samples, "kafka_log_log_logendoffset", topic=topic, partition="1") == 0
    offsets = [produce(broker, topic, b"a") for _ in range(4)]
    samples = scrape(broker)
    ends = [of(samples, "kafka_log_log_logendoffset", topic=topic, partition=str(index)) for index in (0, 1)]
    assert sum(ends) == len(offsets)
    assert sum(of(samples, "kafka_log_log_size", topic=topic, partition=str(index)) for index in (0, 1)) > 4 * 61
    assert of(samples, "kafka_server_replicamanager_partitioncount") >= 2


def test_sums_never_go_back_when_a_topic_goes(broker: Measured) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"a")
    name = "kafka_server_brokertopicmetrics_messagesin_total"
    before = of(scrape(broker), name)
    broker.delete_topic(topic)
    after = scrape(broker)
    assert of(after, name) >= before
    assert (name, (("topic", topic),)) not in after


def test_other_paths_and_nonsense_do_no_harm(broker: Measured) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(broker, "/")
    assert broker.server.metrics is not None
    host, port = broker.server.metrics.address.split(":")
    for nonsense in (b"\r\n\r\n", b"POST /metrics HTTP/1.1\r\n\r\n", b"x" * 20_000, b""):
        with socket.create_connection((host, int(port)), 30) as raw:
            raw.sendall(nonsense)
            raw.shutdown(socket.SHUT_WR)
            assert not raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert scrape(broker)


def test_latency_falls_into_powers_of_two() -> None:
    metrics = Metrics()
    for micros in (0, 1, 2, 3, 1000, 1_000_000):
        metrics.request_done(18, micros)
    buckets, total = metrics.latency(18)
    assert {bucket: count for bucket, count in enumerate(buckets) if count} == {0: 1, 1: 1, 2: 2, 10: 1, 20: 1}
    assert total == 1_001_006
    assert metrics.served() == [18]
    assert metrics.latency(17) == ([0] * 64, 0)


def test_the_longest_time_stays_in_its_own_row() -> None:
    metrics = Metrics()
    metrics.request_done(0, (1 << 63) - 1)
    assert metrics.served() == [0]


def test_own_requests_are_counted_under_their_keys() -> None:
    """A connection passes the byte that it reads, the low one."""
    metrics = Metrics()
    metrics.request_done(ApiKey.DESCRIBE_OBSERVATIONS & 0xFF, 7)
    metrics.request_done(ApiKey.PRODUCE, 7)
    assert metrics.served() == [ApiKey.PRODUCE, ApiKey.DESCRIBE_OBSERVATIONS]
    assert metrics.latency(ApiKey.DESCRIBE_OBSERVATIONS)[1] == 7


def test_labels_are_escaped_as_prometheus_reads_them(broker: Measured) -> None:
    """A group may be named anything."""
    topic, group = broker.create_topic(), 'a "quoted"\\group\nof two lines'
    produce(broker, topic, b"a")
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()
    assert of(scrape(broker), "kafka_consumergroup_lag", consumergroup=group, topic=topic, partition="0") == 0


def test_quantiles_lie_in_their_bucket() -> None:
    buckets = [0] * 64
    buckets[4], buckets[10] = 99, 1
    assert 8 <= quantile_micros(buckets, 0.5) <= 16
    assert 8 <= quantile_micros(buckets, 0.99) <= 16
    assert 512 <= quantile_micros(buckets, 0.999) <= 1024
    assert quantile_micros([0] * 64, 0.5) == 0


def test_share_groups_are_shown(broker: Measured) -> None:
    from confluent_kafka import ShareConsumer

    topic = broker.create_topic()
    produce(broker, topic, b"a")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"{topic}/queue", "client.id": "ann"}
    with ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"}) as consumer:
        consumer.subscribe([topic])
        received: list[object] = []
        while not received:
            received = list(consumer.poll(0.5))
            if not received:
                produce(broker, topic, b"b")
        (group,) = json.loads(fetch(broker, f"/share-groups/{topic}%2Fqueue"))["groups"]
        assert (group["group"], group["state"], group["paused"]) == (f"{topic}/queue", "Stable", False)
        (partition,) = group["partitions"]
        assert (partition["topic"], partition["partition"], partition["in_flight"]) == (topic, 0, len(received))
        (held,) = partition["held"]
        assert (held["client_id"], held["delivery_count"]) == ("ann", 1)
        assert held["held_ms"] + held["lock_left_ms"] >= 30_000
        samples = scrape(broker)
        labels = {"group": f"{topic}/queue", "topic": topic, "partition": "0"}
        assert of(samples, "kafka_server_sharepartitionmetrics_inflightmessagecount", **labels) == len(received)
        assert of(samples, "kafka_sharegroup_lag", **labels) >= len(received)
        assert of(samples, "kafka_server_group_coordinator_metrics_share_group_count", state="Stable") >= 1
        for message in received:
            consumer.acknowledge(message)  # type: ignore[arg-type]
    samples = scrape(broker)
    acks = "kafka_server_sharegroupmetrics_recordacknowledgements_total"
    assert of(samples, acks, group=f"{topic}/queue", ackType="accept") == len(received)
    assert all(each["group"] != "nothing" for each in json.loads(fetch(broker, "/share-groups"))["groups"])
    assert json.loads(fetch(broker, "/share-groups/nothing"))["groups"] == []


def test_groups_of_both_protocols_and_transactions(broker: Measured) -> None:
    topic = broker.create_topic()
    produce(broker, topic, b"x")
    settings = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    consumer = Consumer({**settings, "group.id": f"{topic}/new", "group.protocol": "consumer"})
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.05)
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    producer.flush(30)
    count = "kafka_server_group_coordinator_metrics_group_count"
    lag, place = "kafka_cluster_partition_laststableoffsetlag", {"topic": topic, "partition": "0"}
    samples = scrape(broker)
    assert of(samples, count, protocol="consumer", state="Stable") == 1
    assert of(samples, "ottla_transactions", state="Ongoing") == 1
    soon(lambda: 0 < of(scrape(broker), "ottla_oldest_open_transaction_seconds") < 60)
    assert of(samples, lag, **place) == 1
    assert of(samples, "kafka_server_replicamanager_partitionswithlatetransactionscount") == 0
    consumer.close()
    producer.commit_transaction(30)
    samples = scrape(broker)
    assert of(samples, count, protocol="consumer", state="Empty") == 1
    assert of(samples, "ottla_oldest_open_transaction_seconds") == 0
    assert of(samples, lag, **place) == 0


def test_health_and_readiness(broker: Measured) -> None:
    assert fetch(broker, "/healthz") == "ok\n"
    topic = broker.create_topic(partitions=2)
    assert fetch(broker, "/readyz") == "ready\n"
    node = broker.server.node
    every = list(node.replicas)
    shut = node.replicas.by_name[topic].partitions
    try:
        shut[1].log.durability.failed = "no space"
        assert fetch(broker, "/readyz") == f"ready, except for 1 of {len(every)} partitions: {topic}-1\n"
        for part in every:
            part.log.durability.failed = "no space"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            fetch(broker, "/readyz")
        assert fetch(broker, "/healthz") == "ok\n"
    finally:
        for part in every:
            part.log.durability.failed = None
