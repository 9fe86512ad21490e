"""The wall clock is set under a running server: requests over TCP end when they should, timestamps follow the clock."""

import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from ottla.client import Client
from ottla.server import clocks
from ottla.testing import EmbeddedBroker
from tests.server.test_connection import connect, fetch_frame, produce, read_frame, values_in, versions_frame

HOUR_NS = 3_600 * 10**9


class SettableClock:
    """The wall clock as the server reads it; nobody may set the machine's own for a test."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def __call__(self) -> int:
        return time.time_ns() + self.ahead_ns


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> SettableClock:
    clock = SettableClock()
    monkeypatch.setattr(clocks, "time_ns", clock)
    return clock


@pytest.fixture
def broker(wall: SettableClock) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.mark.parametrize("ahead_ns", [-HOUR_NS, 15 * 10**9, HOUR_NS])
def test_a_fetch_that_waits_is_answered_in_its_time(broker: EmbeddedBroker, wall: SettableClock, ahead_ns: int) -> None:
    quiet = broker.create_topic()
    with closing(connect(broker)) as waits, closing(connect(broker)) as other:
        began = time.monotonic()
        waits.sendall(fetch_frame(1, quiet, 0, wait_ms=700))
        wall.ahead_ns = ahead_ns
        other.sendall(versions_frame(2))  # any request lets the server notice
        read_frame(other)
        waits.settimeout(20)
        assert values_in(read_frame(waits)) == []
        assert 0.65 <= time.monotonic() - began < 10


def test_the_log_append_time_is_the_wall_clocks(broker: EmbeddedBroker, wall: SettableClock) -> None:
    topic = broker.create_topic(configs={"message.timestamp.type": "LogAppendTime"})
    with Client(broker.bootstrap_servers) as client:
        for wall.ahead_ns in (0, -HOUR_NS, HOUR_NS):
            answer = client.send(produce(topic, [b"x"]), version=9)
            stamped_ms = answer.responses[0].partition_responses[0].log_append_time_ms
            assert abs(stamped_ms - wall() // 1_000_000) < 60_000
