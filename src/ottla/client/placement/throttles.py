"""Limits the bytes a second of replicas that are being moved, and removes these limits again.

It sets the configs of nodes and topics for this (KIP-73), as Kafka's kafka-reassign-partitions does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from ottla.client.client import Client
from ottla.client.connection import Connection
from ottla.client.errors import BrokerError, check
from ottla.client.placement.balance import Move
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import DescribeClusterRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

SET, DELETE = 0, 1
OWN: Final[Mapping[int, int]] = {ConfigResourceType.BROKER: 2, ConfigResourceType.TOPIC: 1}
"""The source of a config that belongs to this node, or this topic, alone."""
RATES: tuple[str, ...] = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS: tuple[str, ...] = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
TOPICS_ASKED = 500
"""The number of topics in one request for configs."""

Resource: TypeAlias = tuple[int, str]
"""A node or a topic: its type, and its name."""


class RefusedError(BrokerError):
    """The cluster rejected a move, or its throttle; the text is one sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(code, sentence)
        self.args = (sentence,)


def limit(client: Client, moves: Sequence[Move], rate: int) -> None:
    """Limit the nodes of these moves to this many bytes a second for them. Raises ClientError."""
    concerned = {node for move in moves for node in (*move.before, *move.after)}
    for node in serving(client) & concerned:
        alter(client.broker(node), {(ConfigResourceType.BROKER, str(node)): dict.fromkeys(RATES, str(rate))})
    topics: dict[str, tuple[list[str], list[str]]] = {}
    for move in moves:
        name, index = move.place
        sending, taking = topics.setdefault(name, ([], []))
        sending += [f"{index}:{node}" for node in move.before]
        taking += [f"{index}:{node}" for node in move.after if node not in move.before]
    of_topics: dict[Resource, dict[str, str | None]] = {
        (ConfigResourceType.TOPIC, name): {key: ",".join(pairs) for key, pairs in zip(REPLICAS, sides, strict=True)}
        for name, sides in topics.items()
    }
    alter(client, of_topics)


def left(client: Client) -> set[Resource]:
    """The nodes and topics that have such limits. Raises ClientError."""
    found: set[Resource] = set()
    for node in serving(client):
        found |= limited(client.broker(node), ConfigResourceType.BROKER, [str(node)], RATES)
    names = [topic.name for topic in client.topics()]
    for at in range(0, len(names), TOPICS_ASKED):
        found |= limited(client, ConfigResourceType.TOPIC, names[at : at + TOPICS_ASKED], REPLICAS)
    return found


def limited(to: Client | Connection, kind: int, names: Sequence[str], keys: Sequence[str]) -> set[Resource]:
    """Those of these resources that have one of these configs."""
    asked = [DescribeConfigsResource(kind, name, list(keys)) for name in names]
    return {
        (kind, result.resource_name)
        for result in to.send(DescribeConfigsRequest(resources=asked)).results
        if any(config.config_source == OWN[kind] for config in result.configs)
    }


def rate_of(client: Client, node: int) -> int | None:
    """The bytes a second that this node copies at most for moves, None without a limit. Raises ClientError."""
    asked = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(ConfigResourceType.BROKER, str(node), list(RATES))]
    )
    (result,) = client.broker(node).send(asked).results
    check(result.error_code, f"the configs of node {node}", result.error_message)
    rates = [
        int(each.value)
        for each in result.configs
        if each.config_source == OWN[ConfigResourceType.BROKER] and each.value
    ]
    return min(rates, default=None)


def lift(client: Client, limited: Iterable[Resource]) -> list[str]:
    """Remove these limits; returns where they were. Raises ClientError."""
    told: list[str] = []
    topics: list[str] = []
    for kind, name in sorted(limited):
        if kind == ConfigResourceType.BROKER:
            alter(client.broker(int(name)), {(ConfigResourceType.BROKER, name): dict.fromkeys(RATES)})
            told.append(f"node {name}")
        else:
            topics.append(name)
    if topics:
        alter(client, {(ConfigResourceType.TOPIC, name): dict.fromkeys(REPLICAS) for name in topics})
    return told + topics


def serving(client: Client) -> set[int]:
    """The active nodes. Raises ClientError."""
    return {broker.broker_id for broker in client.send(DescribeClusterRequest()).brokers}


def alter(to: Client | Connection, configs: Mapping[tuple[int, str], Mapping[str, str | None]]) -> None:
    """Set these configs, or delete them if the value is None; a node's configs are sent to that node. Raises
    ClientError."""
    resources = [
        AlterConfigsResource(
            kind,
            name,
            [AlterableConfig(key, DELETE if value is None else SET, value) for key, value in of_one.items()],
        )
        for (kind, name), of_one in configs.items()
    ]
    for each in to.send(IncrementalAlterConfigsRequest(resources=resources)).responses:
        if each.error_code:
            why = each.error_message or ErrorCode(each.error_code).message
            raise RefusedError(
                each.error_code, f"The limit could not be set at {each.resource_name}: {why.rstrip('.')}."
            )
