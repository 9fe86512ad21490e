"""Checks nodes: addresses, disks, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.snapshot import Evidence, Node
from ottla.doctor.words import duration, names, size

DISK_WARNING: Final = 0.85
DISK_FULL: Final = 0.95
"""Parts of a disk that are in use."""
SOON_S: Final = 2 * 86_400
"""A disk that is full within this time is a finding."""
GROWTH_MIN_BYTES: Final = 10_000_000
"""Less growth between two snapshots says nothing about days."""
WANDERS: Final = 3
"""Elections of one partition between two snapshots from which on its leaders wander."""


def unreachable(evidence: Evidence) -> Iterator[Finding]:
    """Advertised addresses that clients on this machine cannot connect to."""
    for node in evidence.last.nodes:
        if node.unreachable is not None:
            yield Finding(
                Severity.WARNING,
                f"node {node.id}",
                f"Node {node.id} tells clients to connect to {node.host}:{node.port}, and that fails here: "
                f"{node.unreachable}.",
                "check that the node runs, and set advertised.listeners to an address that clients reach",
            )


def disk_fills(evidence: Evidence) -> Iterator[Finding]:
    """Disks that are almost full, or soon will be, and directories with errors."""
    earlier = {(node.id, disk.path): disk for node in evidence.first.nodes for disk in node.disks}
    for node in evidence.last.nodes:
        for disk in node.disks:
            if disk.error is not None:
                yield Finding(
                    Severity.DATA_AT_RISK,
                    f"node {node.id}",
                    f"Node {node.id} cannot use {disk.path}: {disk.error}.",
                    "check the disk and the node's log",
                )
            if not disk.total or disk.usable is None:
                continue
            used = 1 - disk.usable / disk.total
            before = earlier.get((node.id, disk.path))
            left_s = None
            if before is not None and before.usable is not None and evidence.window_s > 0:
                growth = before.usable - disk.usable
                if growth >= GROWTH_MIN_BYTES:
                    left_s = disk.usable / growth * evidence.window_s
            if used < DISK_WARNING and (left_s is None or left_s > SOON_S):
                continue
            soon = "" if left_s is None or left_s > SOON_S else f", and full in {duration(left_s)} at the present rate"
            yield Finding(
                Severity.DATA_AT_RISK if used >= DISK_FULL else Severity.WARNING,
                f"node {node.id}",
                f"{disk.path} of node {node.id} is {used:.0%} full ({size(disk.usable)} left){soon}."
                + _largest(evidence, node),
                "shorter retention, a larger disk, or `ottla cluster rebalance`",
                None if used >= DISK_WARNING else "a longer --window",
            )


def _largest(evidence: Evidence, node: Node) -> str:
    """A sentence about the topic with the most bytes on the node."""
    sizes: dict[str, int] = {}
    for topic, partition in evidence.last.partitions():
        if node.id in partition.replicas and partition.size is not None:
            sizes[topic.name] = sizes.get(topic.name, 0) + partition.size
    if not sizes:
        return ""
    name = max(sizes, key=lambda each: sizes[each])
    return f" The largest topic there is {name}, with {size(sizes[name])}."


def leaders_wander(evidence: Evidence) -> Iterator[Finding]:
    """Partitions that elect leaders again and again."""
    before = evidence.first.places()
    found: dict[str, list[int]] = {}
    for topic, partition in evidence.last.partitions():
        earlier = before.get((topic.name, partition.index))
        if earlier is not None and 0 <= earlier.leader_epoch <= partition.leader_epoch - WANDERS:
            found.setdefault(topic.name, []).append(partition.leader_epoch - earlier.leader_epoch)
    if found:
        yield Finding(
            Severity.WARNING,
            "leaders",
            f"Leaders wander: {names(sorted(found))} changed leaders up to {max(map(max, found.values()))} times in "
            f"{duration(evidence.window_s)}.",
            "look for a node that loses its session, or restarts: `ottla cluster describe`",
        )


def risky_settings(evidence: Evidence) -> Iterator[Finding]:
    """Settings of internal topics that lose positions or transactions with one disk."""
    if len(evidence.last.nodes) < 3:
        return
    single = sorted(
        topic.name
        for topic in evidence.last.topics
        if topic.is_internal and topic.partitions and max(len(each.replicas) for each in topic.partitions) == 1
    )
    if single:
        yield Finding(
            Severity.WARNING,
            single[0],
            f"{names(single)} has one replica, on a cluster of {len(evidence.last.nodes)} nodes: if one disk fails, "
            "groups lose their positions, or transactions their state.",
            f"ottla topics reassign {single[0]} --replication-factor 3",
        )


CHECKS: Final = (
    Check("unreachable-node", "advertised addresses that cannot be reached", unreachable),
    Check("disk-fills", "disks that are full, soon full, or broken", disk_fills),
    Check("leaders-wander", "partitions that change leaders again and again", leaders_wander),
    Check("internal-topics-on-one-disk", "internal topics with one replica", risky_settings),
)
