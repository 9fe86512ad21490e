"""Shows share groups as JSON and as metrics: which member holds which records, for how long, and how often delivered.

`broker/delivery` computes the figures. As with the other metrics, `take` reads the node on its event loop, and its
result can be printed on any thread.

Sources: Kafka's SharePartitionMetrics.java, ShareGroupMetrics.java, ShareGroupDLQMetrics (KIP-932, KIP-1103, KIP-1191);
names in the jmx_exporter's form.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ottla.machine import Millis
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC

if TYPE_CHECKING:
    from ottla.broker.delivery.describing import DescribedPartition
    from ottla.broker.delivery.sessions import ClientName
    from ottla.broker.node import Node
    from ottla.groups.shard import GroupShard
    from ottla.share.standing import InFlight


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One share group. The state is None if another node coordinates it. The coordinator is that node, None if there is
    none now."""

    group_id: str
    state: str | None
    coordinator: int | None


@dataclass(frozen=True, slots=True)
class ShareFigures:
    """All share groups at one moment."""

    now: Millis
    groups: list[GroupFigures]
    partitions: list[DescribedPartition]
    sessions: int


@dataclass(slots=True)
class RunFigures:
    """The runs in flight of one share partition, each with its member's client. `has_more`: they are not all."""

    runs: list[tuple[InFlight, ClientName]]
    has_more: bool = False


Runs: TypeAlias = dict[tuple[str, str, int], RunFigures]
"""By group, topic and partition."""


def is_fresh(node: Node, now: Millis) -> bool:
    """Whether the cluster still relies on this node's leaderships and coordinators."""
    return node.membership is None or node.membership.is_fresh(now)


def take(node: Node, now: Millis, group_id: str | None = None) -> ShareFigures:
    """Read the node. Runs on its event loop; a coordinator that no client has used yet stays unused."""
    share = node.coordinators.in_use.share
    partitions = share.describe(now, group_id) if share is not None else []
    groups = _coordinated_here(node, now, group_id)
    for name in {each.group_id for each in partitions} - groups.keys():
        groups[name] = _unknown_here(node, now, name)
    return ShareFigures(
        now, [group for _, group in sorted(groups.items())], partitions, len(share.sessions) if share is not None else 0
    )


async def take_runs(node: Node, figures: ShareFigures) -> Runs:
    """The runs in flight of the share partitions in these figures, with other work of the event loop in between."""
    share = node.coordinators.in_use.share
    found: Runs = {}
    if share is None:
        return found
    from ottla.broker.delivery.describing import RUNS_MAX, in_flight  # loaded already, as the node delivers records
    from ottla.broker.delivery.sessions import NO_CLIENT

    for group in figures.groups:
        for hosted in share.hosted_of(group.group_id):
            place = found[group.group_id, hosted.partition.topic_name, hosted.key.partition] = RunFigures([])
            slices = in_flight(hosted, 0, RUNS_MAX)
            is_last = False
            while not is_last:
                try:
                    some = next(slices)
                except StopIteration as end:
                    some, more = end.value
                    place.has_more, is_last = more is not None, True
                for run in some:
                    session = share.sessions.get(group.group_id, run.member)
                    place.runs.append((run, session.client if session is not None else NO_CLIENT))
                await asyncio.sleep(0)
    return found


def _coordinated_here(node: Node, now: Millis, group_id: str | None) -> dict[str, GroupFigures]:
    host = node.coordinators.in_use.groups
    loaded = host.loaded() if host is not None and is_fresh(node, now) else []
    return {
        group.group_id: GroupFigures(
            group.group_id,
            group.state,
            node.node_id,
        )
        for partition, shard in loaded
        if node.leadership.holds(partition)
        for group in cast("GroupShard", shard).share
        if group_id in (None, group.group_id)
    }


def _unknown_here(node: Node, now: Millis, group_id: str) -> GroupFigures:
    """A group whose records this node delivers, and which no coordinator on this node knows."""
    from ottla.protocol.coordinator_records import partition_of  # loaded already, as the node delivers records

    topic = node.image.topics.get(CONSUMER_OFFSETS_TOPIC)
    if topic is None:
        return GroupFigures(group_id, None, None)
    index = partition_of(group_id, len(topic.partitions))
    leader = topic.partitions[index].leader
    host = node.coordinators.in_use.groups
    loaded = host.loaded() if host is not None and is_fresh(node, now) else []
    is_here = any(partition.index == index and node.leadership.holds(partition) for partition, _ in loaded)
    return GroupFigures(group_id, "Dead" if is_here else None, leader if leader >= 0 else None)


def as_json(figures: ShareFigures, runs: Runs) -> bytes:
    """{"groups": [{"group", "state", "coordinator", "paused", "partitions": [{..., "held": [], "waiting": []}]}]}.

    Times are in milliseconds. The state is null if another node coordinates the group."""
    groups = [_group(figures, runs, group) for group in figures.groups]
    return json.dumps({"groups": groups}, indent=1).encode() + b"\n"


def _group(figures: ShareFigures, runs: Runs, group: GroupFigures) -> dict[str, Any]:
    partitions = [each for each in figures.partitions if each.group_id == group.group_id]
    return {
        "group": group.group_id,
        "state": group.state,
        "coordinator": group.coordinator,
        "paused": any(each.paused for each in partitions),
        "partitions": [
            _partition(each, figures.now, runs.get((each.group_id, each.topic, each.partition), RunFigures([])))
            for each in partitions
        ],
    }


def _partition(each: DescribedPartition, now: Millis, shown: RunFigures) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "start_offset": each.start_offset,
        "end_offset": each.end_offset,
        "in_flight": each.in_flight,
        "archiving": each.archiving,
        "completed": each.complete_count,
        "lag": each.lag,
        "runs": each.runs,
        "members": each.members,
        "acknowledged": each.acknowledged,
        "lock_timeouts": each.lock_timeouts,
        "dead_letters": each.dead_letters,
        "held": [_held(run, client, now) for run, client in shown.runs if run.member],
        "waiting": [_waiting(run, now) for run, _ in shown.runs if not run.member],
        "has_more": shown.has_more,
    }


def _held(run: InFlight, client: ClientName, now: Millis) -> dict[str, Any]:
    """A run that a member has acquired."""
    return {
        "first_offset": run.first,
        "last_offset": run.last,
        "member": run.member,
        "client_id": client.client_id,
        "host": client.host,
        "delivery_count": run.delivery_count,
        "held_ms": now - run.since,
        "lock_left_ms": run.until - now,
    }


def _waiting(run: InFlight, now: Millis) -> dict[str, Any]:
    """A run that waits for its next delivery, or for its dead letter."""
    is_back = run.state.name == "AVAILABLE"
    return {
        "first_offset": run.first,
        "last_offset": run.last,
        "state": run.state.name.lower(),
        "delivery_count": run.delivery_count,
        "next_try_ms": max(run.until - now, 0) if is_back else None,
    }


def metrics(figures: ShareFigures) -> Iterator[Metric]:
    """Metric families of all share groups."""
    counts = GaugeMetricFamily(
        "kafka_server_group_coordinator_metrics_share_group_count", "Share groups by state.", labels=("state",)
    )
    for state, count in sorted(Counter(group.state for group in figures.groups if group.state).items()):
        counts.add_metric((state,), count)
    yield counts
    sessions = "kafka_server_sharesessioncache_"
    yield GaugeMetricFamily(sessions + "sharesessionscount", "Share sessions that are open.", value=figures.sessions)
    yield from _partition_metrics(figures)
    yield from _group_metrics(figures)


def _partition_metrics(figures: ShareFigures) -> Iterator[Metric]:
    labels = ("group", "topic", "partition")
    place = "kafka_server_sharepartitionmetrics_"
    in_flight = GaugeMetricFamily(place + "inflightmessagecount", "Records that members hold.", labels=labels)
    runs = GaugeMetricFamily(place + "inflightbatchcount", "Runs of records in one state.", labels=labels)
    start = GaugeMetricFamily(place + "startoffset", "Everything before it is done.", labels=labels)
    lag = GaugeMetricFamily("kafka_sharegroup_lag", "Records that are not done (KIP-1226).", labels=labels)
    timeouts = CounterMetricFamily(place + "acquisitionlocktimeout", "Locks that ran out.", labels=labels)
    for each in figures.partitions:
        where = (each.group_id, each.topic, str(each.partition))
        in_flight.add_metric(where, each.in_flight)
        runs.add_metric(where, each.runs)
        start.add_metric(where, each.start_offset)
        if each.lag >= 0:
            lag.add_metric(where, each.lag)
        timeouts.add_metric(where, each.lock_timeouts)
    yield from (in_flight, runs, start, lag, timeouts)


def _group_metrics(figures: ShareFigures) -> Iterator[Metric]:
    acknowledged: Counter[tuple[str, str]] = Counter()
    letters: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    for each in figures.partitions:
        for kind, count in each.acknowledged.items():
            acknowledged[each.group_id, kind] += count
        letters[each.group_id] += each.dead_letters
        waiting[each.group_id] += each.archiving
    group = "kafka_server_sharegroupmetrics_"
    acks = CounterMetricFamily(
        group + "recordacknowledgements", "Records acknowledged, by type.", labels=("group", "ackType")
    )
    for (name, kind), count in sorted(acknowledged.items()):
        acks.add_metric((name, kind), count)
    dead = CounterMetricFamily(group + "deadletterqueuerecordcount", "Dead letters written.", labels=("group",))
    late = GaugeMetricFamily(
        "ottla_share_group_archiving", "Records that wait for their dead letter.", labels=("group",)
    )
    for name in sorted(letters):
        dead.add_metric((name,), letters[name])
        late.add_metric((name,), waiting[name])
    yield from (acks, dead, late)
