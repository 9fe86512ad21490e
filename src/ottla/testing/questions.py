"""Asks nodes of a test's cluster who is active, who leads, who coordinates, and which replicas are in sync.

Each function asks once, over the wire as any client does, and raises `ottla.client.ClientError` if a node does not
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ottla.client import Client

    Connect: TypeAlias = Callable[..., Client]
    """Makes the client for an address; also takes `timeout_s`."""

ANSWER_TIMEOUT_S = 5.0
GROUP, TRANSACTION = 0, 1
"""Kafka's numbers for what a coordinator is asked for."""


def active(connect: Connect, address: str) -> list[int]:
    """The nodes that serve, as this one reports it."""
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    with connect(address) as client:
        return sorted(each.broker_id for each in client.send(DescribeClusterRequest()).brokers)


def leader_of(connect: Connect, addresses: Iterable[str], topic: str, partition: int) -> int | None:
    """The leader of a partition under the newest leader epoch that these nodes report; None if there is none."""
    newest = (-1, -1)
    for address in addresses:
        with connect(address, timeout_s=ANSWER_TIMEOUT_S) as client:
            for part in client.metadata([topic]).topics[0].partitions:
                if part.partition_index == partition:
                    newest = max(newest, (part.leader_epoch, part.leader_id))
    return None if newest[1] < 0 else newest[1]


def coordinator_of(connect: Connect, addresses: Sequence[str], name: str, *, is_group: bool) -> int | None:
    """The coordinator of a group or of a transactional id; None if the nodes do not agree on one."""
    from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest

    found: set[int] = set()
    for address in addresses:
        with connect(address, timeout_s=ANSWER_TIMEOUT_S) as client:
            key_type = GROUP if is_group else TRANSACTION
            (answer,) = client.send(FindCoordinatorRequest(key_type=key_type, coordinator_keys=[name])).coordinators
            found.add(-1 if answer.error_code else answer.node_id)
    only = found.pop()
    return None if found or only < 0 else only


def not_in_sync(connect: Connect, addresses: Iterable[str], topic: str | None) -> list[str]:
    """A phrase for each partition of the topic (None: of every topic) that lacks replicas in sync, as the first node
    reports it that reports any."""
    for address in addresses:
        with connect(address, timeout_s=ANSWER_TIMEOUT_S) as client:
            topics = client.metadata(None if topic is None else [topic]).topics
        if lacking := [
            f"{each.name}-{part.partition_index} has replicas {numbers(part.replica_nodes)}, "
            f"in sync {numbers(part.isr_nodes)}"
            for each in topics
            for part in each.partitions
            if set(part.isr_nodes) != set(part.replica_nodes) or part.leader_id < 0
        ]:
            return lacking
        if absent := [f"there is no topic {each.name}" for each in topics if each.error_code]:
            return absent
    return []


def numbers(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"
