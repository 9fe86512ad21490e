"""What is done to a cluster of processes while clients use it: a plan from a seed, and who carries it out.

The plan is pure: kinds, roles and times from a random number generator. The roles become nodes when it is their turn. A
node that has a fault already is left alone, and there is one cut of the network at a time.
"""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from ottla.client import Client, ClientError
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.testing import EmbeddedCluster
from ottla.testing.network import Network
from tests.harness.zookeepers import ZooKeepers, ZooKeeperServer, fresh
from tools.outage import Outage
from tools.spoiled_disk import SpoiledDisk

LEASE_S = 3.0
"""broker.session.timeout.ms of the nodes, and replica.lag.time.max.ms."""
HEAL_S = 60.0
NODES = range(1, 4)
ROLES = ("leader", "controller", "any")
BRIEF, LONG = (0.1 * LEASE_S, 0.6 * LEASE_S), (1.2 * LEASE_S, 2.5 * LEASE_S)

DEATHS = ("kill", "kill", "kill all", "stop")
PAUSES = ("pause", "pause")
CUTS = ("cut off", "cut off", "cut its sending", "cut its hearing")
SERVERS = ("kill ZooKeeper", "pause ZooKeeper", "kill two ZooKeepers", "pause two ZooKeepers", "restart ZooKeepers")
WAYS = ("cut from ZooKeeper", "isolate")
DISKS = ("spoil", "spoil", "spoil beneath it", "spoil beneath it", "copy")
"""The disk of one node in a plan: while the node is down, or runs; a copy may come back later."""


class Fault(NamedTuple):
    """Begins so many seconds after the one before, and lasts so long."""

    kind: str
    role: str
    after_s: float
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.kind} ({self.role}, {self.lasts_s:.1f} s)"


def planned(rng: random.Random, count: int, *, zookeeper: bool, disks: bool = False) -> list[Fault]:
    """So many faults, some of which overlap. ZooKeeper's leader is the "leader" of faults of its own."""
    families = [DEATHS, PAUSES, CUTS, *((SERVERS, SERVERS, WAYS) if zookeeper else ()), *((DISKS,) * 4 * disks)]
    faults: list[Fault] = []
    for _ in range(count):
        kind = rng.choice(rng.choice(families))
        lasts = rng.uniform(*rng.choice((BRIEF, LONG)))
        faults.append(Fault(kind, rng.choice(ROLES), rng.uniform(1.0, 7.0), lasts))
    return faults


class Faults:
    """Does things to a cluster, and undoes them. `done`: how often what was done; `failures`: where a node did not stop
    as it should."""

    def __init__(self, rng: random.Random, directory: str, settings: dict[str, object], *, zookeeper: bool) -> None:
        self._rng = rng
        self.done: dict[str, int] = {}
        self.failures: list[str] = []
        self.ensemble = ZooKeepers(3) if zookeeper else None
        self._to_zookeeper: Network | None = None
        metadata: str | dict[int, str] | None = None
        if self.ensemble is not None:
            self._to_zookeeper = Network([*NODES, *(-at for at in NODES)], self._port_of_server)
            self._to_zookeeper.start()
            path = fresh(self.ensemble).rpartition("/")[2]
            metadata = {node: f"zookeeper://{self._servers_seen_by(node)}/{path}" for node in NODES}
        racks = {node: str(node) for node in NODES}
        self.cluster = EmbeddedCluster(settings=settings, directory=directory, racks=racks, metadata=metadata)
        self._afflicted: set[int] = set()
        self.spoiled: SpoiledDisk | None = None
        """The disk that faults of `DISKS` strike."""
        self._cut = False
        self._outages: list[Outage] = []
        self._rolling = threading.Thread()
        self._under_way: list[tuple[float, Callable[[], None]]] = []

    def __enter__(self) -> Faults:
        try:
            if self.ensemble is not None:
                self.ensemble.__enter__()
            self.cluster.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()
        if self.ensemble is not None:
            self.ensemble.__exit__()
        if self._to_zookeeper is not None:
            self._to_zookeeper.stop()

    def run(self, faults: list[Fault], topic: str) -> None:
        """Carry out the plan. "leader" is that of partition 0 of this topic."""
        for fault in faults:
            self._rest(time.monotonic() + fault.after_s)
            undo = self._begin(fault, topic)
            if undo is not None:
                self.done[fault.kind] = self.done.get(fault.kind, 0) + 1
                self._under_way.append((time.monotonic() + fault.lasts_s, undo))
        self._rest(max((until for until, _ in self._under_way), default=0.0))

    def _rest(self, until: float) -> None:
        """Let time pass, and end what is over."""
        self._under_way.sort(key=lambda each: each[0])
        while self._under_way and self._under_way[0][0] <= until:
            ends, undo = self._under_way.pop(0)
            time.sleep(max(0.0, ends - time.monotonic()))
            undo()
        time.sleep(max(0.0, until - time.monotonic()))

    def heal(self) -> None:
        """Return when every node is there for every other one. Who ended, as it found no store, is started again."""
        if self._rolling.is_alive():
            self._rolling.join()
        while self._outages:
            outage = self._outages.pop()
            outage.join()
            self.failures += outage.failures
            for error, times in outage.told.items():
                self.done[f"told {error}"] = self.done.get(f"told {error}", 0) + times
        for server in self.ensemble.servers if self.ensemble is not None else ():
            server.wait()
        until = time.monotonic() + HEAL_S
        while True:
            for node in NODES:
                if not self.cluster.runs(node):
                    self.cluster.start_node(node, wait=False)
            try:
                return self.cluster.wait_until_active(HEAL_S / 6)
            except TimeoutError:
                if time.monotonic() > until:
                    raise

    # ---- one fault -------------------------------------------------------------------------------------------------

    def _begin(self, fault: Fault, topic: str) -> Callable[[], None] | None:
        """What ends it; None where it could not begin."""
        if fault.kind in SERVERS:
            return self._at_zookeeper(fault, topic)
        network = fault.kind in (*CUTS, *WAYS)
        if fault.kind in DISKS:
            return self._at_the_disk(fault.kind)
        chosen = self._chosen(fault, topic)
        if not chosen or (network and self._cut):
            return None
        self._afflicted.update(chosen)
        undo = self._cut_network(fault.kind, chosen[0]) if network else self._strike(fault.kind, chosen)

        def end() -> None:
            undo()
            self._afflicted.difference_update(chosen)

        return end

    def _well(self) -> list[int]:
        return [node for node in NODES if node not in self._afflicted and self.cluster.runs(node)]

    def _chosen(self, fault: Fault, topic: str) -> list[int]:
        well = self._well()
        if fault.kind == "kill all" or not well:
            return well
        named = self._in_role(fault.role, topic, well)
        return [named if named in well else self._rng.choice(well)]

    def _in_role(self, role: str, topic: str, well: list[int]) -> int:
        if role == "any":
            return 0
        with suppress(ClientError), Client(self.cluster.address_of(well[0]), timeout_s=1) as client:
            told = client.send(MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))
            parts = sorted(told.topics[0].partitions, key=lambda part: part.partition_index)
            return int(told.controller_id if role == "controller" or not parts else parts[0].leader_id)
        return 0

    def _strike(self, kind: str, nodes: list[int]) -> Callable[[], None]:
        for node in nodes:
            if kind == "pause":
                self.cluster.pause(node)
            elif kind == "stop":
                self._stop(node)
            else:
                self.cluster.kill(node)

        def end() -> None:
            for node in nodes:
                self.cluster.resume(node) if kind == "pause" else self.cluster.start_node(node, wait=False)

        return end

    def _at_the_disk(self, kind: str) -> Callable[[], None] | None:
        disk = self.spoiled
        if disk is None or disk.node not in self._well():
            return None
        if kind != "spoil":
            disk.copy() if kind == "copy" else disk.spoil()
            return lambda: None
        self._afflicted.add(disk.node)
        end = self._strike("kill", [disk.node])
        disk.spoil()

        def begin_again() -> None:
            end()
            self._afflicted.discard(disk.node)

        return begin_again

    def _stop(self, node: int) -> None:
        try:
            code = self.cluster.stop_node(node)
        except subprocess.TimeoutExpired:
            self.failures.append(f"node {node} did not stop")
            self.cluster.kill(node)
        else:
            if code not in (0, -signal.SIGTERM):  # the second: it had not come so far as to stop in order
                self.failures.append(f"node {node} ended with {code} when it was stopped")

    def _cut_network(self, kind: str, node: int) -> Callable[[], None]:
        others = [each for each in NODES if each != node]
        if kind in WAYS:
            assert self._to_zookeeper is not None
            for server in NODES:
                self._to_zookeeper.cut(node, -server)
                self._to_zookeeper.cut(-server, node)
        if kind in ("cut off", "isolate"):
            self.cluster.partition([node])
        elif kind == "cut its sending":
            self.cluster.partition([node], others, one_way=True)
        elif kind == "cut its hearing":
            self.cluster.partition(others, [node], one_way=True)
        self._cut = True

        def end() -> None:
            self.cluster.heal()
            if self._to_zookeeper is not None:
                self._to_zookeeper.heal()
            self._cut = False

        return end

    # ---- ZooKeeper -------------------------------------------------------------------------------------------------

    def _at_zookeeper(self, fault: Fault, topic: str) -> Callable[[], None] | None:
        assert self.ensemble is not None
        servers = self.ensemble.servers
        if self._rolling.is_alive() or any(-server.port in self._afflicted for server in servers):
            return None
        first = [server for server in servers if fault.role == "leader" and server.mode() == "leader"]
        ordered = [*first, *(each for each in servers if each not in first)]
        if fault.kind == "restart ZooKeepers":
            self._rolling = threading.Thread(target=_restart, args=[ordered])
            self._rolling.start()
            return lambda: None
        struck, pauses = ordered[: 2 if "two" in fault.kind else 1], fault.kind.startswith("pause")
        self._afflicted.update(-server.port for server in struck)
        for server in struck:
            server.send(signal.SIGSTOP) if pauses else server.kill()
        outage = Outage(self.cluster.address_of, self._well, LEASE_S) if len(struck) > 1 else None
        if outage is not None:
            outage.start()

        def end() -> None:
            if outage is not None:
                outage.end(topic)
                self._outages.append(outage)
            for server in struck:
                server.send(signal.SIGCONT) if pauses else server.begin()
            self._afflicted.difference_update(-server.port for server in struck)

        return end

    def _port_of_server(self, at: int) -> int:
        assert self.ensemble is not None
        return self.ensemble.servers[-at - 1].port if at < 0 else 0

    def _servers_seen_by(self, node: int) -> str:
        assert self._to_zookeeper is not None
        entries = [self._to_zookeeper.entry(node, -server) for server in NODES]
        return ",".join(f"{host}:{port}" for host, port in entries)


def _restart(servers: Sequence[ZooKeeperServer]) -> None:
    """One after the other, as an upgrade does."""
    for server in servers:
        server.kill()
        server.begin()
        server.wait()
