"""Connections per second: TCP, TLS, a login, one request with its answer, and the end; from a few threads.

The client computes the iterations of SCRAM once for all its logins. Otherwise it would measure itself: a server stores
keys, and computes no iterations.
"""

from __future__ import annotations

import functools
import threading
import time
from unittest import mock

from bench.brokers import BenchFailedError, Broker
from bench.figures import Figures, Scale, cpu_figures, percentiles
from bench.frames import connect
from ottla.protocol import scram
from ottla.protocol.messages.api_versions import ApiVersionsRequest

THREADS = 4
API_VERSIONS_VERSION = 3
WARM_UP_VISITS = 20


def visits(broker: Broker, scale: Scale) -> Figures:
    """Connect, shake hands, log in where the listener asks for it, ask for ApiVersions, close: four threads."""
    with mock.patch.object(scram, "salted", functools.cache(scram.salted)):
        for _ in range(WARM_UP_VISITS):
            visit(broker)
        cpu, began = broker.cpu_s(), time.perf_counter()
        visitors = [Visitor(broker, began + scale.seconds) for _ in range(THREADS)]
        for each in visitors:
            each.start()
        for each in visitors:
            each.join()
    spent_s = time.perf_counter() - began
    spent_us = [us for each in visitors for us in each.spent_us]
    if failed := next((each.failure for each in visitors if each.failure), None):
        raise BenchFailedError(f"a connection failed: {failed}")
    figures = {"connections/s": len(spent_us) / spent_s} | percentiles("connection", spent_us, (50, 99))
    return figures | cpu_figures("broker", broker, cpu, "us/connection", len(spent_us) / 1e6)


class Visitor(threading.Thread):
    """Connects again and again until a time."""

    def __init__(self, broker: Broker, until: float) -> None:
        super().__init__()
        self.spent_us: list[float] = []
        self.failure: Exception | None = None
        self._broker, self._until = broker, until

    def run(self) -> None:
        try:
            while (began := time.perf_counter()) < self._until:
                visit(self._broker)
                self.spent_us.append((time.perf_counter() - began) * 1e6)
        except Exception as failure:  # it is raised by the program's own thread
            self.failure = failure


def visit(broker: Broker) -> None:
    (connection,) = connect(broker)
    connection.ask(ApiVersionsRequest("bench", "0"), API_VERSIONS_VERSION)
    connection.close()
