"""One machine as three nodes, with one copy of each record, beside the same machine as one node.

What is asked for is at least 1.5 of one node's throughput where the clients leave the cores free: on two cores a client
takes a part of what the three nodes could have.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from bench.brokers import Broker, Nodes
from bench.cluster.life import three
from bench.figures import Figures, Scale, cpu_figures
from bench.frames import pipeline, produce_frame, record_batch
from bench.node.throughput import Load
from ottla.demo.cluster import NODES

LIBRDKAFKA = Load.named("throughput-200B-12p")
RECORDS, SIZE = 1_000, 1_000
"""Of a batch of the raw load: large, so that the client costs little beside what takes it."""
BATCHES_PER_S = 300
WARM_UP = 20


def spread(nodes: Nodes, scale: Scale) -> Figures:
    """Three nodes with one copy of each record beside one node, librdkafka and raw Produce, and the ratios of their
    rates."""
    with nodes.running() as node:
        one = rates(node, scale)
    with three(nodes, {"default.replication.factor": "1"}) as cluster:
        many = rates(cluster, scale)
    ratios = {f"{name}: of one node's": many[name] / one[name] for name in many if name.endswith("/s")}
    return {f"one node: {name}": value for name, value in one.items()} | many | ratios


def rates(broker: Broker, scale: Scale) -> Figures:
    assert LIBRDKAFKA is not None
    clients = LIBRDKAFKA.measure(broker, scale)
    figures = {f"librdkafka {name}": clients[name] for name in ("produce msg/s", "consume msg/s", "produce cpu s/GB")}
    batch = record_batch(RECORDS, SIZE)
    each = max(WARM_UP, int(scale.seconds * BATCHES_PER_S))
    with broker.topic(len(NODES)) as topic, ThreadPoolExecutor(len(NODES)) as threads:

        def load(partition: int, requests: int) -> None:
            with broker.client() as client:
                pipeline([client.leader(topic, partition)], [produce_frame(topic, partition, batch)], requests)

        def at_once(requests: int) -> float:
            began = time.perf_counter()
            list(threads.map(load, range(len(NODES)), [requests] * len(NODES)))
            return time.perf_counter() - began

        with broker.client() as client:
            for partition in range(len(NODES)):
                client.produce_raw(topic, partition, batch)  # asks again until the leader has heard of the topic
        at_once(WARM_UP)
        cpu, spent_s = broker.cpu_s(), at_once(each)
        gigabytes = each * len(NODES) * len(batch) / 1e9
        figures["raw produce MB/s"] = gigabytes * 1e3 / spent_s
        return figures | cpu_figures("raw produce", broker, cpu, "s/GB", gigabytes)
