"""Finds what `ottla cluster describe` shows: nodes, partitions with a problem, and what a stop of each node would
affect.

It asks with Ottla's own client.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.cli.times import shown_time
from ottla.metadata.topic_names import INTERNAL_TOPICS

if TYPE_CHECKING:
    from ottla.client import Client

"""The resource type of a topic, for configs."""
TOPICS_ASKED = 500
"""The number of topics in one request for configs."""
MIN_ISR, HOLD = "min.insync.replicas", "ottla.retention.hold"
FACTOR = "default.replication.factor"
OFFLINE, REFUSES = "offline", "acks=all refused"


class Placed(NamedTuple):
    """A partition according to the metadata. `leader` is -1 if there is none; `min_isr` is what acks=all requires, at
    most the number of replicas. `offline`: the nodes that are down, or cannot use their log of the partition.
    `on_hold`: nothing of the topic is deleted, as its configs are unknown."""

    topic: str
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    min_isr: int
    offline: tuple[int, ...] = ()
    on_hold: bool = False

    @property
    def lack(self) -> str | None:
        """Its problem: "offline" without a leader, "under min.insync.replicas" if acks=all is rejected,
        "under-replicated", or "log fails" if its leader can't use its log and no other replica exists."""
        if self.leader < 0:
            return "offline"
        if len(self.isr) < self.min_isr:
            return "under min.insync.replicas"
        if len(self.isr) < len(self.replicas):
            return "under-replicated"
        return "log fails" if self.leader in self.offline else None

    def after_stop_of(self, node_id: int) -> str | None:
        """The effect of stopping this node: the partition would go offline, or would reject acks=all, and does not now.
        None if there is none."""
        if node_id not in self.isr or self.leader < 0:
            return None
        if len(self.isr) == 1:
            return OFFLINE
        return REFUSES if len(self.isr) == self.min_isr else None


class Disk(NamedTuple):
    """A node's data directory, in bytes: its logs, and the free space of its volume; None if unknown."""

    used: int | None
    free: int | None


UNTOLD = Disk(None, None)


def facts(client: Client, client_of: Callable[[str], Client]) -> dict[str, Any]:
    """All facts, in the form of the JSON output. `client_of`: returns a client for one address. Raises ClientError.

    A client that may not describe the cluster sees some topics only. Then `partial` is true, and the effects of a stop
    are unknown."""
    from ottla.protocol.acls import Operation
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    asked = DescribeClusterRequest(include_cluster_authorized_operations=True, include_fenced_brokers=True)
    seen = client.send(asked)
    partial = not seen.cluster_authorized_operations >> Operation.DESCRIBE & 1
    parts = placed_of(client)
    waits = eligible_of(client, sorted({part.topic for part in parts if part.leader < 0}))
    up = {broker.broker_id for broker in seen.brokers if not broker.is_fenced}
    down = {broker.broker_id for broker in seen.brokers if broker.is_fenced}
    nodes = [
        node_facts(broker, seen.controller_id, parts, UNTOLD if broker.is_fenced else disk_of(broker, client_of))
        for broker in sorted(seen.brokers, key=lambda each: each.broker_id)
    ]
    if partial:
        nodes = [{**node, "stop": None} for node in nodes]
    return {
        "cluster": seen.cluster_id,
        "controller": None if seen.controller_id < 0 else seen.controller_id,
        "topics": len({part.topic for part in parts}),
        "partitions": len(parts),
        "nodes": nodes,
        "lacking": [lacking(part, waits, up, down) for part in parts if part.lack is not None],
        "on_hold": sorted({part.topic for part in parts if part.on_hold}),
        "few_replicas": few_replicas(parts, min(factor_of(client, up), len(seen.brokers))),
        "partial": partial,
        "in_sync_changes": None if partial else in_sync_changes(seen, client_of),
    }


def in_sync_changes(seen: Any, client_of: Callable[[str], Client]) -> list[dict[str, Any]] | None:
    """The changes of in-sync replicas in the last hour that leaders remember, newest first; None if no node reports
    them, because it is not Ottla's, or if the controller does not answer."""
    from ottla.client import ClientError
    from ottla.doctor.replicas import changes_of_last_hour, event, where_left

    up = {broker.broker_id: f"{broker.host}:{broker.port}" for broker in seen.brokers if not broker.is_fenced}
    if seen.controller_id not in up:
        return None
    try:
        with client_of(up[seen.controller_id]) as client:
            client.metadata([])
            changes, failed = changes_of_last_hour(client, sorted(up))
    except ClientError:
        return None
    if len(failed) == len(up):
        return None
    return [
        {
            "time": shown_time(each.at_ms),
            "node": each.node,
            "event": event(each),
            "partitions": where_left(each),
            "leader": leader,
        }
        for leader, each in changes
    ]


def node_facts(broker: Any, controller_id: int, parts: Iterable[Placed], disk: Disk) -> dict[str, Any]:
    """The facts about one node."""
    node_id = int(broker.broker_id)
    of_node = [part for part in parts if node_id in part.replicas]
    hindering = [(part, after) for part in of_node if (after := part.after_stop_of(node_id)) is not None]
    return {
        "node": node_id,
        "address": f"{broker.host}:{broker.port}",
        "rack": broker.rack,
        "state": "down" if broker.is_fenced else "up",
        "controller": node_id == controller_id,
        "leaders": sum(part.leader == node_id for part in of_node),
        "replicas": len(of_node),
        "in_sync": sum(node_id in part.isr for part in of_node),
        "disk_used": disk.used,
        "disk_free": disk.free,
        "stop": [{"topic": part.topic, "partition": part.partition, "then": after} for part, after in hindering],
    }


def lacking(
    part: Placed,
    eligible: Mapping[tuple[str, int], Sequence[int]],
    up: Collection[int] = (),
    down: Collection[int] = (),
) -> dict[str, Any]:
    """The facts about a partition with a problem. `failed_on`: the nodes that are `up` and cannot use their log of it.

    A partition without a leader waits for one of its eligible replicas. If it has none, it waits for all replicas, and
    the one with the longest log leads. If an eligible one is up, nodes were killed, and it waits for the other eligible
    ones, or for any others. A topic that was adopted from its logs waits for all nodes: they may have logs of it too.
    """
    able = eligible.get((part.topic, part.partition), ())
    waits_for = list(able or part.replicas) if part.leader < 0 else []
    if part.leader < 0 and any(node in up for node in able):
        others = [node for node in able if node not in up] or [node for node in part.replicas if node not in up]
        waits_for = others or waits_for
    elif part.leader < 0 and (part.on_hold or part.topic in INTERNAL_TOPICS) and all(each in up for each in waits_for):
        waits_for = sorted(down) or waits_for
    return {
        "topic": part.topic,
        "partition": part.partition,
        "leader": None if part.leader < 0 else part.leader,
        "replicas": list(part.replicas),
        "isr": list(part.isr),
        "lack": part.lack,
        "waits_for": waits_for,
        "failed_on": [node for node in part.offline if node in up],
    }


def few_replicas(parts: Iterable[Placed], wanted: int) -> list[dict[str, Any]]:
    """The topics of which a partition has fewer replicas than another one, or than `wanted` if the topic was adopted
    from logs, as its configs show: it is on hold, or the cluster's own. By name."""
    counts: dict[str, list[int]] = {}
    for part in parts:
        least = wanted if part.on_hold or part.topic in INTERNAL_TOPICS else 0
        counts.setdefault(part.topic, [least]).append(len(part.replicas))
    return [
        {"topic": topic, "replicas": min(has), "wanted": max(least, *has)}
        for topic, (least, *has) in sorted(counts.items())
        if min(has) < max(least, *has)
    ]


# ---- requests ------------------------------------------------------------------------------------------------------


def placed_of(client: Client) -> list[Placed]:
    """Every partition of the cluster, by topic and index. Raises ClientError."""
    from ottla.protocol.messages.metadata import MetadataRequest

    topics = client.send(MetadataRequest(topics=None, allow_auto_topic_creation=False)).topics
    wanted = configs_of(client, [topic.name for topic in topics])
    return [
        Placed(
            topic.name,
            part.partition_index,
            part.leader_id,
            tuple(part.replica_nodes),
            tuple(part.isr_nodes),
            min(int(wanted.get(topic.name, {}).get(MIN_ISR) or 1), len(part.replica_nodes)),
            tuple(part.offline_replicas),
            wanted.get(topic.name, {}).get(HOLD) == "true",
        )
        for topic in sorted(topics, key=lambda each: each.name)
        for part in sorted(topic.partitions, key=lambda each: each.partition_index)
    ]


def eligible_of(client: Client, names: list[str]) -> dict[tuple[str, int], list[int]]:
    """The eligible replicas (KIP-966) of each partition of these topics. Raises ClientError."""
    return {place: list(part.eligible_leader_replicas or ()) for place, part in standing_of(client, names).items()}


def standing_of(client: Client, names: list[str]) -> dict[tuple[str, int], Any]:
    """The answer of DescribeTopicPartitions for each partition of these topics. Raises ClientError."""
    from ottla.protocol.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest,
        RequestCursor,
        TopicRequest,
    )

    found: dict[tuple[str, int], Any] = {}
    for at in range(0, len(names), TOPICS_ASKED):
        asked = [TopicRequest(name) for name in names[at : at + TOPICS_ASKED]]
        cursor: RequestCursor | None = None
        while True:
            answer = client.send(DescribeTopicPartitionsRequest(asked, cursor=cursor))
            for topic in answer.topics:
                for part in topic.partitions:
                    found[topic.name or "", part.partition_index] = part
            if answer.next_cursor is None:
                break
            cursor = RequestCursor(answer.next_cursor.topic_name, answer.next_cursor.partition_index)
    return found


def factor_of(client: Client, up: Collection[int]) -> int:
    """How many replicas a new topic gets; 0 if no node tells this client."""
    from ottla.client import ClientError
    from ottla.protocol.config_resources import ConfigResourceType
    from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    asked = [DescribeConfigsResource(ConfigResourceType.BROKER, str(min(up, default=0)), [FACTOR])]
    with suppress(ClientError):
        for result in client.send(DescribeConfigsRequest(resources=asked)).results:
            for config in result.configs:
                return int(config.value or 0)
    return 0


def configs_of(client: Client, names: list[str]) -> Mapping[str, Mapping[str, str | None]]:
    """The configs of topics that matter here, by topic. Raises ClientError."""
    from ottla.protocol.config_resources import ConfigResourceType
    from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

    found: dict[str, dict[str, str | None]] = {}
    for at in range(0, len(names), TOPICS_ASKED):
        some, configs = names[at : at + TOPICS_ASKED], [MIN_ISR, HOLD]
        asked = [DescribeConfigsResource(ConfigResourceType.TOPIC, name, configs) for name in some]
        for result in client.send(DescribeConfigsRequest(resources=asked)).results:
            found[result.resource_name] = {config.name: config.value for config in result.configs}
    return found


def disk_of(broker: Any, client_of: Callable[[str], Client]) -> Disk:
    """The disk usage that this node reports; unknown if it does not answer, or may not tell this client."""
    from ottla.client import ClientError
    from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsRequest

    with suppress(ClientError), client_of(f"{broker.host}:{broker.port}") as client:
        results = client.send(DescribeLogDirsRequest(topics=None)).results
        if not results:
            return UNTOLD
        used = sum(part.partition_size for each in results for topic in each.topics for part in topic.partitions)
        free = sum(each.usable_bytes for each in results)
        return Disk(used, free if free >= 0 else None)
    return UNTOLD
