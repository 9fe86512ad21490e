"""Lists the cluster for requests: its nodes, their addresses, and the controller.

Nodes come from the rows of the metadata image. A standalone node has no row: it is the whole cluster, at the address by
which the client connected. Every node gives the others' addresses on the listener that the client used, and leaves out
nodes without that listener.

Source: MetadataCache.getAliveBrokerNodes, KRaftMetadataCache.java.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import zip_longest
from operator import itemgetter
from typing import Final, NamedTuple

from ottla.broker.client_identity import Address
from ottla.broker.cluster.metadata import DeadlineExceededError, Metadata, RowChange
from ottla.machine import Millis
from ottla.metadata.controllers import CONTROLLER_KEY
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord, NodeState
from ottla.metadata.store import StoreError, VersionGuard
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import TopicRecord
from ottla.protocol.errors import ErrorCode


class Member(NamedTuple):
    """A node as shown to clients."""

    node_id: int
    host: str
    port: int
    rack: str | None


NOBODY = -1
"""The id of a node that there is not."""
SERVING = (NodeState.ACTIVE, NodeState.LEAVING)
LISTED_MS: Final = 9_000
"""How long Metadata answers still list a node that was declared dead, in milliseconds: as long as Kafka does with its
default of broker.session.timeout.ms. librdkafka drops a node that is not listed. The partitions that it believed there
then wait up to a second before they move to their new leader."""


class NotControllerError(StoreError):
    """Another node is the controller; this one has sent nothing to the store."""

    def __init__(self) -> None:
        super().__init__("another node is the controller, or none is")


def error_of(failed: StoreError) -> ErrorCode:
    """The error for a client whose change failed."""
    if isinstance(failed, DeadlineExceededError):
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NOT_CONTROLLER if isinstance(failed, NotControllerError) else ErrorCode.KAFKA_STORAGE_ERROR


class Members:
    """The nodes of the cluster that this node knows. `incarnation`: the name of this incarnation; None for a standalone
    node, which shares its metadata with no other."""

    def __init__(self, metadata: Metadata, node_id: int, rack: str | None, incarnation: str | None = None) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.is_alone = incarnation is None
        self.has_joined = self.is_alone
        """Whether this incarnation may lead: the controller has made it active."""
        self._metadata = metadata
        self._rack = rack
        self._rows: Mapping[str, NodeRecord] | None = None
        self._serving: Mapping[int, NodeRecord] = {}
        """Those of `_rows` that serve, by id."""
        self._reached: dict[str, Mapping[int, NodeRecord]] = {}
        """Those of `_serving` that clients of a listener reach, by the listener's name."""
        self._lost: dict[int, Millis] = {}
        """The nodes considered dead that are still listed, and until when."""

    def lost(self, now: Millis, node_id: int) -> None:
        """A node that served is now considered dead."""
        self._lost[node_id] = now + LISTED_MS

    def listed(self, now: Millis, address: Address) -> list[Member]:
        """The nodes for Metadata, by id: the serving ones, those lost a moment ago, and this one even if it is not
        active yet.

        librdkafka drops its requests to a node that is not listed.
        """
        self._lost = {node_id: until for node_id, until in self._lost.items() if now < until}
        lost = [member for member in self.fenced(address) if member.node_id in self._lost] if self._lost else []
        own = Member(self.node_id, *address.advertised, self._rack)
        return sorted({member.node_id: member for member in (own, *self.shown(address), *lost)}.values())

    def shown(self, address: Address) -> list[Member]:
        """All serving nodes, by id, for a client that connected to `address`."""
        if self.is_alone:
            return [Member(self.node_id, *address.advertised, self._rack)]
        return self._named(address, self.reached(address).items())

    def fenced(self, address: Address) -> list[Member]:
        """The nodes that are registered and do not serve, by id: they are down, or not active yet."""
        rows = [(int(name), record) for name, record in self._metadata.image.nodes.items()]
        return [] if self.is_alone else self._named(address, (row for row in rows if row[1].state not in SERVING))

    def of(self, address: Address, node_ids: Iterable[int]) -> list[Member]:
        """Those of these nodes that serve, as hints where a client should connect."""
        wanted = set(node_ids)
        if self.is_alone:
            return [member for member in self.shown(address) if member.node_id in wanted]
        reached = self.reached(address)
        return self._named(address, ((node_id, reached[node_id]) for node_id in wanted if node_id in reached))

    def reached(self, address: Address) -> Mapping[int, NodeRecord]:
        """The rows of the nodes that serve clients of this address's listener, by id."""
        serving, listener = self.serving(), address.listener
        reached = self._reached.get(listener)
        if reached is None:
            reached = self._reached[listener] = {
                node_id: record
                for node_id, record in serving.items()
                if node_id == self.node_id or record.endpoint(listener) is not None
            }
        return reached

    def serving(self) -> Mapping[int, NodeRecord]:
        """The rows of the nodes that serve, by id."""
        rows = self._metadata.image.nodes
        if rows is not self._rows:
            self._rows, self._reached = rows, {}
            self._serving = {int(name): record for name, record in rows.items() if record.state in SERVING}
        return self._serving

    def active(self) -> dict[int, NodeRecord]:
        """The rows of the nodes that may be given partitions, by id."""
        return {node_id: record for node_id, record in self.serving().items() if record.state is NodeState.ACTIVE}

    def down(self) -> dict[int, NodeRecord]:
        """The rows of the nodes that are registered and may not be given partitions yet, by id."""
        rows = {int(name): record for name, record in self._metadata.image.nodes.items()}
        return {node_id: record for node_id, record in rows.items() if record.state is not NodeState.ACTIVE}

    def knows(self, node_id: int) -> bool:
        """Whether a node of this id has ever registered, wherever it is now."""
        return node_id == self.node_id if self.is_alone else str(node_id) in self._metadata.image.nodes

    @property
    def may_know_lost_topics(self) -> bool:
        """Whether the metadata store is an older copy, and a node has not started since that may have logs of a topic
        that it has lost. Meanwhile no topic is created unless an operator asks for it."""
        image = self._metadata.image
        if self.is_alone or image.controller is None or not image.controller.down_until:
            return False
        rows, since = image.nodes.values(), image.controller.down_until
        return any(row.lost_commits for row in rows) and any(row.broker_epoch <= since for row in rows)

    @property
    def controller_id(self) -> int:
        """The controller, the node that writes what the cluster agrees on; `NOBODY` if there is none."""
        if self.is_alone:
            return self.node_id
        controller = self._metadata.image.controller
        return NOBODY if controller is None else controller.node_id

    def changed_at(self, listed: Iterable[Member]) -> int:
        """The node to which clients send changes of the cluster: the controller, or this node if the controller is
        not listed. This node keeps such a request until there is a controller, and hands it on (KIP-590).

        librdkafka waits for more than 10 s if it is told of no controller.
        """
        return self.controller_id if any(self.controller_id == each.node_id for each in listed) else self.node_id

    @property
    def is_controller(self) -> bool:
        """Whether this incarnation of this node is the controller, as far as it knows."""
        if self.is_alone:
            return True
        known = self._metadata.image.controller
        return known is not None and (known.node_id, known.incarnation) == (self.node_id, self.incarnation)

    def guards(self, rows: Collection[RowChange] = ()) -> list[VersionGuard]:
        """The guards of a batch of the controller with these rows. They fail the batch if a successor has taken over,
        or if a node that is to lead is leaving or has registered again. Raises NotControllerError."""
        if not self.is_controller:
            raise NotControllerError
        image = self._metadata.image
        if image.controller is None:
            return []
        keys = {f"{NODE_PREFIX}{node_id}" for row in rows for node_id in self._new_leaders(row)}
        keys -= {row.key for row in rows}
        of_nodes = [VersionGuard(key, image.nodes[key.removeprefix(NODE_PREFIX)].version) for key in sorted(keys)]
        return [VersionGuard(CONTROLLER_KEY, image.controller.version), *of_nodes]

    def _new_leaders(self, row: RowChange) -> set[int]:
        """The nodes that lead something in this row which they did not lead."""
        if not isinstance(row.record, TopicRecord):
            return set()
        topic = self._metadata.image.topics.get(row.key.removeprefix(TOPIC_PREFIX))
        before = () if topic is None else topic.partitions
        pairs = zip_longest(before, row.record.partitions)
        return {after.leader for known, after in pairs if known is None or after.leader != known.leader} - {NOBODY}

    def _named(self, address: Address, rows: Iterable[tuple[int, NodeRecord]]) -> list[Member]:
        """These nodes by the client's listener, by id, without those that do not have it."""
        named: list[Member] = []
        for node_id, record in sorted(rows, key=itemgetter(0)):
            at = address.advertised if node_id == self.node_id else record.endpoint(address.listener)
            if at is not None:
                named.append(Member(node_id, *at, record.rack))
        return named
