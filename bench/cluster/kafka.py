"""Starts three nodes of Apache Kafka beside ours, with `kafka-peer`, whose directory is given.

Their storage is formatted, and they have run once, before the clock starts: that is what an administrator does once.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

from bench.brokers import BenchFailedError, Nodes, wait_until
from bench.cluster.life import WAIT_S, Cluster, started
from bench.figures import Figures, Scale
from ottla.demo.cluster import NODES, hold_ports


class Kafka(Cluster):
    """Three nodes that `kafka-peer start-cluster` has started. `processes`: theirs."""

    def __init__(self, address: str, processes: list[int]) -> None:
        super().__init__("kafka", address)
        self.processes = processes

    def pids(self) -> list[int]:
        return self.processes

    def create(self, name: str, partitions: int) -> None:
        """As ours; it says that it serves before it takes its own nodes in."""

        def created() -> bool:
            with contextlib.suppress(BenchFailedError):
                super(Kafka, self).create(name, partitions)
                return True
            return False

        wait_until(created, WAIT_S, f"{name} can be made")


def start(tools: Path, nodes: Nodes, scale: Scale) -> Figures:
    """Nodes that are formatted, from their start to the first acknowledged record, and their stop."""
    directory = nodes.base / "kafka"
    with ExitStack() as held:
        first = str(hold_ports(held))
        try:
            run(tools, "start-cluster", str(directory), first, str(len(NODES)))
            run(tools, "stop-cluster", str(directory))
            began = time.perf_counter()
            said = run(tools, "start-cluster", str(directory), first, str(len(NODES))).split()
            figures = started(Kafka(said[0].split(",")[0], [int(pid) for pid in said[1:]]), began)
            began = time.perf_counter()
            run(tools, "stop-cluster", str(directory))
            return figures | {"stop s": time.perf_counter() - began}
        finally:
            run(tools, "stop-cluster", str(directory))
            shutil.rmtree(directory, ignore_errors=True)


def run(tools: Path, *words: str) -> str:
    """What kafka-peer says. Raises BenchFailedError."""
    try:
        return subprocess.run([tools / "kafka-peer", *words], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BenchFailedError(f"kafka-peer {words[0]} failed: {getattr(error, 'stderr', '') or error}") from error
