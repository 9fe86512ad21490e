"""Defines the rows of the nodes of a cluster: the address of each, its incarnation, and its state.

    nodes/<id>    {"host": ..., "port": ..., "rack": ..., "endpoints": {listener: [host, port]}, "incarnation": ...,
                   "state": ..., "intact": ..., "emptied": ..., "broker_epoch": ...,
                   "offline": [[topic id, index], ...], "features": {name: highest level},
                   "incomplete": [[topic id, index], ...], "refusing": [[topic id, index, leader epoch], ...],
                   "log_ends": [[topic id, index, leader epoch, newest epoch, end offset], ...], "lost_commits": ...,
                   "knows_store": false, "killed": true}

A node writes its row when it registers, as `starting`, and when logs of it fail or work again. After that the
controller decides its state.

The endpoints of a row include the listener for other nodes twice: under its name, and under `BETWEEN_NODES`. A row
without the latter was written by a version whose nodes had one address for clients of every listener. Such a version
can also read newer rows: it uses a node's endpoint PLAINTEXT or, without one, `host` and `port`.

Sources: Kafka's BrokerRegistration.java, RegisterBrokerRecord; KIP-858 for failed logs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias, cast

from ottla.metadata.features import UNSET
from ottla.metadata.row_kinds import table
from ottla.protocol.uuids import parse_uuid, uuid_text

TopicIdPartition: TypeAlias = tuple[bytes, int]
"""A topic's id and the index of a partition."""
PREFIX: Final = "nodes/"
NODE_PROOF: Final = "node.proof"
"""The name under which a row's features say that the node proves itself on its connections to others. It is no feature
that an operator sets. It is one because older controllers, which rewrite rows, keep features that they do not know."""
BETWEEN_NODES: Final = ""
"""The name under which a row's endpoints repeat the listener for other nodes. It means that they name all listeners. It
is an endpoint because older controllers, which rewrite rows, drop any unknown field."""


class LogEnd(NamedTuple):
    """Where a replica's log ends: the newest epoch that it has records of, -1 without any, and its end offset. Of two
    logs the greater one lacks nothing that was acknowledged and that the other one has (KIP-101)."""

    epoch: int
    end_offset: int


NO_LOG: Final = LogEnd(-1, -1)
"""The log has lost all its records. Its disk may be found again."""


class FoundTopic(NamedTuple):
    """A topic of which a node has logs that the metadata store does not place on it: of these partitions, in order."""

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]


class NodeState(StrEnum):
    """The state of a node. Only active nodes get leaderships; leaving ones keep those that no other node can take
    over."""

    STARTING = "starting"
    """It has registered, and the controller has not activated it yet."""
    ACTIVE = "active"
    LEAVING = "leaving"
    FENCED = "fenced"
    """It has stopped, or its lease has expired."""


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One registration. `host` and `port`: the listener for other nodes; `endpoints`: the address for clients by the
    name of the listener; `rack` is None if unknown.

    `incarnation` is the node's incarnation. `intact`: it has every byte that it ever stored; `emptied`: it has none of
    them, because its directory is a new one. `broker_epoch`: the generation of the registration, which only rises; 0 in
    the row that registers, whose version it is.

    `offline`: the partitions whose logs accept no writes on this node, in order; other nodes must lead them.
    `by_fsync`: the node has only what is on its disk, so its next incarnation is intact even after a power cut.
    `features`: the highest level that it supports of each; it supports all lower ones. `version` is that of the row,
    and the row does not contain it.

    `incomplete`: the partitions whose logs here may lack acknowledged records, or have them damaged, until this node is
    neither in sync nor eligible. `refusing`: the partitions whose leader lacks records that this replica knows to be
    committed, with the leader epoch in which it does not follow. `log_ends`: the log ends of partitions without an
    eligible leader, NO_LOG for one without its records, with the partition's leader epoch at that time. `emptied` is
    read by earlier versions only.

    `lost_commits`: the number of commits that the start of this incarnation found missing in the metadata store. The
    node has seen a newer store, and its logs may depend on that. `knows_store`: whether that start could compare the
    store with what the node had seen. `found`: topics with logs here that the store, if it is an older copy, has lost.
    `killed`: the earlier incarnation was killed, or its clean stop can't be verified: logs may have lost an end that no
    checkpoint shows.
    """

    host: str
    port: int
    rack: str | None = None
    endpoints: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    incarnation: str = ""
    state: NodeState = NodeState.ACTIVE
    intact: bool = True
    broker_epoch: int = 0
    version: int = 0
    offline: tuple[TopicIdPartition, ...] = ()
    by_fsync: bool = False
    features: Mapping[str, int] = field(default_factory=lambda: UNSET)
    emptied: bool = False
    incomplete: tuple[TopicIdPartition, ...] = ()
    refusing: Mapping[TopicIdPartition, int] = field(default_factory=dict[TopicIdPartition, int])
    log_ends: Mapping[TopicIdPartition, tuple[int, LogEnd]] = field(
        default_factory=dict[TopicIdPartition, tuple[int, LogEnd]]
    )
    lost_commits: int = 0
    knows_store: bool = True
    found: tuple[FoundTopic, ...] = ()
    killed: bool = False

    @property
    def is_of_earlier_version(self) -> bool:
        """Whether the version that wrote this row records no incarnations in the data directory, and reads neither
        `incomplete` nor the fields after it. A row without any endpoint does not show that."""
        return bool(self.endpoints) and BETWEEN_NODES not in self.endpoints

    @property
    def proves_itself(self) -> bool:
        """Whether the node proves itself once on each connection to another node. Versions before sent a secret in each
        request."""
        return self.features.get(NODE_PROOF, 0) > 0

    def may_count(self, place: TopicIdPartition) -> bool:
        """Whether the node's log of this partition accepts records, and lacks none of those that it had."""
        return place not in self.offline and place not in self.incomplete

    def endpoint(self, listener: str) -> tuple[str, int] | None:
        """The address that clients of this listener use; None if the node has no such listener."""
        found = self.endpoints.get(listener)
        if found is None and BETWEEN_NODES not in self.endpoints:
            return self.host, self.port
        return found

    def encode(self) -> bytes:
        row: dict[str, object] = {
            "host": self.host,
            "port": self.port,
            "rack": self.rack,
            "endpoints": self.endpoints,
            "incarnation": self.incarnation,
            "state": self.state,
            "intact": self.intact,
            "broker_epoch": self.broker_epoch,
            "features": dict(self.features),
        }
        if self.offline:
            row["offline"] = [(uuid_text(topic_id), index) for topic_id, index in self.offline]
        if self.by_fsync:
            row["by_fsync"] = True
        if self.emptied:
            row["emptied"] = True
        if self.incomplete:
            row["incomplete"] = [(uuid_text(topic_id), index) for topic_id, index in self.incomplete]
        if self.refusing:
            row["refusing"] = [(uuid_text(place[0]), place[1], epoch) for place, epoch in self.refusing.items()]
        if self.log_ends:
            row["log_ends"] = [
                (uuid_text(place[0]), place[1], leader_epoch, *end)
                for place, (leader_epoch, end) in self.log_ends.items()
            ]
        if self.lost_commits:
            row["lost_commits"] = self.lost_commits
        if not self.knows_store:
            row["knows_store"] = False
        if self.killed:
            row["killed"] = True
        if self.found:
            row["found"] = [(name, uuid_text(topic_id), partitions) for name, topic_id, partitions in self.found]
        return json.dumps(row).encode()

    @staticmethod
    def decode(value: bytes) -> NodeRecord:
        """Raises ValueError, KeyError or TypeError if the value is not a row of a node."""
        row = json.loads(value)
        host, port, rack = row["host"], row["port"], row["rack"]
        if not (isinstance(host, str) and isinstance(port, int) and (rack is None or isinstance(rack, str))):
            raise ValueError(f"no address of a node: {row}")
        endpoints = cast("dict[str, Any]", row.get("endpoints", {}))
        return NodeRecord(
            host,
            port,
            rack,
            {name: (str(at[0]), int(at[1])) for name, at in endpoints.items()},
            str(row.get("incarnation", "")),
            NodeState(row.get("state", NodeState.ACTIVE)),
            bool(row.get("intact", True)),
            int(row.get("broker_epoch", 0)),
            offline=_places(row.get("offline", ())),
            by_fsync=bool(row.get("by_fsync", False)),
            features={str(name): int(level) for name, level in row.get("features", UNSET).items()},
            emptied=bool(row.get("emptied", False)),
            incomplete=_places(row.get("incomplete", ())),
            refusing={(parse_uuid(topic), int(index)): int(epoch) for topic, index, epoch in row.get("refusing", ())},
            log_ends={
                (parse_uuid(topic), int(index)): (int(leader_epoch), LogEnd(int(epoch), int(end_offset)))
                for topic, index, leader_epoch, epoch, end_offset in row.get("log_ends", ())
            },
            lost_commits=int(row.get("lost_commits", 0)),
            knows_store=bool(row.get("knows_store", True)),
            found=tuple(
                FoundTopic(str(name), parse_uuid(topic_id), tuple(map(int, partitions)))
                for name, topic_id, partitions in row.get("found", ())
            ),
            killed=bool(row.get("killed", False)),
        )


def _places(columns: Iterable[tuple[str, int]]) -> tuple[TopicIdPartition, ...]:
    return tuple((parse_uuid(topic_id), int(index)) for topic_id, index in columns)


def _registered(record: NodeRecord, version: int) -> NodeRecord:
    """The image's value of a row. The version of the row that registers becomes the broker epoch."""
    return replace(record, broker_epoch=record.broker_epoch or version, version=version)


NODES: Final = table(PREFIX, NodeRecord.decode, _registered)
"""The nodes of the cluster that have registered, by id as text."""
