"""One machine as three nodes, with one copy of each record, beside the same machine as one node.

What is asked for is at least 1.5 of one node's throughput where the clients leave the cores free. A node alone has a
core, three nodes have those of the machine but for what the client takes: with n the CPU of the nodes for some load and
c that of the client, the machine allows cores * n(one) / (n(three) + c) of one node's rate. This stands beside what the
raw loads reach, whose client is light; librdkafka's takes more than a core, and nothing is left to gain.
"""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from bench.brokers import Broker, Nodes
from bench.cluster.life import three
from bench.figures import Figures, Scale
from bench.frames import check_produced, produce_frame, record_batch, stream
from bench.node.throughput import Load
from ottla.demo.cluster import NODES

LIBRDKAFKA = Load.named("throughput-200B-12p")
WARM_UP = 20


class Raw(NamedTuple):
    """A raw load: batches of `records` of `size` bytes, `together` in one write of the client."""

    name: str
    records: int
    size: int
    together: int
    batches_per_s: int


RAW = (Raw("raw 1000x1kB", 1_000, 1_000, 1, 300), Raw("raw 50x200B", 50, 200, 10, 10_000))
"""What a broker copies, and what it decides about."""


def spread(nodes: Nodes, scale: Scale) -> Figures:
    """Three nodes with one copy of each record beside one node, librdkafka and raw Produce, and the ratios of their
    rates."""
    with nodes.running() as node:
        one = rates(node, scale)
    with three(nodes, {"default.replication.factor": "1"}) as cluster:
        many = rates(cluster, scale)
    ratios = {f"{name}: of one node's": many[name] / one[name] for name in many if name.endswith("/s")}
    for raw in RAW:
        node_s, client_s = many[f"{raw.name} cpu s/GB"], many[f"{raw.name} client's cpu s/GB"]
        cores = os.cpu_count() or 1
        ratios[f"{raw.name}: the cores allow"] = cores * one[f"{raw.name} cpu s/GB"] / (node_s + client_s)
    return {f"one node: {name}": value for name, value in one.items()} | many | ratios


def rates(broker: Broker, scale: Scale) -> Figures:
    assert LIBRDKAFKA is not None
    clients = LIBRDKAFKA.measure(broker, scale)
    figures = {f"librdkafka {name}": clients[name] for name in ("produce msg/s", "consume msg/s", "produce cpu s/GB")}
    for raw in RAW:
        figures |= raw_rates(broker, scale, raw)
    return figures


def raw_rates(broker: Broker, scale: Scale, raw: Raw) -> Figures:
    """A connection to the leader of each of three partitions, all at once."""
    batch = record_batch(raw.records, raw.size)
    each = max(WARM_UP, int(scale.seconds * raw.batches_per_s))
    with broker.topic(len(NODES)) as topic, ThreadPoolExecutor(len(NODES)) as threads:
        with broker.client() as client:
            for partition in range(len(NODES)):
                client.produce_raw(topic, partition, batch)  # asks again until the leader has heard of the topic
            leaders = [client.leader(topic, partition).address for partition in range(len(NODES))]
        frames = [produce_frame(topic, partition, batch) for partition in range(len(NODES))]

        def at_once(total: int) -> list[list[bytearray]]:
            return list(threads.map(partial(stream, together=raw.together, total=total), leaders, frames))

        at_once(WARM_UP)
        nodes_s, client_s, began = cpu_s(broker), time.process_time(), time.perf_counter()
        answers = at_once(each)
        spent_s, client_s, nodes_s = (
            time.perf_counter() - began,
            time.process_time() - client_s,
            cpu_s(broker) - nodes_s,
        )
    for answer in itertools.chain(*answers):
        check_produced(answer)
    gigabytes = each * len(NODES) * len(batch) / 1e9
    return {
        f"{raw.name} MB/s": gigabytes * 1e3 / spent_s,
        f"{raw.name} cpu s/GB": nodes_s / gigabytes,
        f"{raw.name} client's cpu s/GB": client_s / gigabytes,
    }


def cpu_s(broker: Broker) -> float:
    return (broker.cpu_s() or (0.0, 0.0))[0]
