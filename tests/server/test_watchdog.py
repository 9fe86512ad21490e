"""The watchdog of a node that stands still: it hangs up on the node's clients, and lets the node alone."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.client import Client, ClientError
from ottla.server import watchdog_process
from ottla.testing import EmbeddedCluster
from tests.harness.waiting import soon

LEASE_MS = 1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(nodes=1, settings={"broker.session.timeout.ms": LEASE_MS}) as cluster:
        yield cluster


def watchdog_of(cluster: EmbeddedCluster) -> int:
    """The process id of the only node's; waits until there is one, and has begun."""
    node = cluster._running[1].pid
    found: list[int] = []

    def is_there() -> bool:
        for child in Path(f"/proc/{node}/task/{node}/children").read_text().split():
            status = Path(f"/proc/{child}/status").read_text().partition("SigIgn:")[2].split()
            ignores_sigterm = int(status[0], 16) >> (signal.SIGTERM - 1) & 1
            if ignores_sigterm and watchdog_process.__file__ in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
        return bool(found)

    soon(is_there, "the node has a watchdog")
    return found[0]


def connected(cluster: EmbeddedCluster) -> socket.socket:
    host, port = cluster.address_of(1).split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def hung_up(connection: socket.socket) -> bool:
    """Waits for the other side's word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def serves_soon(cluster: EmbeddedCluster) -> bool:
    """Its watchdog may hang up on a few more, until it sees the node's first beat."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with suppress(ClientError), Client(cluster.bootstrap_servers) as client:
            return bool(client.metadata([]).brokers)
    return False


def wait_until_gone(process: int) -> None:
    soon(lambda: not Path(f"/proc/{process}").exists())


def test_a_node_that_stands_still_is_hung_up_on_and_goes_on_when_it_wakes(cluster: EmbeddedCluster) -> None:
    watchdog_of(cluster)
    with connected(cluster) as before:
        cluster.pause(1)
        try:
            assert hung_up(before)
            for _ in range(3):
                with connected(cluster) as later:
                    assert hung_up(later), "the kernel accepts it for a process that does not answer"
        finally:
            cluster.resume(1)
    assert serves_soon(cluster)


def test_a_node_whose_watchdog_is_killed_goes_on_without(cluster: EmbeddedCluster) -> None:
    watchdog = Path(f"/proc/{watchdog_of(cluster)}/stat")
    os.kill(int(watchdog.parent.name), signal.SIGKILL)
    soon(lambda: not watchdog.exists() or watchdog.read_text().rpartition(")")[2].split()[0] == "Z")
    assert serves_soon(cluster)
    cluster.kill(1)
    cluster.start_node(1)


def test_the_watchdog_ends_with_its_node_and_outlives_the_signals_that_are_meant_for_it(
    cluster: EmbeddedCluster,
) -> None:
    first = watchdog_of(cluster)
    os.kill(first, signal.SIGTERM)
    os.kill(first, signal.SIGINT)
    assert watchdog_of(cluster) == first
    cluster.pause(1)
    with connected(cluster) as connection:
        assert hung_up(connection), "it holds the listener now"
    cluster.kill(1)
    wait_until_gone(first)
    cluster.start_node(1)
    second = watchdog_of(cluster)
    assert cluster.stop_node(1) == 0
    wait_until_gone(second)


def test_the_watchdog_of_a_node_that_dies_as_it_stands_still_ends_without_an_error() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    beats, other_end = os.pipe()  # stays open: the watchdog is not yet informed
    try:
        command = [sys.executable, "-I", "-S", watchdog_process.__file__, str(ended.pid), "0.01"]
        watchdog = subprocess.run(command, stdin=beats, capture_output=True, text=True, timeout=60, check=False)
    finally:
        os.close(beats)
        os.close(other_end)
    assert (watchdog.returncode, watchdog.stderr) == (0, "")
