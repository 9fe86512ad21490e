"""Serves Prometheus metrics on a separate port, under the names that common Kafka dashboards read.

`/metrics` is Prometheus text; `/share-groups` and `/share-groups/GROUP` show share groups as JSON (share_groups.py);
`/healthz` and `/readyz` are for supervisors that restart a node and for load balancers. metrics_access.py decides who
may read which of them.

Names follow the jmx_exporter's form of Kafka's JMX names. broker/metrics.py does the counting.

A scrape has two halves. `figures.take` reads the node on the event loop, between two requests, into plain values.
`render` turns them into text on a thread: with ten thousand partitions that takes longer than a request may wait.

Sources: Kafka's docs/operations/monitoring.md; jmx_exporter's example for Kafka; kafka_exporter for the lag of
groups.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from ottla import __version__
from ottla.broker.client_identity import Address, Identity
from ottla.machine import Millis
from ottla.metadata.nodes import NodeState
from ottla.server import share_groups
from ottla.server.clocks import moment
from ottla.server.figures import Figures, offline_partitions, take
from ottla.server.listeners import ServeRefusedError, join_address, split_address
from ottla.server.metrics_access import LISTENER, MetricsAccess

if TYPE_CHECKING:
    from ottla.broker.node import Node

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

GROUP_PATH = "/share-groups/"
LOGS = {
    "size": "Bytes in the segments.",
    "num_log_segments": "Segments.",
    "log_start_offset": "First offset.",
    "log_end_offset": "Offset of the next record.",
}
"""Metrics of each partition, by the field that holds the value; the metric's name has no underscores."""

SHUT_NAMED_MAX = 20
HEAD_BYTES_MAX = 8192
HEAD_TIMEOUT_S = 10.0
NO_CONNECTION = -2
"""The connection id of clients of this port."""

log = logging.getLogger("ottla.server")


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


class MetricsListener:
    """The port for scrapes. `start` raises ServeRefusedError; `address` is where it listens, `url` with the scheme."""

    def __init__(self, node: Node, address: str, access: MetricsAccess) -> None:
        self._node = node
        self._access = access
        self._bound: socket.socket | None = None
        self._server: asyncio.Server | None = None
        self._reloading: asyncio.Task[None] | None = None
        self.address = address

    @property
    def url(self) -> str:
        return f"{'http' if self._access.tls is None else 'https'}://{self.address}"

    async def start(self) -> None:
        host, port = split_address(self.address)
        try:
            self._bound = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            await self._listen(self._bound)
        except OSError as error:
            raise ServeRefusedError(
                f"Can't serve metrics on {join_address(host, port)}: {error.strerror or error}. "
                "Stop what uses the port, or choose another one with --metrics."
            ) from error
        self.address = join_address(*self._bound.getsockname()[:2])

    async def _listen(self, bound: socket.socket) -> None:
        """Accept connections, with the TLS that holds now."""
        tls = self._access.tls
        secure = {} if tls is None else {"ssl": tls.context, "ssl_handshake_timeout": HEAD_TIMEOUT_S}
        before = self._server
        self._server = await asyncio.start_server(self._serve, sock=bound.dup(), limit=HEAD_BYTES_MAX, **secure)
        if before is not None:
            before.close()

    def reload(self) -> None:
        """Use the files of the token and of the certificate as they are now."""
        if self._access.reload() and self._bound is not None:
            log.info("the metrics port uses a new certificate")
            self._reloading = asyncio.ensure_future(self._listen(self._bound))

    def stop(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
        if self._server is not None:
            self._server.close()
        if self._bound is not None:
            self._bound.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            first, *headers = head.split(b"\r\n")
            status, kind, body = await self._answer(first.split(), _authorization(headers), writer)
            challenge = "WWW-Authenticate: Bearer\r\n" if status.startswith("401") else ""
            start = (
                f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{challenge}"
                "Connection: close\r\n\r\n"
            )
            writer.write(start.encode() + (b"" if head.startswith(b"HEAD ") else body))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, request: list[bytes], authorization: bytes, writer: asyncio.StreamWriter
    ) -> tuple[str, str, bytes]:
        """(status, content type, body) for the words of a request line, and for the header Authorization."""
        plain = "text/plain; charset=utf-8"
        if len(request) != 3 or request[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", plain, b"GET /metrics\n"
        path = request[1].split(b"?")[0].decode("ascii", "replace")
        has_authorizer = self._node.access.authorizer is not None
        refused = self._access.refusal(path, authorization, has_authorizer=has_authorizer)
        if refused is not None:
            status, why = refused
            if authorization:
                self._note_refused(writer)
            return status, plain, f"{why}\n".encode()
        if path == "/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, await asyncio.to_thread(render, await take(self._node, moment()))
        if path == "/share-groups" or path.startswith(GROUP_PATH):
            group = unquote(path.removeprefix(GROUP_PATH)) if path.startswith(GROUP_PATH) else None
            figures = share_groups.take(self._node, moment(), group)
            runs = await share_groups.take_runs(self._node, figures)
            return "200 OK", "application/json", await asyncio.to_thread(share_groups.as_json, figures, runs)
        if path == "/healthz":
            return "200 OK", plain, b"ok\n"  # a reader of this was answered by the node's own loop
        if path == "/readyz":
            status, sentence = readiness(self._node, moment(), names=not self._access.needs_token)
            return status, plain, sentence.encode()
        return "404 Not Found", plain, b"There are /metrics, /share-groups, /healthz and /readyz\n"

    def _note_refused(self, writer: asyncio.StreamWriter) -> None:
        """Someone has sent a wrong token."""
        host, port = writer.get_extra_info("peername")[:2]
        protocol = "PLAINTEXT" if self._access.tls is None else "SSL"
        address = Address(NO_CONNECTION, host, port, LISTENER, protocol)
        self._node.logged_in(Identity(address), "BEARER", why="the token of the metrics port is wrong")


def _authorization(headers: list[bytes]) -> bytes:
    """The value of the header Authorization, empty if there is none, or more than one."""
    values = [value.strip() for name, _, value in (each.partition(b":") for each in headers) if _is_for(name)]
    return values[0] if len(values) == 1 else b""


def _is_for(name: bytes) -> bool:
    return name.lower() == b"authorization"


def readiness(node: Node, now: Millis, *, names: bool = True) -> tuple[str, str]:
    """(status, sentence). Ready: the cluster counts on this node, and at least one partition here is in service, as
    clients may need that one. `names`: the sentence may have names of partitions."""
    refused = "503 Service Unavailable"
    why = _why_out_of_cluster(node, now)
    if why is not None:
        return refused, f"{why}\n"
    partitions = list(node.replicas)
    shut = [each for each in partitions if each.log.failed is not None]
    if partitions and len(shut) == len(partitions):
        return refused, "no partition is in service\n"
    if shut and not names:
        return "200 OK", f"ready, except for {len(shut)} of {len(partitions)} partitions\n"
    if shut:
        named = ", ".join(sorted(each.name for each in shut)[:SHUT_NAMED_MAX])
        return "200 OK", f"ready, except for {len(shut)} of {len(partitions)} partitions: {named}\n"
    return "200 OK", "ready\n"


def _why_out_of_cluster(node: Node, now: Millis) -> str | None:
    """The reason why the cluster does without this node now; None if it does not."""
    if node.membership is None:
        return None
    record = node.membership.record
    if record is None or record.state is not NodeState.ACTIVE:
        return _NOT_ACTIVE[None if record is None else record.state]
    if not node.membership.is_fresh(now):
        return "the node has not reached the metadata store for so long that other nodes may have taken over"
    return None


_NOT_ACTIVE = {
    None: "the node has yet to register with the cluster",
    NodeState.STARTING: "the controller has yet to admit the node to the cluster",
    NodeState.LEAVING: "the node is leaving the cluster",
    NodeState.FENCED: "the cluster has fenced the node",
}
