"""A task that comes in two parts does not wait for a delayed acknowledgement."""

from __future__ import annotations

import pickle
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from ottla.spark.reader.options import batch_options
from ottla.spark.reader.source import BatchReader

ROUNDS = 15
JVM = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as worker:
    while worker.recv(4):
        worker.sendall(b"f" * 11_000)
        worker.sendall(b"i" * 600)
"""
"""Sends a task in two parts when it is told that the one before is done; without TCP_NODELAY, as Spark's."""


@pytest.fixture
def jvm() -> Iterator[socket.socket]:
    """The worker's end of a connection to another process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        process = subprocess.Popen([sys.executable, "-c", JVM, str(server.getsockname()[1])])
        worker, _ = server.accept()
    with worker:
        yield worker
    assert process.wait(30) == 0


def task_s(jvm: socket.socket, function: bytes) -> float:
    """Seconds until the worker has both parts; `function` is what it makes of the first."""
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        jvm.sendall(b"done")
        assert len(jvm.recv(11_000, socket.MSG_WAITALL)) == 11_000
        pickle.loads(function)
        assert len(jvm.recv(600, socket.MSG_WAITALL)) == 600
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def test_a_reader_acknowledges_what_it_was_made_of(jvm: socket.socket) -> None:
    reader = BatchReader(batch_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}))
    waiting_s = task_s(jvm, pickle.dumps(None))
    if waiting_s < 0.02:
        pytest.skip("this system does not delay its acknowledgements")
    assert task_s(jvm, pickle.dumps(reader)) < waiting_s / 4
    assert jvm.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
