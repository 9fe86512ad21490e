"""Serves a tracker's figures as Prometheus metrics, on a port of their own.

The figures are at most a second old; a scrape never touches the tracker's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from ottla.kmq.config import KmqConfig
from ottla.kmq.events import Reason
from ottla.kmq.figures import PartitionFigures, TrackerFigures
from ottla.kmq.tracker import now_ms


class Tracking(Protocol):
    """A tracker's figures: those of a RedeliveryTracker, or of a tracker that runs on Spark."""

    @property
    def config(self) -> KmqConfig: ...
    @property
    def figures(self) -> TrackerFigures: ...
    @property
    def partitions(self) -> Sequence[PartitionFigures]: ...


class TrackerCollector(Collector):
    """All metrics of a tracker, labelled with its queue."""

    def __init__(self, tracker: Tracking) -> None:
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        figures, queue = self._tracker.figures, self._tracker.config.queue
        for name, says, value in (
            ("markers_read", "Start and end markers read.", figures.markers_read),
            ("markers_malformed", "Records of the markers topic that are no markers.", figures.markers_malformed),
            ("redelivered", "Messages given again.", figures.redelivered),
            ("read_failures", "Attempts to read a message that failed.", figures.read_failures),
            ("write_failures", "Copies, dead letters and end markers that were not taken.", figures.write_failures),
            ("rewinds", "Times that a partition was full and its markers were read again.", figures.rewinds),
            ("assignments", "Partitions taken over.", figures.assignments),
        ):
            family = CounterMetricFamily(f"ottla_kmq_{name}", says, labels=["queue"])
            family.add_metric([queue], value)
            yield family
        letters = CounterMetricFamily("ottla_kmq_dead_lettered", "Dead letters written.", labels=["queue", "reason"])
        for reason in Reason:
            letters.add_metric([queue, reason.value], figures.dead_lettered[reason])
        yield letters

    def _gauges(self) -> Iterator[Metric]:
        queue, partitions, now = self._tracker.config.queue, self._tracker.partitions, now_ms()
        for name, says, of in (
            ("open_messages", "Messages being worked on.", lambda each: each.open),
            ("in_flight_redeliveries", "Redeliveries under way.", lambda each: each.in_flight),
            ("replaying", "1 while markers of before the take-over are read.", lambda each: int(each.replaying)),
            (
                "overdue_seconds",
                "How long the first open message is overdue.",
                lambda each: 0.0 if each.oldest_due_ms is None else max(0, now - each.oldest_due_ms) / 1000,
            ),
        ):
            family = GaugeMetricFamily(f"ottla_kmq_{name}", says, labels=["queue", "partition"])
            for each in partitions:
                family.add_metric([queue, str(each.partition)], of(each))
            yield family


def serve_metrics(tracker: Tracking, host: str, port: int) -> tuple[int, Callable[[], None]]:
    """Serve the tracker's metrics over HTTP; returns the port and a function that stops the server. Raises OSError."""
    registry = CollectorRegistry()
    registry.register(TrackerCollector(tracker))
    server, thread = start_http_server(port, host, registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop
