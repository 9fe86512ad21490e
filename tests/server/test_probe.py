"""The probe of the fairness tests finds what holds a node up, and does not take a busy machine for it.

The node is a program of a few lines that answers at once, but for one request in ten: that one waits for what the test
says. Beside it other programs want the processors, more of them than there are.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.server.fairness import NodeProcess, Probe, Waits, line_of

FAULT_S = 0.25
FOUND_TOO = pytest.mark.slow("tests/server/test_probe.py::test_a_node_that_is_held_up_is_found_on_a_busy_machine")
"""More than the limit, also where processors are believed to be as slow as `fairness.SLOWED_MAX`."""
NODE = """
import socket, sys, time

def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

FAULT_S = float(sys.argv[2])
fault = {"none": lambda: None, "works": lambda: spin(FAULT_S), "sleeps": lambda: time.sleep(FAULT_S)}[sys.argv[1]]
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
sock, _ = listener.accept()
number = 0
while frame := sock.recv(4096):
    number += 1
    if number % 10 == 0:
        fault()
    sock.sendall(bytes((0, 0, 0, 1, 0)))
"""
BUSY = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"


@contextlib.contextmanager
def node_that(does: str) -> Iterator[NodeProcess]:
    command = [sys.executable, "-S", "-c", NODE, does, str(FAULT_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            port = int(line_of(process, "the node did not start"))
            yield NodeProcess(process, {"PLAINTEXT": f"127.0.0.1:{port}"}, Path("none"))
        finally:
            process.kill()


@contextlib.contextmanager
def busy_machine(count: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def waits_with(fault: str) -> Waits:
    with node_that(fault) as node, Probe(node) as probe:
        return probe.rest(0.8)


@pytest.mark.parametrize("fault", [pytest.param("works", marks=FOUND_TOO), "sleeps"])
def test_a_node_that_is_held_up_is_found_on_a_busy_machine(fault: str) -> None:
    with busy_machine(4), pytest.raises(AssertionError, match="99th percentile"):
        waits_with(fault).must_be_fair(Waits([1.0]))


def test_a_busy_machine_is_not_taken_for_a_fault() -> None:
    with busy_machine(8):
        waits_with("none").must_be_fair(Waits([1.0]))
