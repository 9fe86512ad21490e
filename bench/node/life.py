"""A node's life: starts, stops, kill -9, and many partitions. On nodes that the benchmark starts itself.

What a peer at an address can show of it too (memory, creating partitions and producing to all of them) is measured
there as well; it can't be started or killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

from bench.brokers import BenchFailedError, Broker, Nodes, OttlaNode, users_environment
from bench.figures import Figures, Scale, cpu_figures
from bench.frames import check_produced, connect, pipeline, produce_frame, record_batch
from ottla.client import ClientError

MEASURED_START_S = 60.0
FILL_BATCH = (1_000, 1_000)
"""Records and their bytes: a batch of a MB, which fills a log fastest."""
LOAD_PARTITIONS = 16
FREE_SHARE_MAX = 0.5

_EMBEDDED = """
import time
began = time.perf_counter()
from ottla.testing import EmbeddedBroker
from ottla.client import Client
def first(began):
    with EmbeddedBroker() as broker:
        topic = broker.create_topic()
        with Client(broker.bootstrap_servers) as client:
            client.produce_raw(topic, 0, bytearray.fromhex({batch!r}))
        return time.perf_counter() - began
print(first(began), first(time.perf_counter()))
"""


def memory(broker: Broker, scale: Scale) -> Figures:
    """Resident memory and open files of the broker as it is now."""
    resident_mb, files = broker.resident_mb(), broker.open_files()
    if resident_mb is None or files is None:
        return {}
    return {"resident MB": resident_mb, "open files": files}


def start_process(nodes: Nodes, scale: Scale) -> Figures:
    """`ottla serve` as a process, from its start to the first acknowledged message. Also when it said that it serves,
    its CPU time and memory, a clean stop, and the same start with the data of before."""
    node = nodes.make()
    batch = record_batch(1, 200)
    try:
        began = time.perf_counter()
        node.start()
        ready_s = time.perf_counter() - began
        topic = node.create_topic()
        produce_one(node, topic, batch)
        figures = {"ready s": ready_s, "first acknowledged s": time.perf_counter() - began}
        figures |= cpu_figures("start", node, (0.0, 0.0), "s", 1)
        figures |= memory(node, scale)
        began = time.perf_counter()
        node.stop()
        figures["clean stop s"] = time.perf_counter() - began
        figures["again: first acknowledged s"] = start_until_acknowledged(node, topic, batch)
    finally:
        node.kill()
    return figures


def start_embedded(nodes: Nodes, scale: Scale) -> Figures:
    """EmbeddedBroker in a new Python process: from before its import to the first acknowledged message. Then a second
    one in the same process."""
    program = _EMBEDDED.format(batch=record_batch(1, 200).hex())
    began = time.perf_counter()
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, timeout=MEASURED_START_S, env=users_environment())
    if run.returncode:
        raise BenchFailedError(f"the embedded broker failed: {run.stderr.strip().splitlines()[-1]}")
    cold_s, warm_s = map(float, run.stdout.split())
    return {
        "first acknowledged s": cold_s,
        "second broker: first acknowledged s": warm_s,
        "whole process s": time.perf_counter() - began,
    }


def kill_under_load(nodes: Nodes, scale: Scale) -> Figures:
    """kill -9 under load, a start at once: time from the kill to the next acknowledged message. Nothing that was
    acknowledged may be missing."""
    with nodes.running() as node:
        topic = node.create_topic(LOAD_PARTITIONS)
        with Producing(node, topic, LOAD_PARTITIONS) as load:
            time.sleep(max(scale.seconds, 0.2))
            began = time.perf_counter()
            node.kill()
        if load.failed:
            raise BenchFailedError(load.failed)
        spent_s = time.perf_counter() - began + start_until_acknowledged(node, topic, record_batch(1, 200))
        with node.client() as client:
            ends = client.list_offsets(topic, range(LOAD_PARTITIONS))
        lost = sum(max(0, acked - ends[index]) for index, acked in enumerate(load.acknowledged_ends))
        if lost:
            raise BenchFailedError(f"{lost} acknowledged messages are missing after kill -9")
        return {"kill to next acknowledged s": spent_s, "acknowledged before msg": sum(load.acknowledged_ends)}


class Producing:
    """Produce with acks=all to every partition in turn, from a thread, until the broker goes.

    `acknowledged_ends`: per partition, one past the last acknowledged offset.
    """

    def __init__(self, broker: Broker, topic: str, partitions: int) -> None:
        self.acknowledged_ends = [0] * partitions
        self.failed = ""
        batch = record_batch(10, 200)
        self._frames = [produce_frame(topic, index, batch, acks=-1) for index in range(partitions)]
        (self._connection,) = connect(broker)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        sent = answered = 0
        several = len(self._frames)
        try:
            with contextlib.suppress(ClientError):  # the kill
                while True:
                    while sent < answered + several:
                        self._connection.send_bytes(self._frames[sent % several])
                        sent += 1
                    base_offset = check_produced(self._connection.receive_raw())
                    self.acknowledged_ends[answered % several] = base_offset + 10
                    answered += 1
        except BenchFailedError as failure:
            self.failed = str(failure)


def many_partitions(broker: Broker, scale: Scale) -> Figures:
    """Many partitions (`--partitions`) on one broker: create them, produce to each, memory, restarts. On a node of our
    own: how long it takes to the next acknowledged message after a clean stop and after kill -9."""
    batch = record_batch(1, 200)
    before_mb = broker.resident_mb()
    began = time.perf_counter()
    with broker.topics(scale.partitions) as places:
        figures = {"create s": time.perf_counter() - began}
        figures |= delta_mb("empty", broker, before_mb)
        frames = [produce_frame(topic, index, batch) for topic, index in places]
        connections = connect(broker)
        first_s = pipeline(connections, frames, len(frames))
        cpu = broker.cpu_s()
        second_s = pipeline(connections, frames, len(frames))
        figures |= {"first round requests/s": len(frames) / first_s, "second round requests/s": len(frames) / second_s}
        figures |= cpu_figures("second round", broker, cpu, "us/request", len(frames) / 1e6)
        figures |= memory(broker, scale) | delta_mb("used", broker, before_mb) | idle(broker, scale.seconds)
        connections[0].close()
        if isinstance(broker, OttlaNode):
            figures |= restarts(broker, places[-1][0], batch)
            figures |= {f"after restart {name}": value for name, value in memory(broker, scale).items()}
    return figures


def full_restart(nodes: Nodes, scale: Scale) -> Figures:
    """1,000 partitions that hold `--gigabytes` together: time to the next acknowledged message after a restart. After a
    clean stop and after kill -9; and the rate at which they were filled."""
    batch = record_batch(*FILL_BATCH)
    each = max(1, int(scale.gigabytes * 1e9 / len(batch) / min(scale.partitions, 1_000)))
    with nodes.running() as node, node.topics(min(scale.partitions, 1_000)) as places:
        whole_gb = each * len(places) * len(batch) / 1e9
        if whole_gb > nodes.free_gb() * FREE_SHARE_MAX:
            raise BenchFailedError(
                f"{whole_gb:.1f} GB do not fit well into the {nodes.free_gb():.1f} GB free at {nodes.base}"
            )
        frames = (produce_frame(topic, index, batch) for topic, index in places)
        connections = connect(node)
        filled_s = sum(pipeline(connections, [frame], each) for frame in frames)
        connections[0].close()
        figures = {"filled GB": whole_gb, "fill MB/s": whole_gb * 1e3 / filled_s}
        figures |= restarts(node, places[-1][0], record_batch(1, 200)) | memory(node, scale)
        return figures


def restarts(node: OttlaNode, topic: str, batch: bytearray) -> Figures:
    """Seconds from the start of the process to the next acknowledged message, after a clean stop and after kill -9."""
    began = time.perf_counter()
    node.stop()
    figures = {"clean stop s": time.perf_counter() - began}
    figures["restart after clean stop s"] = start_until_acknowledged(node, topic, batch)
    node.kill()
    figures["restart after kill -9 s"] = start_until_acknowledged(node, topic, batch)
    return figures


def start_until_acknowledged(node: OttlaNode, topic: str, batch: bytearray) -> float:
    began = time.perf_counter()
    node.start()
    produce_one(node, topic, batch)
    return time.perf_counter() - began


def produce_one(broker: Broker, topic: str, batch: bytearray) -> None:
    with broker.client() as client:
        client.produce_raw(topic, 0, batch)


def idle(broker: Broker, seconds: float) -> Figures:
    """What the broker spends while nobody asks for anything: timers, flushes, checkpoints."""
    before, began = broker.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    return cpu_figures("idle", broker, before, "% of a core", (time.perf_counter() - began) / 100)


def delta_mb(what: str, broker: Broker, before_mb: float | None) -> Figures:
    now_mb = broker.resident_mb()
    return {} if before_mb is None or now_mb is None else {f"{what}: resident MB more": now_mb - before_mb}
