"""Holds what a cluster reports at one moment: nodes, topics, groups and transactions.

A snapshot is plain data, so that a check is a pure function of two of them, and so that a file can carry one. Facts
that the cluster does not report, or that the user may not see, are None or missing, and `Snapshot.unseen` says why.
Times are milliseconds since 1970, sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ottla.client.share_partitions import FrequentReason, frequent_reasons
from ottla.doctor.observed import ConfigChange, GroupChange, Observed

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
SHARE: Final = "share"
"""The types of groups, in ListGroups' words."""
WINDOW_MIN_S: Final = 5.0
"""Checks of what moves need snapshots this far apart."""
UNSEEN_TOPIC: Final = "topics: "
"""Begins the entry of `Snapshot.unseen` for a topic that a broker does not describe."""


@dataclass(frozen=True, slots=True)
class Disk:
    """A directory for logs on a node. `total` and `usable` are None before DescribeLogDirs v4."""

    path: str
    total: int | None = None
    usable: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A broker, at the address that it advertises. `unreachable`: why a client cannot connect to that address."""

    id: int
    host: str
    port: int
    rack: str | None = None
    unreachable: str | None = None
    disks: tuple[Disk, ...] = ()


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition, as its leader and its replicas report it. `leader` is -1 if it has none.

    `stable` is the last stable offset, `ends` the log end of each replica that reports one. `oldest_ms` and
    `newest_ms` are the timestamps of the oldest record and the greatest timestamp.
    """

    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int = -1
    start: int | None = None
    end: int | None = None
    stable: int | None = None
    ends: dict[int, int] = field(default_factory=dict[int, int])
    oldest_ms: int | None = None
    newest_ms: int | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `configs` are the effective ones, and `set_configs` the names of those that are set on the topic."""

    name: str
    partitions: tuple[Partition, ...]
    is_internal: bool = False
    configs: dict[str, str] = field(default_factory=dict[str, str])
    set_configs: frozenset[str] = frozenset()

    def number(self, name: str) -> int | None:
        """A config as an integer; None if it is unknown."""
        text = self.configs.get(name)
        return None if text is None or not text.removeprefix("-").isdigit() else int(text)

    @property
    def end(self) -> int | None:
        """The sum of the log ends; None if one is unknown."""
        ends = [each.end for each in self.partitions]
        return None if None in ends else sum(end for end in ends if end is not None)


@dataclass(frozen=True, slots=True)
class Member:
    """A group's member. `target` is what a KIP-848 coordinator wants it to own; None for other protocols."""

    id: str
    client_id: str
    host: str
    instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    target: frozenset[TopicPartition] | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset, or a share group's start offset. `lag` is what a share coordinator reports. `metadata`: what
    the commit of a redrive says, "" for other groups."""

    offset: int
    leader_epoch: int = -1
    lag: int | None = None
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """A member that holds records of a share partition: how many, for how long at most, and when its last lock ends."""

    client_id: str
    host: str
    records: int = 0
    held_ms: int = 0
    lock_left_ms: int = 0


@dataclass(frozen=True, slots=True)
class Deliveries:
    """The records of a share group in a partition, as its leader reports them.

    `undone`: records that the group may read and has not finished. Of these, `acquired` are with members, `archiving`
    wait for their dead letter, and `waiting` for the end of a back-off or a delay, the first of them for
    `next_try_ms`. `limit`: how many records members may hold. `waiting` and `holders` cover the first runs alone.
    `reasons`: the most common ones that members gave for the latest failures.
    """

    start: int
    undone: int
    acquired: int = 0
    archiving: int = 0
    waiting: int = 0
    next_try_ms: int | None = None
    limit: int | None = None
    holders: tuple[Holder, ...] = ()
    reasons: tuple[FrequentReason, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A group of any type. `state` is Kafka's word. `deliveries`: what leaders report of a share group's partitions."""

    name: str
    type: str
    state: str
    members: tuple[Member, ...] = ()
    committed: dict[TopicPartition, Committed] = field(default_factory=dict[TopicPartition, Committed])
    configs: dict[str, str] = field(default_factory=dict[str, str])
    deliveries: dict[TopicPartition, Deliveries] = field(default_factory=dict[TopicPartition, Deliveries])

    @property
    def reason(self) -> str:
        """The most common reason that members of a share group gave for the latest failures; "" if none is known."""
        common = frequent_reasons(self.deliveries.values())
        return common[0].text if common else ""

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """The partitions that members own."""
        return frozenset().union(*(member.owned for member in self.members))


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a partition. `name`, `started_ms` and `timeout_ms` are None if no coordinator
    knows it: then nothing will end it (KIP-664)."""

    place: TopicPartition
    producer_id: int
    start_offset: int
    last_ms: int
    name: str | None = None
    started_ms: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of an offset, its time by the coordinator's clock, and the metadata that the client gave."""

    offset: int
    at_ms: int
    metadata: str = ""


@dataclass(frozen=True, slots=True, order=True)
class GroupMember:
    """A member of a generation. `timeout_ms`: how long it may take to rejoin."""

    client_id: str
    host: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A generation of a classic group, from the time at which its coordinator wrote it."""

    at_ms: int
    number: int
    members: frozenset[GroupMember]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The facts that a cluster reports at `at_ms`, by this machine's clock. `unseen` names those that are missing,
    and says why. `commits` are the last ones of a group and partition, `generations` those of a classic group, both
    oldest first. `observed`: what each of Ottla's nodes remembers of its clients. `replicas_of_new`: how many replicas
    a new topic gets, 0 if that is unknown."""

    at_ms: int
    cluster_id: str = ""
    nodes: tuple[Node, ...] = ()
    topics: tuple[Topic, ...] = ()
    groups: tuple[Group, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    unseen: tuple[str, ...] = ()
    commits: dict[tuple[str, TopicPartition], tuple[Commit, ...]] = field(
        default_factory=dict[tuple[str, TopicPartition], tuple[Commit, ...]]
    )
    generations: dict[str, tuple[Generation, ...]] = field(default_factory=dict[str, tuple[Generation, ...]])
    observed: tuple[Observed, ...] = ()
    replicas_of_new: int = 0

    def partitions(self) -> Iterator[tuple[Topic, Partition]]:
        """Every partition of every topic."""
        for topic in self.topics:
            for partition in topic.partitions:
                yield topic, partition

    def groups_by_name(self) -> dict[str, Group]:
        """Every group, by its name."""
        return {each.name: each for each in self.groups}

    def changes(self) -> dict[str, list[GroupChange]]:
        """The changes of each group, on every node that has coordinated it, oldest first."""
        found: dict[str, list[GroupChange]] = {}
        for node in self.observed:
            for group, changes in node.changes.items():
                found.setdefault(group, []).extend(changes)
        return {group: sorted(changes, key=lambda each: each.at_ms) for group, changes in found.items()}

    def last_change(self, kind: int, resource: str, name: str) -> ConfigChange | None:
        """The last change of a config that a node remembers."""
        found = (
            each
            for node in self.observed
            for each in node.config_changes
            if (each.kind, each.resource, each.name) == (kind, resource, name)
        )
        return max(found, key=lambda each: each.at_ms, default=None)

    def topic(self, name: str) -> Topic | None:
        """The topic of this name."""
        return next((each for each in self.topics if each.name == name), None)

    def places(self) -> dict[TopicPartition, Partition]:
        """Every partition, by topic and index."""
        return {(topic.name, partition.index): partition for topic, partition in self.partitions()}


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two snapshots of one cluster. They are the same object if only one was made."""

    first: Snapshot
    last: Snapshot

    @property
    def window_s(self) -> float:
        """Seconds between the snapshots."""
        return (self.last.at_ms - self.first.at_ms) / 1000

    @property
    def shows_movement(self) -> bool:
        """Whether the snapshots are far enough apart to see what moves."""
        return self.window_s >= WINDOW_MIN_S
