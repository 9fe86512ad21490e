"""Finds the groups of a cluster with their coordinators, members and positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.client.client import TopicPartition
from ottla.client.errors import ClientError
from ottla.console.page import Context, MissingError
from ottla.console.reading import leaders_at, offsets
from ottla.doctor.groups import Listed, described_on, listed_on
from ottla.doctor.snapshot import Group
from ottla.escaping import visible


def coordinated(context: Context, unseen: list[str]) -> dict[Listed, int]:
    """Every group of the cluster, and the node that coordinates it: one request to each node."""
    found: dict[Listed, int] = {}
    context.client.metadata([])
    for node_id in context.client.broker_ids():
        try:
            found |= dict.fromkeys(listed_on(context.client.broker(node_id)), node_id)
        except ClientError as failure:
            unseen.append(f"Groups of node {node_id}: {failure}")
    return found


def described(context: Context, listed: Mapping[Listed, int], unseen: list[str]) -> list[Group]:
    """Members and positions of groups, by name: a few requests to each of their coordinators."""
    by_node: dict[int, list[Listed]] = {}
    for each, node_id in listed.items():
        by_node.setdefault(node_id, []).append(each)
    found: list[Group] = []
    for node_id, rows in by_node.items():
        try:
            found += described_on(context.client.broker(node_id), rows)
        except ClientError as failure:
            unseen.append(f"Groups of node {node_id}: {failure}")
    return sorted(found, key=lambda each: each.name)


def ends_of(context: Context, places: Iterable[TopicPartition], unseen: list[str]) -> dict[TopicPartition, int]:
    """The log ends of partitions; one that does not exist any more is missing."""
    return offsets(context, leaders_at(context, places), unseen=unseen)


def group_of(context: Context, name: str) -> tuple[Group, int]:
    """A group, and the node that coordinates it. Raises MissingError, with what could not be seen.

    It is searched in the lists of all nodes: asking for the coordinator of a group that does not exist would create
    the topic in which coordinators keep their state.
    """
    unseen: list[str] = []
    for listed, node_id in coordinated(context, unseen).items():
        if listed.name == name:
            (group,) = described_on(context.client.broker(node_id), [listed])
            return group, node_id
    raise MissingError(" ".join((f"There is no group {visible(name)}.", *unseen)))
