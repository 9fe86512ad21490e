"""A cluster's life on one machine: its start, what a stopped and a killed leader cost, and many partitions.

Three nodes that `ottla cluster start` starts, as a user has them. Every wait has an end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.brokers import BenchFailedError, Broker, Nodes, wait_until
from bench.figures import Figures, Scale
from bench.frames import record_batch
from bench.node.life import start_process
from ottla.client import Client, ClientError
from ottla.demo.cluster import NODES, ThreeNodes
from ottla.demo.node import NodeFailedError
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest

WAIT_S = 300.0
PER_TOPIC = 1_000
MESSAGES_PER_S = 200
PATIENT = {
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 0,
}
"""A producer that tries again soon: librdkafka's own pauses would be most of what is measured."""


class Cluster(Broker):
    """Several nodes as the benchmark sees them."""

    def pids(self) -> list[int]:
        """The processes of those that run."""
        raise NotImplementedError

    def cpu_s(self) -> tuple[float, float]:
        """All, and user only, of all nodes together."""
        each = [Broker("node", self.address, pid).cpu_s() or (0.0, 0.0) for pid in self.pids()]
        return sum(one for one, _ in each), sum(user for _, user in each)

    def resident_mb(self) -> float:
        return sum(Broker("node", self.address, pid).resident_mb() or 0 for pid in self.pids())

    def create(self, name: str, partitions: int) -> None:
        with Client(self.address, timeout_s=WAIT_S) as client:
            request = CreateTopicsRequest(topics=[CreatableTopic(name, partitions, -1)], timeout_ms=int(WAIT_S * 1000))
            (answer,) = client.send(request).topics
        if answer.error_code:
            raise BenchFailedError(f"{name} could not be made: {answer.error_message}")


class Three(Cluster):
    """Three nodes of our own."""

    def __init__(self, nodes: ThreeNodes) -> None:
        super().__init__("ottla", nodes.address.split(",")[0])
        self.nodes = nodes

    def pids(self) -> list[int]:
        return [self.pid_of(node) for node in NODES if Path(f"/proc/{self.pid_of(node)}").exists()]

    def pid_of(self, node: int) -> int:
        return int((self.nodes.directory / str(node) / "ottla.pid").read_text())

    def until(self, what: str, by: int, holds: Callable[[list], bool]) -> None:
        """Wait until something holds of all partitions, as this node tells them."""

        def told() -> bool:
            with contextlib.suppress(ClientError), Client(self.nodes.address.split(",")[by - 1]) as client:
                topics = client.send(MetadataRequest(topics=None)).topics
                return holds([part for topic in topics for part in topic.partitions])
            return False

        wait_until(told, WAIT_S, what, pause_s=0.05)


@contextlib.contextmanager
def three(nodes: Nodes, settings: Mapping[str, str] | None = None) -> Iterator[Three]:
    """Three nodes for the length of a block; their data goes with them."""
    directory = Path(tempfile.mkdtemp(dir=nodes.base))
    cluster = ThreeNodes(directory, settings)
    try:
        cluster.start()
        yield Three(cluster)
    except NodeFailedError as failed:
        raise BenchFailedError(str(failed)) from failed
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)


# ---- measurements --------------------------------------------------------------------------------------------------


def start(nodes: Nodes, scale: Scale) -> Figures:
    """`ottla cluster start --detach` to the first acknowledged record, on three nodes; the CPU of the nodes, their
    memory, `ottla cluster stop`; and beside it one node's start."""
    began = time.perf_counter()
    with three(nodes) as cluster:
        figures = started(cluster, began)
        began = time.perf_counter()
        cluster.nodes.stop()
        figures["stop s"] = time.perf_counter() - began
    alone = start_process(nodes, scale)["first acknowledged s"]
    return figures | {"one node: first acknowledged s": alone, "of one node's": figures["first acknowledged s"] / alone}


def started(cluster: Cluster, began: float) -> Figures:
    """What the start of nodes cost that began at `began` and serve now, to the first record that all have."""
    figures = {"ready s": time.perf_counter() - began}
    cluster.create("first", 1)
    with Client(cluster.address) as client:
        client.produce_raw("first", 0, record_batch(1, 200))
    figures["first acknowledged s"] = time.perf_counter() - began
    figures["nodes' cpu s"] = cluster.cpu_s()[0]
    figures["resident MB"] = cluster.resident_mb()
    return figures


def failover(nodes: Nodes, scale: Scale) -> Figures:
    """A partition's leader is told to stop, then another one killed: the longest pause between acknowledgements of a
    producer with acks=all, 200 messages a second, and how many it was refused."""
    figures: Figures = {}
    with three(nodes) as cluster:
        for name, number in (("SIGTERM", signal.SIGTERM), ("kill -9", signal.SIGKILL)):
            topic = f"led-{number:d}"
            cluster.create(topic, 1)
            cluster.until("all is in sync", 1, lambda parts: all(len(part.isr_nodes) == len(NODES) for part in parts))
            wait_until(lambda new=topic: cluster.nodes.is_in_sync((new,)), WAIT_S, f"{topic} is in sync", pause_s=0.05)
            leader = cluster.nodes.partitions((topic,))[topic, 0].leader
            with Acknowledged(cluster.nodes.address, topic) as load:
                time.sleep(max(1.0, scale.seconds))
                began = time.perf_counter()
                os.kill(cluster.pid_of(leader), number)
                wait_until(lambda led=leader: not alive(cluster.pid_of(led)), WAIT_S, "the node has ended")
                ended_s = time.perf_counter() - began
                time.sleep(max(1.0, scale.seconds))
            if load.refused:
                raise BenchFailedError(f"{load.refused} messages were refused for good after {name}")
            figures |= {f"{name}: longest pause s": load.longest_pause_s, f"{name}: node ended s": ended_s}
            cluster.nodes.bring_back(leader)
    return figures | {"SIGTERM of kill -9": figures["SIGTERM: longest pause s"] / figures["kill -9: longest pause s"]}


class Acknowledged:
    """A producer at a steady pace in a thread. `longest_pause_s`: between two acknowledgements."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import Producer

        self.longest_pause_s = 0.0
        self.refused = 0
        self._topic = topic
        self._last = 0.0
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, **PATIENT})
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Acknowledged:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush(WAIT_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._producer.produce(self._topic, b"x" * 100, on_delivery=self._delivered)
            self._producer.poll(1 / MESSAGES_PER_S)

    def _delivered(self, error: object, _: object) -> None:
        now = time.perf_counter()
        if error is not None:
            self.refused += 1
        elif self._last:
            self.longest_pause_s = max(self.longest_pause_s, now - self._last)
        self._last = now


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def partitions(nodes: Nodes, scale: Scale) -> Figures:
    """Many partitions (`--partitions`), three replicas each: until they are made, led and in sync; one node's leaders
    taken over after kill -9; that node back in sync; memory and CPU. And the same with a tenth, for the ratio."""
    tenth = grown(nodes, max(len(NODES), scale.partitions // 10))
    whole = grown(nodes, scale.partitions)
    growth = {
        f"{name}: of a tenth's": whole[name] / tenth[name] for name in ("create cpu s", "failover cpu s", "resident MB")
    }
    return whole | growth


def grown(nodes: Nodes, count: int) -> Figures:
    with three(nodes) as cluster:
        spent = Spent(cluster)
        empty_mb = cluster.resident_mb()
        for at in range(0, count, PER_TOPIC):
            cluster.create(f"many-{at}", min(PER_TOPIC, count - at))
        all_led = spent.until(
            "all are led", 1, lambda parts: len(parts) >= count and all(p.leader_id > 0 for p in parts)
        )
        figures = {"create s": all_led[0], "create cpu s": all_led[1]}
        in_sync = spent.until("all are in sync", 1, lambda parts: all(len(p.isr_nodes) == len(NODES) for p in parts))
        figures |= {"create: in sync s": in_sync[0], "resident MB": cluster.resident_mb()}
        figures["KB a partition and node"] = (figures["resident MB"] - empty_mb) * 1024 / count / len(NODES)
        victim = NODES[-1]
        spent = Spent(cluster)
        cluster.nodes.kill(victim)
        others = set(NODES) - {victim}
        led = spent.until("others lead", 1, lambda parts: all(p.leader_id in others for p in parts))
        figures |= {"failover s": led[0], "failover cpu s": led[1]}
        spent = Spent(cluster)
        cluster.nodes.bring_back(victim)
        back = spent.until("it is in sync again", 1, lambda parts: all(len(p.isr_nodes) == len(NODES) for p in parts))
        return figures | {"restart: in sync s": back[0], "restart cpu s": back[1]}


class Spent:
    """Time and CPU of the nodes since this was made."""

    def __init__(self, cluster: Three) -> None:
        self._cluster = cluster
        self._began = time.perf_counter()
        self._cpu = {pid: cpu_of(cluster, pid) for pid in cluster.pids()}

    def until(self, what: str, by: int, holds: Callable[[list], bool]) -> tuple[float, float]:
        """Seconds, and CPU seconds, until something holds of all partitions."""
        self._cluster.until(what, by, holds)
        cpu = sum(cpu_of(self._cluster, pid) - self._cpu.get(pid, 0.0) for pid in self._cluster.pids())
        return time.perf_counter() - self._began, cpu


def cpu_of(cluster: Three, pid: int) -> float:
    return (Broker("node", cluster.address, pid).cpu_s() or (0.0, 0.0))[0]
