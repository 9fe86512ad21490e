"""Runs three nodes as processes, for tests of what a service does when nodes die, freeze and return.

The nodes share one metadata store and reach each other through a `Network` whose connections can be cut. Each node is
a process and not a thread, because a thread can't be killed.
"""

from __future__ import annotations

import json
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from itertools import chain, combinations, product
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from ottla.broker.topics.new_topic import replication_factors
from ottla.testing import questions
from ottla.testing.embedded import DEFAULTS, HOST, SecuredClients, security_of, text_of
from ottla.testing.network import Network

if TYPE_CHECKING:
    from ottla.testing.security import Acl, Security, Tls

T = TypeVar("T")

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
QUESTION_TIMEOUT_S = 30.0
PAUSE_S = 0.02
METADATA = "metadata.sqlite"
BETWEEN_NODES = "PLAINTEXT"
"""The name of the listener for other nodes, if clients have a listener of their own."""
LOG_SHOWN_CHARACTERS = 2000
"""How much of a node's log an error quotes."""


class EmbeddedCluster(SecuredClients):
    """A cluster for tests, on one machine; a context manager. Nodes have the numbers 1 to `nodes`.

    `settings`: Kafka's property names, over the defaults of `EmbeddedBroker` and three replicas of everything, for
    every node. `directory`: node N keeps its data in its subdirectory N (default: a temporary directory, removed by
    `stop`). `racks`: the rack of each node, by node number. `metadata`: the store that the nodes share, as `ottla serve
    --metadata` accepts it, or one address per node number (default: a file in the directory). `metrics`: give each node
    a metrics port, see `metrics_of`. `tls`, `sasl`, `users`, `acls`: as `EmbeddedBroker`, for the listeners of clients.
    Nodes then talk to each other on listeners of their own, on loopback and without encryption.

    A number that is no node of the cluster raises `ValueError`. A node that is not in the state that a method needs
    raises `RuntimeError`.
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
        tls: Tls = False,
        sasl: str | None = None,
        users: Mapping[str, str] | Iterable[str] = (),
        acls: Iterable[Acl] | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"A cluster has at least 1 node, not {nodes}.")
        self.nodes = range(1, nodes + 1)
        for node in racks or {}:
            self._require_member(node)
        given = {**DEFAULTS, **replication_factors(nodes), **(settings or {})}
        self._security = security_of(tls, sasl, users, acls, settings or {})
        self._settings = {key: text_of(value) for key, value in given.items()}
        self._racks = dict(racks or {})
        self._temporary = None if directory is not None else tempfile.mkdtemp(prefix="ottla-cluster-")
        self.directory = str(directory if directory is not None else self._temporary)
        shared = metadata or str(Path(self.directory, METADATA))
        self._metadata = dict.fromkeys(self.nodes, shared) if isinstance(shared, str) else dict(shared)
        if missing := [node for node in self.nodes if node not in self._metadata]:
            raise ValueError(f"`metadata` names no store for {listed(missing)}.")
        self._ports = dict.fromkeys(self.nodes, 0)
        self._ports_for_nodes = self._ports if self._security is None else dict.fromkeys(self.nodes, 0)
        self._metrics = dict.fromkeys(self.nodes, f"{HOST}:0" if metrics else "")
        self._running: dict[int, subprocess.Popen[str]] = {}
        self._paused: set[int] = set()
        self._is_started = False
        self._network = Network(self.nodes, self._ports_for_nodes.__getitem__)

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of every node, for any Kafka client; constant from `start` to `stop`."""
        return ",".join(self.address_of(node) for node in self.nodes)

    def address_of(self, node: int) -> str:
        """HOST:PORT of one node. Raises RuntimeError before its first start."""
        self._require_member(node)
        if not self._ports[node]:
            raise RuntimeError(f"Node {node} has no address yet: it has not been started.")
        return f"{HOST}:{self._ports[node]}"

    def metrics_of(self, node: int) -> str:
        """HOST:PORT of the node's metrics port, once it was started; empty without `metrics`."""
        self._require_member(node)
        return self._metrics[node]

    def start(self) -> None:
        """Start every node; return when clients can connect to all of them and all of them are active.

        Raises RuntimeError with the end of a node's log if that node does not start. No process is left then.
        """
        if self._is_started:
            raise RuntimeError("The cluster is already started.")
        self._is_started = True
        try:
            self._network.start()
            if self._security is not None:
                self._security.make_files()
                self._write_rows(self._security)
            for node in self.nodes:
                self._begin(node)
            for node in self.nodes:
                self._await(node)
            self.wait_until_active()
        except BaseException:
            self.stop()
            raise

    def start_node(self, node: int, *, wait: bool = True) -> None:
        """Start a node that was killed or stopped, on its old port and data; return when it is active. With
        `wait=False` return at once; `wait_until_active` waits later.

        Raises RuntimeError if the node runs already, or, with the end of its log, if it does not start.
        """
        self._require_member(node)
        if not self._is_started:
            raise RuntimeError("The cluster has not been started: call `start()` or use it in a `with` block.")
        if self.runs(node):
            raise RuntimeError(f"Node {node} already runs.")
        self._begin(node)
        if wait:
            self._await(node)
            self.wait_until_active()

    def runs(self, node: int) -> bool:
        """Whether the node's process exists; a paused one does."""
        self._require_member(node)
        return node in self._running and self._running[node].poll() is None

    def kill(self, node: int) -> None:
        """End the node's process at once, as `kill -9` and a machine that fails do."""
        self._require_running(node)
        self._end(node)

    def stop_node(self, node: int) -> int:
        """Stop a node in order: other nodes become leaders of its partitions where they can. Returns the exit code of
        its process, 0 on success. Raises `subprocess.TimeoutExpired` if it still runs after half a minute."""
        process = self._require_running(node)
        process.terminate()
        process.wait(STOP_TIMEOUT_S)
        return self._end(node)

    def pause(self, node: int) -> None:
        """Freeze the node's process, its connections stay open, until `resume`; after broker.session.timeout.ms its
        watchdog closes the connections of its clients."""
        self._require_running(node).send_signal(signal.SIGSTOP)
        self._paused.add(node)

    def resume(self, node: int) -> None:
        """Let a paused node continue."""
        self._require_running(node).send_signal(signal.SIGCONT)
        self._paused.discard(node)

    def partition(self, *groups: Iterable[int], one_way: bool = False) -> None:
        """Cut the network between nodes of different groups until `heal`; one group is cut off from all other nodes.
        A node that is in no group still reaches every node; cuts add up. Clients reach every node, and every node
        reaches the metadata store.

        `one_way`: cut only what a group sends to the groups named after it. No node gets an error: connections stay
        open, and what is sent waits, as in a network that loses packets. Raises ValueError.
        """
        named = [set(group) for group in groups]
        for node in chain.from_iterable(named):
            self._require_member(node)
        if not named:
            raise ValueError("Name at least one group of nodes, as in `partition([1])`.")
        if twice := [node for node in self.nodes if sum(node in group for group in named) > 1]:
            are = "are" if len(twice) > 1 else "is"
            raise ValueError(f"{listed(twice).capitalize()} {are} in more than one group: groups must not overlap.")
        if len(named) == 1:
            named.append(set(self.nodes) - named[0])
        for earlier, later in combinations(named, 2):
            for one, other in product(earlier, later):
                self._network.cut(one, other)
                if not one_way:
                    self._network.cut(other, one)

    def heal(self) -> None:
        """End every partition: what waits in the network arrives."""
        self._network.heal()

    def stop(self) -> None:
        """Stop every node and remove a temporary directory; a cluster that is stopped stays as it is."""
        self.heal()
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        until = time.monotonic() + STOP_TIMEOUT_S
        try:
            for process in self._running.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - time.monotonic()))
        finally:
            for node in list(self._running):
                self._end(node)
            self._network.stop()
            self._is_started = False
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
            if self._security is not None:
                self._security.remove_files()

    # ---- what clients see ------------------------------------------------------------------------------------------

    def active(self, by: int | None = None) -> list[int]:
        """The nodes that serve, as node `by` reports it (default: the first that runs)."""
        if by is None:
            by = self._awake()[0]
        self._require_running(by)
        return questions.active(self._connect, self.address_of(by))

    def leader_of(self, topic: str, partition: int = 0, *, timeout_s: float = QUESTION_TIMEOUT_S) -> int:
        """The node that leads a partition. Waits while no node that runs leads it, so that after a `kill` it is the
        next leader. Raises TimeoutError."""
        return self._until(
            timeout_s,
            f"no running node leads {topic}-{partition}",
            lambda: self._that_runs(questions.leader_of(self._connect, self._awake_addresses(), topic, partition)),
        )

    def coordinator_of(
        self,
        group: str | None = None,
        *,
        transactional_id: str | None = None,
        timeout_s: float = QUESTION_TIMEOUT_S,
    ) -> int:
        """The node that coordinates a group (consumer group or share group) or a transactional id; name one of them.
        Waits until a running node does. Raises TimeoutError, and ValueError if none or both are named."""
        if (group is None) == (transactional_id is None):
            raise ValueError("Name a group or a transactional id.")
        name = group if group is not None else str(transactional_id)
        return self._until(
            timeout_s,
            f"no running node coordinates {name}",
            lambda: self._that_runs(
                questions.coordinator_of(self._connect, self._awake_addresses(), name, is_group=group is not None)
            ),
        )

    def wait_in_sync(self, topic: str | None = None, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when every replica of the topic (default: of every topic) is in sync, as each node that runs reports
        it. Raises TimeoutError with the partitions that are not."""
        lacking = ["no answer"]

        def in_sync() -> bool | None:
            lacking[:] = questions.not_in_sync(self._connect, self._awake_addresses(), topic)
            return not lacking or None

        try:
            self._until(timeout_s, "", in_sync)
        except TimeoutError:
            more = f" and {len(lacking) - 5} more" if len(lacking) > 5 else ""
            raise TimeoutError(f"After {timeout_s} s: {'; '.join(lacking[:5])}{more}.") from None

    def wait_until_active(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when every node that runs reports every other one as active. Raises TimeoutError."""
        running = sorted(self._running)

        def all_active() -> bool | None:
            return all(self.runs(by) and self.active(by) == running for by in running) or None

        self._until(timeout_s, f"not all of {listed(running)} are active", all_active)

    def __enter__(self) -> Self:
        self.start()
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
        command += ["--data", str(directory), "--metadata", self._metadata[node]]
        for listener in self._listeners(node):
            command += ["--listen", listener]
        routes = {other: self._network.entry(node, other) for other in self.nodes if other != node}
        command += [
            "--set",
            "ottla.cluster.routes=" + ",".join(f"{other}={host}:{port}" for other, (host, port) in routes.items()),
        ]
        if self._metrics[node]:
            command += ["--metrics", self._metrics[node]]
        if node in self._racks:
            command += ["--rack", self._racks[node]]
        secured = {} if self._security is None else self._security.settings()
        for key, value in (self._settings | secured).items():
            command += ["--set", f"{key}={value}"]
        with open(Path(self.directory, f"{node}.log"), "a") as log:
            self._running[node] = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self._environment_of(node)
            )

    def _listeners(self, node: int) -> list[str]:
        """The listener for clients, and one for other nodes unless clients and nodes share it."""
        if self._security is None:
            return [f"{HOST}:{self._ports[node]}"]
        between = f"{BETWEEN_NODES}://{HOST}:{self._ports_for_nodes[node]}"
        return [f"{self._security.protocol}://{HOST}:{self._ports[node]}", between]

    def _write_rows(self, security: Security) -> None:
        """Write the users and ACLs to the store that the nodes share."""
        from ottla.server.shared_metadata import open_shared

        with closing(open_shared(self._metadata[self.nodes[0]])) as store:
            security.write_rows(store)

    def _environment_of(self, node: int) -> Mapping[str, str] | None:
        """The environment of the node's process; None for the one of this process."""
        return None

    def _await(self, node: int) -> None:
        """Wait for the line in which the node reports its address. Raises RuntimeError, without a process left."""
        stdout = self._running[node].stdout
        assert stdout is not None
        try:
            answers, _, _ = select.select([stdout], [], [], START_TIMEOUT_S)
            line = stdout.readline() if answers else ""
        except BaseException:
            self._end(node)
            raise
        if not line:
            self._end(node)
            said = Path(self.directory, f"{node}.log").read_text()[-LOG_SHOWN_CHARACTERS:]
            raise RuntimeError(f"Node {node} did not start. The end of its log:\n{said}")
        started = json.loads(line)
        self._ports[node] = int(started["address"].rpartition(":")[2])
        self._metrics[node] = started["metrics"] or ""
        if self._security is not None:
            self._ports_for_nodes[node] = int(started["listeners"][BETWEEN_NODES].rpartition(":")[2])

    def _end(self, node: int) -> int:
        """Kill the node's process if it still runs, and forget it; returns its exit code."""
        process = self._running.pop(node)
        self._paused.discard(node)
        process.kill()
        code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code

    def _require_member(self, node: int) -> None:
        if node not in self.nodes:
            raise ValueError(f"The cluster has no node {node}: it has {listed(list(self.nodes))}.")

    def _require_running(self, node: int) -> subprocess.Popen[str]:
        if not self.runs(node):
            raise RuntimeError(f"Node {node} does not run. `start_node({node})` starts it.")
        return self._running[node]

    # ---- waiting for answers ---------------------------------------------------------------------------------------

    def _awake(self) -> list[int]:
        """The nodes that can answer. Raises RuntimeError if there is none."""
        if not (awake := [node for node in self.nodes if self.runs(node) and node not in self._paused]):
            raise RuntimeError("No node can answer: each one is stopped or paused.")
        return awake

    def _awake_addresses(self) -> list[str]:
        return [self.address_of(node) for node in self._awake() if self._ports[node]]

    def _that_runs(self, node: int | None) -> int | None:
        return node if node is not None and node in self._running and self.runs(node) else None

    def _until(self, timeout_s: float, missing: str, ask: Callable[[], T | None]) -> T:
        """The first answer that is not None. Raises TimeoutError saying what is missing."""
        from ottla.client import ClientError

        until = time.monotonic() + timeout_s
        while True:
            with suppress(ClientError):  # the node does not serve yet, or has just died
                if (answer := ask()) is not None:
                    return answer
            if time.monotonic() > until:
                raise TimeoutError(f"After {timeout_s} s, {missing}.")
            time.sleep(PAUSE_S)


def listed(nodes: list[int]) -> str:
    """Node numbers in a sentence: "node 1", "nodes 1 and 2", "nodes 1, 2 and 3"."""
    *others, last = map(str, nodes)
    return f"nodes {', '.join(others)} and {last}" if others else f"node {last}"
