"""Checks nodes: addresses, disks, settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.observed import SILENT, SLOW, IsrChange
from ottla.doctor.replicas import left_why, where_left
from ottla.doctor.snapshot import Evidence, Node, Snapshot
from ottla.doctor.words import count, duration, names, size

DISK_WARNING: Final = 0.85
DISK_FULL: Final = 0.95
"""Parts of a disk that are in use."""
SOON_S: Final = 2 * 86_400
"""A disk that is full within this time is a finding."""
GROWTH_WINDOW_S: Final = 60
"""The growth of a shorter time says nothing about days."""
FLAPS: Final = 3
FLAPS_MS: Final = 3_600_000
"""A replica that falls out of sync so often in this time flaps."""
WANDERS: Final = 3
"""Elections of one partition between two snapshots from which on its leaders wander."""


def unreachable(evidence: Evidence) -> Iterator[Finding]:
    """Advertised addresses that clients on this machine cannot connect to."""
    for node in evidence.last.nodes:
        if node.unreachable is not None:
            yield Finding(
                Severity.WARNING,
                f"node {node.id}",
                f"Node {node.id} advertises {node.host}:{node.port}, which cannot be reached from here: "
                f"{node.unreachable}.",
                "check that the node runs, and set advertised.listeners to an address that clients reach",
            )


def disk_fills(evidence: Evidence) -> Iterator[Finding]:
    """Disks that are almost full, or soon will be, and directories with errors."""
    for node in evidence.last.nodes:
        growth = _growth(evidence, node)
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
            soon = growth > 0 and disk.usable / growth <= SOON_S
            if used < DISK_WARNING and not soon:
                continue
            when = f", and full in {duration(disk.usable / growth)} at the present rate" if soon else ""
            yield Finding(
                Severity.DATA_AT_RISK if used >= DISK_FULL else Severity.WARNING,
                f"node {node.id}",
                f"{disk.path} of node {node.id} is {used:.0%} full ({size(disk.usable)} left){when}."
                + _largest(evidence, node),
                "shorter retention, a larger disk, or `ottla cluster rebalance`",
                None if used >= DISK_WARNING else "a longer --window",
            )


def _growth(evidence: Evidence, node: Node) -> float:
    """Bytes a second by which the node's partitions grow; 0 if the window is too short to tell. Partitions that it
    does not lead count as large as on their leaders."""
    if evidence.window_s < GROWTH_WINDOW_S:
        return 0.0
    return (_hosted(evidence.last, node) - _hosted(evidence.first, node)) / evidence.window_s


def _hosted(snapshot: Snapshot, node: Node) -> int:
    return sum(each.size or 0 for _, each in snapshot.partitions() if node.id in each.replicas)


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


def isr_flaps(evidence: Evidence) -> Iterator[Finding]:
    """Replicas that fall out of sync again and again, because they are too slow or stand still."""
    falls: dict[int, list[list[IsrChange]]] = {}
    for leader in evidence.last.observed:
        of_node: dict[int, list[IsrChange]] = {}
        for each in leader.isr_changes:
            if each.cause in (SLOW, SILENT) and leader.at_ms - each.at_ms <= FLAPS_MS:
                of_node.setdefault(each.node, []).append(each)
        for node, found in of_node.items():
            falls.setdefault(node, []).append(found)
    for node, by_leader in sorted(falls.items()):
        found = max(by_leader, key=len)  # several leaders see the same pause of a node
        if len(found) < FLAPS:
            continue
        worst = max(found, key=lambda each: (each.records, each.behind_ms))
        is_silent = worst.cause == SILENT
        yield Finding(
            Severity.WARNING,
            f"node {node}",
            f"Node {node} fell out of sync {count(len(found), 'time')} in {duration(FLAPS_MS / 1000)}, at worst in "
            f"{where_left(worst)}: {left_why(worst)}.",
            f"look for pauses of node {node}: its log, swapping, a stalled disk or network"
            if is_silent
            else f"a faster disk or network, or more CPU, for node {node}; `ottla cluster rebalance` gives it less",
        )


CHECKS: Final = (
    Check("unreachable-node", "advertised addresses that cannot be reached", unreachable),
    Check("disk-fills", "disks that are full, soon full, or broken", disk_fills),
    Check("leaders-wander", "partitions that change leaders again and again", leaders_wander),
    Check("isr-flaps", "replicas that fall out of sync again and again", isr_flaps),
)
