"""A million records in flight in one group: memory, what one acknowledgement costs; and a million on back-off.

Nodes of our own only: Kafka allows 10,000 records in flight. Two members take PIECE records in turns, so the window
consists of many runs and not of one, and they are members by hand (`queue_holder`): no client holds a million records.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator

from bench.brokers import BenchFailedError, Broker, Nodes, OttlaNode
from bench.figures import Figures
from bench.frames import connect, pipeline, produce_frame, record_batch
from bench.queues.holder import ACCEPT, BATCH_OPTIMIZED, EXACTLY, RELEASE, Holder
from bench.queues.members import new_group, set_configs
from ottla.client.connection import Posted

PIECE = 20
VALUE_BYTES = 20
FEW = 1_000
ACKNOWLEDGEMENTS = 300
RANGES_PER_REQUEST = 50
ON_THEIR_WAY = 5
WAIT_WINDOW_S = 2.0
LOCKS_MAX = 1_000_000
SETTINGS = {
    "group.share.max.partition.max.record.locks": str(LOCKS_MAX),
    "group.share.max.record.lock.duration.ms": "3600000",
}
LIMITS = {"share_partition_max_record_locks": str(LOCKS_MAX), "share_record_lock_duration_ms": "3600000"}


def in_flight(nodes: Nodes, records: int) -> Figures:
    with deep_node(nodes) as node, node.topic() as topic:
        fill(node, topic, records)
        few = min(FEW, records)
        with two_members(node, topic) as pair:
            take_all(pair, few)
            few_us = acknowledge_middle(pair, few)
        figures = {"resident before MB": node.resident_mb() or 0}
        with two_members(node, topic) as pair:
            began = time.perf_counter()
            take_all(pair, records)
            figures["acquire records/s"] = records / (time.perf_counter() - began)
            figures["resident in flight MB"] = node.resident_mb() or 0
            many_us = acknowledge_middle(pair, records)
            figures["resident after MB"] = node.resident_mb() or 0
    figures |= {f"acknowledge at {few} p50 us": few_us, f"acknowledge at {records} p50 us": many_us}
    return figures | {"acknowledge many / few": many_us / few_us}


def back_off(nodes: Nodes, records: int) -> Figures:
    with deep_node(nodes) as node, node.topic() as topic:
        fill(node, topic, records)
        with two_members(node, topic) as pair:
            held = take_all(pair, records)
            delay_s = 5 + records / 100_000  # more than the releases take
            delay = {"share_retry_backoff_ms": str(int(delay_s * 1000)), "share_retry_backoff_max_ms": "3600000"}
            set_configs(node, pair[0].group, **delay)
            began, cpu = time.perf_counter(), node.cpu_s()
            release_all(pair, held)
            released_s = time.perf_counter() - began
            figures = {"release records/s": records / released_s}
            figures["release cpu us/record"] = spent_s(node, cpu) / records * 1e6
            if released_s > delay_s - WAIT_WINDOW_S - 1:
                raise BenchFailedError(f"the releases took {released_s:.1f} s, longer than the first of them waits")
            time.sleep(0.5)
            cpu = node.cpu_s()
            time.sleep(WAIT_WINDOW_S)
            figures["waiting: cpu s per s"] = spent_s(node, cpu) / WAIT_WINDOW_S
            figures["waiting: resident MB"] = node.resident_mb() or 0
            figures["due: spread over s"] = released_s
            return figures | come_due(node, pair[0], records, began + delay_s)


def come_due(node: Broker, member: Holder, records: int, due: float) -> Figures:
    """From the first record that comes due to the last, while somebody asks the node small things."""
    waited_ms, over = [], threading.Event()

    def ask() -> None:
        with node.client() as client:
            while not over.wait(0.01):
                began = time.perf_counter()
                client.metadata([])
                waited_ms.append((time.perf_counter() - began) * 1000)

    other, cpu = threading.Thread(target=ask), node.cpu_s()
    other.start()
    had, first, deadline = 0, 0.0, due + 120
    try:
        while had < records:
            got = member.fetch(10_000, BATCH_OPTIMIZED)
            first = first or (time.perf_counter() if got else 0.0)
            had += sum(last - begin + 1 for begin, last, _ in got)
            if any(count != 2 for _, _, count in got):
                raise BenchFailedError("a record came back with another delivery count than 2")
            if time.perf_counter() > deadline:
                raise BenchFailedError(f"{had} of {records} records came back")
        ended = time.perf_counter()
    finally:
        over.set()
        other.join()
    if first < due:
        raise BenchFailedError("a record came back before its time")
    return {
        "due: first one after s": first - due,
        "due: all delivered within s": ended - first,
        "due: cpu us/record": spent_s(node, cpu) / records * 1e6,
        "due: resident MB": node.resident_mb() or 0,
        "due: others wait p50 ms": statistics.median(waited_ms),
        "due: others wait most ms": max(waited_ms),
    }


def spent_s(node: Broker, before: tuple[float, float] | None) -> float:
    after = node.cpu_s()
    return 0.0 if before is None or after is None else after[0] - before[0]


# ---- the node, its records, its members ----------------------------------------------------------------------------


@contextlib.contextmanager
def deep_node(nodes: Nodes) -> Iterator[OttlaNode]:
    """A fresh node that allows a million records in flight."""
    node = nodes.make()
    node.settings = {**node.settings, **SETTINGS}
    try:
        node.start()
        yield node
    finally:
        node.kill()


def fill(node: Broker, topic: str, records: int) -> None:
    """Batches of PIECE records."""
    connections = connect(node)
    try:
        pipeline(connections, [produce_frame(topic, 0, record_batch(PIECE, VALUE_BYTES))], records // PIECE)
    finally:
        for connection in connections:
            connection.close()


@contextlib.contextmanager
def two_members(node: Broker, topic: str) -> Iterator[tuple[Holder, Holder]]:
    """Of a new group."""
    group = new_group(node, **LIMITS)
    first = Holder(node, group, topic)
    second = Holder(node, group, topic)
    try:
        yield first, second
    finally:
        first.close()
        second.close()


def take_all(pair: tuple[Holder, Holder], records: int) -> list[list[tuple[int, int]]]:
    """The first so many records, in turns; each member's (first, last)."""
    held: list[list[tuple[int, int]]] = [[], []]
    had = turn = 0
    deadline = time.monotonic() + 120
    while had < records:
        for first, last, _ in pair[turn].fetch(min(PIECE, records - had), EXACTLY):
            held[turn].append((first, last))
            had += last - first + 1
        turn = 1 - turn
        if time.monotonic() > deadline:
            raise BenchFailedError(f"{had} of {records} records were acquired")
    return held


def acknowledge_middle(pair: tuple[Holder, Holder], records: int) -> float:
    """Accept single records in the middle, one after the other; the median in microseconds."""
    low, high = records // 4, records * 3 // 4
    offsets = random.Random(1).sample(range(low, high), min(ACKNOWLEDGEMENTS, (high - low) // 2))
    spent_us: list[float] = []
    for offset in offsets:
        holder = pair[offset // PIECE % 2]
        began = time.perf_counter()
        holder.acknowledge(offset, offset, ACCEPT)
        spent_us.append((time.perf_counter() - began) * 1e6)
    return statistics.median(spent_us)


def release_all(pair: tuple[Holder, Holder], held: list[list[tuple[int, int]]]) -> None:
    """Everything, in an order without order: neighbours come due at different times."""
    for holder, ranges in zip(pair, held, strict=True):
        random.Random(2).shuffle(ranges)
        on_way: deque[Posted] = deque()
        for index in range(0, len(ranges), RANGES_PER_REQUEST):
            on_way.append(holder.post(sorted(ranges[index : index + RANGES_PER_REQUEST]), RELEASE))
            if len(on_way) > ON_THEIR_WAY:
                holder.take(on_way.popleft())
        while on_way:
            holder.take(on_way.popleft())
