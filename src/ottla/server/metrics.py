"""Prometheus metrics on a port of their own, under the names that the usual dashboards for Kafka read.

`/metrics` is Prometheus' text; `/share-groups` and `/share-groups/GROUP` show share groups as JSON (share_sight.py).

Knows: how Kafka's JMX names become Prometheus names (the jmx_exporter's form), and a little HTTP. Does not know: how
anything is counted (broker/metrics.py).

A scrape has two halves. `take` reads the node on the event loop, between two requests, into plain values; `render`
makes text of them in a thread, for with ten thousand partitions that takes longer than a request may wait.

Sources: Kafka's docs/operations/monitoring.md; jmx_exporter's example for Kafka; kafka_exporter for the lag of groups.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from ottla import __version__
from ottla.broker.metrics import Traffic
from ottla.groups.shard import GroupShard
from ottla.machine import Millis
from ottla.protocol.apis import APIS
from ottla.server import share_sight
from ottla.server.listeners import ServeRefused, join_address, split_address

if TYPE_CHECKING:
    from ottla.broker.node import Node

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
"""Those of Kafka's own histograms."""

TRAFFIC = {
    "messagesin": "messages_in",
    "bytesin": "bytes_in",
    "bytesout": "bytes_out",
    "totalproducerequests": "produce_requests",
    "totalfetchrequests": "fetch_requests",
    "failedproducerequests": "failed_produce_requests",
    "failedfetchrequests": "failed_fetch_requests",
}
"""BrokerTopicMetrics without their PerSec, and what we count for each."""

GROUP_PATH = "/share-groups/"
HEAD_BYTES_MAX = 8192
HEAD_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """One partition as it is now."""

    topic: str
    index: int
    size: int
    segments: int
    log_start_offset: int
    log_end_offset: int
    failed: bool


@dataclass(frozen=True, slots=True)
class ApiFigures:
    """Requests of one API: per bucket (see `ottla.broker.metrics.BUCKETS`), and the microseconds of all."""

    name: str
    buckets: list[int]
    micros: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything a scrape shows, taken at one moment."""

    node_id: int
    connections: int
    connections_accepted: int
    connections_refused: int
    apis: list[ApiFigures]
    traffic: dict[str, Traffic]
    all_traffic: Traffic
    partitions: list[PartitionFigures]
    groups: dict[str, int]
    positions: list[tuple[str, str, int, int]]
    share: share_sight.ShareFigures


def take(node: Node) -> Figures:
    """Read the node. Runs on its event loop."""
    metrics = node.metrics
    topics = [node.topics.by_name[name] for name in sorted(node.topics.by_name)]
    shards = [shard for shard in node.groups.shards() if isinstance(shard, GroupShard)]
    return Figures(
        node_id=node.node_id,
        connections=metrics.connections,
        connections_accepted=metrics.connections_accepted,
        connections_refused=metrics.connections_refused,
        apis=[ApiFigures(APIS[key].name, *metrics.latency(key)) for key in metrics.served()],
        traffic={name: traffic.copy() for name, traffic in metrics.topics.items()},
        all_traffic=metrics.totals(),
        partitions=[
            PartitionFigures(
                topic.name,
                partition.index,
                partition.log.size_bytes,
                len(partition.log.segments),
                partition.log.log_start_offset,
                partition.log.log_end_offset,
                partition.log.failed is not None,
            )
            for topic in topics
            for partition in topic.partitions
        ],
        groups=dict(Counter(state for shard in shards for state in shard.states())),
        positions=[position for shard in shards for position in shard.positions()],
        share=share_sight.take(node, clock()),
    )


def render(figures: Figures) -> bytes:
    """Prometheus' text. Touches nothing of the node, so it may run in any thread."""
    registry = CollectorRegistry()
    registry.register(Exposition(figures))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class Exposition(Collector):
    """The figures as metric families."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        yield from self._node()
        yield from self._traffic()
        yield from self._requests()
        yield from self._logs()
        yield from self._groups()
        yield from share_sight.metrics(self._figures.share)

    def _node(self) -> Iterator[Metric]:
        figures = self._figures
        info = GaugeMetricFamily(
            "ottla_build_info", "Always 1; the labels say what runs.", labels=("version", "node_id")
        )
        info.add_metric((__version__, str(figures.node_id)), 1)
        yield info
        sockets = "kafka_server_socket_server_metrics_"
        yield gauge(sockets + "connection_count", "Connections that are open.", figures.connections)
        yield counter(sockets + "connection_creation", "Connections accepted.", figures.connections_accepted)
        yield counter(sockets + "connection_refused", "Connections refused by a limit.", figures.connections_refused)
        replicas = "kafka_server_replicamanager_"
        failed = sum(each.failed for each in figures.partitions)
        yield gauge(replicas + "partitioncount", "Partitions on this node.", len(figures.partitions))
        yield gauge(replicas + "leadercount", "Partitions this node leads.", len(figures.partitions) - failed)
        yield gauge(replicas + "offlinereplicacount", "Partitions whose log failed.", failed)
        yield gauge(replicas + "underreplicatedpartitions", "Partitions with replicas that are not in sync.", 0)
        controller = "kafka_controller_kafkacontroller_"
        yield gauge(controller + "activecontrollercount", "1 where this node is the controller.", 1)
        yield gauge(controller + "offlinepartitionscount", "Partitions without a leader.", failed)
        names = {each.topic for each in figures.partitions}
        yield gauge(controller + "globaltopiccount", "Topics of the cluster.", len(names))
        yield gauge(controller + "globalpartitioncount", "Partitions of the cluster.", len(figures.partitions))

    def _traffic(self) -> Iterator[Metric]:
        for name, attribute in TRAFFIC.items():
            family = f"kafka_server_brokertopicmetrics_{name}"
            per_topic = CounterMetricFamily(
                family, f"BrokerTopicMetrics, {name}; without a topic, of all.", labels=("topic",)
            )
            per_topic.add_sample(f"{family}_total", {}, getattr(self._figures.all_traffic, attribute))
            for topic, traffic in sorted(self._figures.traffic.items()):
                per_topic.add_metric((topic,), getattr(traffic, attribute))
            yield per_topic

    def _requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "kafka_network_requestmetrics_requests", "Requests answered.", labels=("request",)
        )
        name = "kafka_network_requestmetrics_totaltimems"
        times = Metric(name, "Milliseconds from a whole request to its answer, since the start of the node.", "summary")
        for api in self._figures.apis:
            count = sum(api.buckets)
            requests.add_metric((api.name,), count)
            for quantile in QUANTILES:
                labels = {"request": api.name, "quantile": str(quantile)}
                times.add_sample(name, labels, quantile_micros(api.buckets, quantile) / 1000)
            times.add_sample(f"{name}_count", {"request": api.name}, count)
            times.add_sample(f"{name}_sum", {"request": api.name}, api.micros / 1000)
        yield requests
        yield times

    def _logs(self) -> Iterator[Metric]:
        labels = ("topic", "partition")
        size = GaugeMetricFamily("kafka_log_log_size", "Bytes in the segments.", labels=labels)
        segments = GaugeMetricFamily("kafka_log_log_numlogsegments", "Segments.", labels=labels)
        start = GaugeMetricFamily("kafka_log_log_logstartoffset", "First offset.", labels=labels)
        end = GaugeMetricFamily("kafka_log_log_logendoffset", "Offset of the next record.", labels=labels)
        for each in self._figures.partitions:
            place = (each.topic, str(each.index))
            size.add_metric(place, each.size)
            segments.add_metric(place, each.segments)
            start.add_metric(place, each.log_start_offset)
            end.add_metric(place, each.log_end_offset)
        yield from (size, segments, start, end)

    def _groups(self) -> Iterator[Metric]:
        figures = self._figures
        coordinator = "kafka_server_group_coordinator_metrics_"
        counts = GaugeMetricFamily(coordinator + "group_count", "Groups by state.", labels=("protocol", "state"))
        for state, count in sorted(figures.groups.items()):
            counts.add_metric(("classic", state), count)
        for state, count in sorted(Counter(group.state for group in figures.share.groups).items()):
            counts.add_metric(("share", state), count)
        yield counts
        yield gauge(coordinator + "offset_count", "Committed offsets.", len(figures.positions))
        ends = {(each.topic, each.index): each.log_end_offset for each in figures.partitions}
        labels = ("consumergroup", "topic", "partition")
        offsets = GaugeMetricFamily("kafka_consumergroup_current_offset", "Committed offset.", labels=labels)
        lags = GaugeMetricFamily("kafka_consumergroup_lag", "Records behind the committed offset.", labels=labels)
        for group, topic, partition, offset in figures.positions:
            place = (group, topic, str(partition))
            offsets.add_metric(place, offset)
            if (topic, partition) in ends:
                lags.add_metric(place, max(0, ends[topic, partition] - offset))
        yield offsets
        yield lags


def gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


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


class MetricsListener:
    """The port for scrapes. `start` raises ServeRefused; `address` is where it listens."""

    def __init__(self, node: Node, address: str) -> None:
        self._node = node
        self._server: asyncio.Server | None = None
        self.address = address

    async def start(self) -> None:
        host, port = split_address(self.address)
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            raise ServeRefused(
                f"Can't serve metrics on {join_address(host, port)}: {error.strerror or error}. "
                "Stop what uses the port, or choose another one with --metrics."
            ) from error
        self.address = join_address(*self._server.sockets[0].getsockname()[:2])

    def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, kind, body = await self._answer(head.split(b"\r\n", 1)[0].split())
            start = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            writer.write(start.encode() + (b"" if head.startswith(b"HEAD ") else body))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: list[bytes]) -> tuple[str, str, bytes]:
        """(status, content type, body) for the words of a request line."""
        plain = "text/plain; charset=utf-8"
        if len(request) != 3 or request[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", plain, b"GET /metrics\n"
        path = request[1].split(b"?")[0].decode("ascii", "replace")
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, await asyncio.to_thread(render, take(self._node))
        if path == "/share-groups" or path.startswith(GROUP_PATH):
            group = unquote(path.removeprefix(GROUP_PATH)) if path.startswith(GROUP_PATH) else None
            sight = share_sight.take(self._node, clock(), group, share_sight.HELD_MAX)
            return "200 OK", "application/json", await asyncio.to_thread(share_sight.as_json, sight)
        return "404 Not Found", plain, b"Metrics are at /metrics, share groups at /share-groups\n"


def clock() -> Millis:
    """Now, as the node's shell tells it."""
    return int(time.time() * 1000)
