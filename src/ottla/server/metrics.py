"""Makes Prometheus' text of a node's figures, under the names that common Kafka dashboards read.

`metrics_port` serves it. Names follow the jmx_exporter's form of Kafka's JMX names. `broker/metrics.py` does the
counting.

A scrape has two halves. `figures.take` reads the node on the event loop, between two requests, into plain values.
`render` turns them into text on a thread: with ten thousand partitions that takes longer than a request may wait.

Sources: Kafka's docs/operations/monitoring.md; jmx_exporter's example for Kafka; kafka_exporter for the lag of
groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from ottla import __version__
from ottla.server import share_groups
from ottla.server.figures import Figures, offline_partitions

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""The quantiles of Kafka's own histograms."""

TRAFFIC = {
    "messagesin": "messages_in",
    "bytesin": "bytes_in",
    "bytesout": "bytes_out",
    "totalproducerequests": "produce_requests",
    "totalfetchrequests": "fetch_requests",
    "failedproducerequests": "failed_produce_requests",
    "failedfetchrequests": "failed_fetch_requests",
}
"""BrokerTopicMetrics without their PerSec, and our counter for each."""

LOGS = {
    "size": "Bytes in the segments.",
    "num_log_segments": "Segments.",
    "log_start_offset": "First offset.",
    "log_end_offset": "Offset of the next record.",
}
"""Metrics of each partition, by the field that holds the value; the metric's name has no underscores."""


def render(figures: Figures) -> bytes:
    """Prometheus' text. Touches nothing of the node, so it may run in any thread."""
    page = Page()
    write_node(page, figures)
    write_traffic(page, figures)
    write_requests(page, figures)
    write_logs(page, figures)
    write_groups(page, figures)
    write_transactions(page, figures)
    registry = CollectorRegistry()
    registry.register(ShareGroups(figures.share))
    ProcessCollector(registry=registry)
    return "".join(page.lines).encode() + generate_latest(registry)


class ShareGroups(Collector):
    """The metrics of share groups, in the form of the Prometheus client library."""

    def __init__(self, figures: share_groups.ShareFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        yield from share_groups.metrics(self._figures)


class Page:
    """Prometheus' text while it is built: the client library is too slow for metrics of every partition."""

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: list[str] = []

    def family(self, name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> None:
        """One metric and its samples: (labels as `labels` writes them, value)."""
        self.lines.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
        self.lines += [f"{name}{labels} {value}\n" for labels, value in samples]

    def one(self, name: str, kind: str, text: str, value: float) -> None:
        self.family(name, kind, text, [("", value)])


def labels(**given: str) -> str:
    """Labels in the form that follows a name."""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in given.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def write_node(page: Page, figures: Figures) -> None:
    node = labels(version=__version__, node_id=str(figures.node_id))
    page.family("ottla_build_info", "gauge", "Always 1; see its labels.", [(node, 1)])
    sockets = "kafka_server_socket_server_metrics_connection_"
    page.one(sockets + "count", "gauge", "Connections that are open.", figures.connections)
    page.one(sockets + "creation_total", "counter", "Connections accepted.", figures.connections_accepted)
    page.one(sockets + "refused_total", "counter", "Connections refused by a limit.", figures.connections_refused)
    ends = ((labels(listener=name), left_s) for name, left_s in figures.certificates.items())
    text = "Seconds until the certificate of a listener expires; negative afterwards."
    page.family("ottla_certificate_left_seconds", "gauge", text, ends)
    write_replicas(page, figures)


def write_replicas(page: Page, figures: Figures) -> None:
    """Metrics of what this node stores and leads, and of the cluster as this node sees it."""
    replicas, here = "kafka_server_replicamanager_", figures.partitions
    page.one(replicas + "partitioncount", "gauge", "Replicas on this node.", len(here))
    led = sum(each.leads and not each.failed for each in here)
    page.one(replicas + "leadercount", "gauge", "Partitions that this node leads.", led)
    offline = sum(each.offline for each in here)
    page.one(replicas + "offlinereplicacount", "gauge", "Replicas on this node whose log takes no records.", offline)
    page.one("ottla_log_damaged", "gauge", "Partitions with a damaged batch on this node.", figures.damaged)
    text = "Partitions on this node with a place that the disk can't read."
    page.one("ottla_log_unreadable", "gauge", text, figures.unreadable)
    behind = sum(each.under_replicated for each in here)
    text = "Partitions led by this node with replicas that are not in sync."
    page.one(replicas + "underreplicatedpartitions", "gauge", text, behind)
    text = "Partitions led by this node with fewer in-sync replicas than min.insync.replicas: acks=all is refused."
    page.one(replicas + "underminisrpartitioncount", "gauge", text, sum(each.under_min_isr for each in here))
    controller, image = "kafka_controller_kafkacontroller_", figures.image
    text = "1 if this node is the active controller, otherwise 0."
    page.one(controller + "activecontrollercount", "gauge", text, int(figures.is_controller))
    nowhere = offline_partitions(image, figures.node_id, figures.offline)
    text = "Partitions of the cluster without a leader that takes records."
    page.one(controller + "offlinepartitionscount", "gauge", text, nowhere)
    page.one(controller + "globaltopiccount", "gauge", "Topics of the cluster.", len(image.topics))
    page.one(controller + "globalpartitioncount", "gauge", "Partitions of the cluster.", image.partition_count)


def write_traffic(page: Page, figures: Figures) -> None:
    rows = [("", figures.all_traffic), *((labels(topic=name), each) for name, each in figures.traffic.items())]
    for name, attribute in TRAFFIC.items():
        text = f"{name} of one topic; without a label, of all."
        samples = ((topic, getattr(traffic, attribute)) for topic, traffic in rows)
        page.family(f"kafka_server_brokertopicmetrics_{name}_total", "counter", text, samples)


def write_requests(page: Page, figures: Figures) -> None:
    requests = [(labels(request=api.name), sum(api.buckets), api) for api in figures.apis]
    prefix = "kafka_network_requestmetrics_"
    counts = [(request, count) for request, count, _ in requests]
    page.family(prefix + "requests_total", "counter", "Requests answered.", counts)
    times = prefix + "totaltimems"
    text = "Milliseconds from a whole request to its answer, since the start of the node."
    quantiles = (
        (labels(request=api.name, quantile=str(quantile)), quantile_micros(api.buckets, quantile) / 1000)
        for api in figures.apis
        for quantile in QUANTILES
    )
    page.family(times, "summary", text, quantiles)
    for request, count, api in requests:
        page.lines.append(f"{times}_count{request} {count}\n{times}_sum{request} {api.micros / 1000}\n")


def write_logs(page: Page, figures: Figures) -> None:
    rows = [(labels(topic=each.topic, partition=str(each.partition)), each) for each in figures.partitions]
    for name, text in LOGS.items():
        family = f"kafka_log_log_{name.replace('_', '')}"
        page.family(family, "gauge", text, ((place, getattr(each, name)) for place, each in rows))


def write_groups(page: Page, figures: Figures) -> None:
    coordinator = "kafka_server_group_coordinator_metrics_"
    share = Counter(("share", group.state) for group in figures.share.groups if group.state)
    states = (
        (labels(protocol=protocol, state=state), count)
        for (protocol, state), count in [*sorted(figures.groups.items()), *sorted(share.items())]
    )
    page.family(coordinator + "group_count", "gauge", "Groups by state.", states)
    page.one(coordinator + "offset_count", "gauge", "Committed offsets.", len(figures.positions))
    rows = [
        (labels(consumergroup=group, topic=topic, partition=str(partition)), offset, (topic, partition))
        for group, topic, partition, offset in figures.positions
    ]
    committed = ((labelled, offset) for labelled, offset, _ in rows)
    page.family("kafka_consumergroup_current_offset", "gauge", "Committed offset.", committed)
    ends = {
        (each.topic, each.partition): (each.log_start_offset, each.committed_end)
        for each in figures.partitions
        if each.committed_end is not None
    }
    lags = (
        (labelled, max(0, end - max(offset, start)))
        for labelled, offset, place in rows
        if place in ends
        for start, end in [ends[place]]
    )
    text = "Records between the committed offset, or the log start if that is later, and the high watermark."
    page.family("kafka_consumergroup_lag", "gauge", text, lags)


def write_transactions(page: Page, figures: Figures) -> None:
    """Metrics of what delays readers of committed records. Names without `kafka_` are Ottla's own."""
    states = ((labels(state=state), count) for state, count in sorted(figures.transactions.items()))
    page.family("ottla_transactions", "gauge", "Transactional ids coordinated here, by state.", states)
    oldest = "Since when the oldest transaction is open that is coordinated here; 0 without one."
    page.one("ottla_oldest_open_transaction_seconds", "gauge", oldest, figures.oldest_open_ms / 1000)
    late = "Partitions with a transaction that is open for longer than any coordinator allows."
    name = "kafka_server_replicamanager_partitionswithlatetransactionscount"
    page.one(name, "gauge", late, sum(each.is_late for each in figures.partitions))
    lags = (
        (labels(topic=each.topic, partition=str(each.partition)), each.last_stable_offset_lag)
        for each in figures.partitions
    )
    text = "Records that readers of committed records may not see yet."
    page.family("kafka_cluster_partition_laststableoffsetlag", "gauge", text, lags)


def quantile_micros(buckets: list[int], quantile: float) -> float:
    """The time below which this share of the requests was answered, as exact as buckets of powers of two allow."""
    wanted = quantile * sum(buckets)
    below = 0
    for bucket, count in enumerate(buckets):
        if count and below + count >= wanted:
            least = 0 if bucket == 0 else 1 << (bucket - 1)
            most = 1 << bucket
            return least + (most - least) * (wanted - below) / count
        below += count
    return 0.0
