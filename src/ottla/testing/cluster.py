"""Runs three nodes as processes, for tests of what a service does when nodes die, stand still and come back.

Knows: how nodes of one machine are started on one metadata store, signals, and that they reach each other through a
`Network` which can be cut. Does not know: anything of the broker's inside.

Processes and not threads, because a thread can't be killed.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.broker.topics.new_topic import replication_factors
from ottla.testing.embedded import DEFAULTS, HOST, text_of
from ottla.testing.network import Network

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
METADATA = "metadata.sqlite"


class EmbeddedCluster:
    """A cluster for tests, on one machine; a context manager. Nodes have the numbers 1 to `nodes`.

    `settings`: Kafka's property names, over the defaults of `EmbeddedBroker` and three copies of everything, for every
    node. `directory`: where node N keeps its data in a directory N; without one a temporary directory that goes with
    the cluster. `racks`: where nodes stand, by their number. `metadata`: the store that they share, as `ottla serve
    --metadata` takes it, or as each of them reaches it, by its number; a file in the directory if none is named.
    `metrics`: give each node a metrics port, see `metrics_of`.

    `start` raises `RuntimeError` with what a node had to say when it did not start.
    """

    def __init__(
        self,
        *,
        nodes: int = 3,
        settings: Mapping[str, object] | None = None,
        directory: str | Path | None = None,
        racks: Mapping[int, str] | None = None,
        metadata: str | Mapping[int, str] | None = None,
        metrics: bool = False,
    ) -> None:
        self.nodes = range(1, nodes + 1)
        given = {**DEFAULTS, **replication_factors(nodes), **(settings or {})}
        self._settings = {key: text_of(value) for key, value in given.items()}
        self._racks = dict(racks or {})
        self._temporary = None if directory is not None else tempfile.mkdtemp(prefix="ottla-cluster-")
        self.directory = str(directory if directory is not None else self._temporary)
        shared = metadata or str(Path(self.directory, METADATA))
        self._metadata = dict.fromkeys(self.nodes, shared) if isinstance(shared, str) else dict(shared)
        self._ports = dict.fromkeys(self.nodes, 0)
        self._metrics = dict.fromkeys(self.nodes, f"{HOST}:0" if metrics else "")
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._network = Network(self.nodes, self._ports.__getitem__)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every node, for any Kafka client; the same for the life of the cluster."""
        return ",".join(self.address_of(node) for node in self.nodes)

    def address_of(self, node: int) -> str:
        """HOST:PORT of one node, once it was started."""
        return f"{HOST}:{self._ports[node]}"

    def metrics_of(self, node: int) -> str:
        """HOST:PORT of the node's metrics port, once it was started; empty without `metrics`."""
        return self._metrics[node]

    def start(self) -> None:
        """Start every node and return when clients can connect to all of them, and all of them are active."""
        self._network.start()
        for node in self.nodes:
            self._begin(node)
        for node in self.nodes:
            self._await(node)
        self.wait_until_active()

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Start a node that was killed or stopped, on its old port and data; returns when it is active, or at once:
        `wait_until_active` waits too."""
        self._begin(node)
        if wait:
            self._await(node)
            self.wait_until_active()

    def runs(self, node: int) -> bool:
        """Whether the node's process is there, though it may be paused."""
        return node in self._running and self._running[node].poll() is None

    def kill(self, node: int) -> None:
        """End the node's process at once, as `kill -9` and a machine that fails do."""
        process = self._running.pop(node)
        process.kill()
        process.wait()

    def stop_node(self, node: int) -> int:
        """Stop a node in order: others lead what it led where they can. Returns the exit code of its process, 0 where
        all went well; raises `subprocess.TimeoutExpired` if it still runs after half a minute."""
        self._running[node].terminate()
        self._running[node].wait(STOP_TIMEOUT_S)
        return self._running.pop(node).returncode

    def pause(self, node: int) -> None:
        """Let the node's process stand still, connections and all, until `resume`; after broker.session.timeout.ms its
        watchdog hangs up on its clients."""
        self._running[node].send_signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
        self._running[node].send_signal(signal.SIGCONT)

    def partition(self, *groups: Iterable[int], one_way: bool = False) -> None:
        """Let nodes of different groups no longer reach each other, until `heal`; one group is cut off from all others.
        Who is in no group still reaches everybody; cuts add up. Clients reach every node, and every node the metadata
        store.

        `one_way`: only what a group sends to those named after it is lost. Nobody is told: connections stay open, and
        what is sent waits, as in a network that loses packets.
        """
        named = [set(group) for group in groups]
        if len(named) == 1:
            named.append(set(self.nodes) - named[0])
        for earlier, later in combinations(named, 2):
            for one, other in product(earlier, later):
                self._network.cut(one, other)
                if not one_way:
                    self._network.cut(other, one)

    def heal(self) -> None:
        """End every partition: what waits on the way arrives."""
        self._network.heal()

    def stop(self) -> None:
        """Stop every node and remove a temporary directory."""
        self.heal()
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()
        self._network.stop()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def active(self, by: int | None = None) -> list[int]:
        """The nodes that serve, as `by` tells it: one that runs, if none is named."""
        from ottla.client import Client
        from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

        with Client(self.address_of(by if by is not None else min(self._running))) as client:
            return sorted(each.broker_id for each in client.send(DescribeClusterRequest()).brokers)

    def wait_until_active(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when every node that runs knows of every other one as active. Raises TimeoutError."""
        from ottla.client import ClientFailure

        running = sorted(self._running)

        def knows(by: int) -> bool:
            try:
                return self.active(by) == running
            except ClientFailure:  # it does not serve yet
                return False

        until = time.monotonic() + timeout_s
        while not all(map(knows, running)):
            if time.monotonic() > until:
                raise TimeoutError(f"of the nodes {running} only some are active after {timeout_s} s")
            time.sleep(0.02)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- processes -------------------------------------------------------------------------------------------------

    def _begin(self, node: int) -> None:
        directory = Path(self.directory, str(node))
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "ottla", "serve", "--log-format", "json", "--node-id", str(node)]
        command += ["--data", str(directory), "--listen", self.address_of(node)]
        command += ["--metadata", self._metadata[node]]
        routes = {other: self._network.entry(node, other) for other in self.nodes if other != node}
        command += [
            "--set",
            "ottla.cluster.routes=" + ",".join(f"{other}={host}:{port}" for other, (host, port) in routes.items()),
        ]
        if self._metrics[node]:
            command += ["--metrics", self._metrics[node]]
        if node in self._racks:
            command += ["--rack", self._racks[node]]
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        with open(Path(self.directory, f"{node}.log"), "a") as log:
            self._running[node] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    def _await(self, node: int) -> None:
        """Wait for the line with which the node says where it serves."""
        stdout = self._running[node].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            said = Path(self.directory, f"{node}.log").read_text()[-2000:]
            raise RuntimeError(f"node {node} did not start: {said}")
        started = json.loads(line)
        self._ports[node] = int(started["address"].rpartition(":")[2])
        self._metrics[node] = started["metrics"] or ""
