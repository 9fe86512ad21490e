"""Keeps this node's place in its cluster: how it registers, whether others count on it, and how it leaves.

It tracks the node's own row, the live incarnations of other nodes, and the end of this node's lease by its own
monotonic clock. The I/O host finds these out and reports them (`seen`, `confirmed`).

A node registers as `starting` when its logs are open; it leads nothing before the controller has made it active. A node
that the others have given up registers again, under a new broker epoch. A node whose lease has expired answers clients
as if it led nothing until the store confirms it again: another node may lead in its place (self-fencing).

Source: Kafka's BrokerLifecycleManager.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from ottla.broker.cluster.adopting import AdoptedAs
from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.duties import RulesOf, state_row
from ottla.broker.cluster.elections import NodeStates, needs_log_ends
from ottla.broker.cluster.leaving import Leaving
from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata, Planned, RowBatch, RowChange
from ottla.broker.cluster.peers import Peers
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.log.checkpoints import note_incarnation, read_lost_since, write_lost_since
from ottla.log.files import FileSystem
from ottla.machine import Millis
from ottla.metadata.controllers import CONTROLLER
from ottla.metadata.features import HIGHEST
from ottla.metadata.image import MetadataDelta
from ottla.metadata.nodes import NODE_PROOF, NODES, PREFIX, FoundTopic, LogEnd, NodeRecord, NodeState, TopicIdPartition
from ottla.metadata.store import ABSENT, StoreError
from ottla.metadata.topics import TOPICS

RETRY_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Joining:
    """How a node enters a cluster: its addresses for nodes and clients, and the name of this incarnation.

    `lease_ms`: how long it may trust its knowledge after its last contact with the cluster. `listener`: the name of its
    listener for other nodes.
    """

    host: str
    port: int
    incarnation: str
    lease_ms: int
    endpoints: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    listener: str = "PLAINTEXT"


class OwnLogs(Protocol):
    """The state of the logs that the node's row reports."""

    def offline(self) -> tuple[TopicIdPartition, ...]:
        """The partitions with replicas on other nodes whose logs here are offline, in order."""
        ...

    def incomplete(self) -> tuple[TopicIdPartition, ...]:
        """The partitions with replicas on other nodes whose logs here may lack acknowledged records, in order.

        It leaves out logs whose ends decide who leads.
        """
        ...

    def found_emptied(self) -> None:
        """The data directory was replaced: no log here has its earlier records."""
        ...

    def found_incomplete(self, places: AbstractSet[TopicIdPartition]) -> None:
        """The logs of these partitions may lack acknowledged records too, as an earlier incarnation has found."""
        ...

    def some_can_not_be_read(self) -> bool:
        """Whether some log has a place that can't be read: whether it is offline depends on the other replicas."""
        ...

    def log_ends(self) -> dict[TopicIdPartition, tuple[int, LogEnd]]:
        """The ends of the logs here whose partitions have no leader that is known to have all records, with their
        leader epoch.

        NO_LOG for a log that has lost all its records: the operator may find the disk that has them.
        """
        ...

    def found(self) -> tuple[FoundTopic, ...]:
        """The topics with logs here that the metadata store does not place on this node, in order."""
        ...

    def refusing(self) -> dict[TopicIdPartition, int]:
        """The partitions whose leader this node refuses to follow, with that leader's epoch."""
        ...


class Membership:
    """See the module's docstring."""

    def __init__(
        self,
        metadata: Metadata,
        members: Members,
        peers: Peers,
        joining: Joining,
        rack: str | None,
        rules_of: RulesOf,
        adopted: AdoptedAs,
        return_every_ms: Callable[[], Millis | None],
        logs: OwnLogs,
        notes: Callable[[str], None],
        schedule: Schedule,
    ) -> None:
        self._logs = logs
        self.members = members
        self.joining = joining
        self._fresh_until: Millis = 0
        self._retry = Timer(schedule, Timed.MEMBERSHIP, self._write)
        self.controller = Controller(
            metadata, members, joining.incarnation, rules_of, adopted, return_every_ms, notes, schedule
        )
        self._leaving = Leaving(metadata, members, self.controller, peers, schedule)
        self._metadata = metadata
        self._notes = notes
        self._rack = rack
        self.given_up: AbstractSet[TopicIdPartition] = frozenset()
        """Partitions that this node leads but others may lead by now: it has reported, or is reporting, that their logs
        are offline."""
        self._saying: tuple[TopicIdPartition, ...] = ()
        """The offline logs in the row that is being written."""
        self._intact = True
        self._emptied = False
        self._killed = False
        self._by_fsync = False
        self._lost_commits = 0
        self.knows_store = True
        """Whether this start could compare the store with what the node had seen of it."""
        self._predecessor: str | None = None
        """The incarnation in the node's row when this one started."""
        self._has_registered = False
        self.is_replaced = False
        """Whether another process has registered as this node since this one did, such as a copy of the data directory
        on another machine: this one is no node any more, also after that one has ended."""
        self._is_leaving = False
        self._is_writing = False

    @property
    def present(self) -> Mapping[int, str] | None:
        """The incarnations of nodes that were last seen."""
        return self.controller.present

    @property
    def record(self) -> NodeRecord | None:
        """The node's own row, if it is that of this incarnation."""
        record = self._metadata.image.nodes.get(str(self.members.node_id))
        return record if record is not None and record.incarnation == self.joining.incarnation else None

    def join(
        self,
        now: Millis,
        files: FileSystem,
        directory: str,
        *,
        clean: bool,
        verified: bool,
        kept: bool,
        by_fsync: bool,
        same_disk: bool,
        lost_commits: int = 0,
        knows_store: bool = True,
    ) -> None:
        """Register: the logs are open. Raises OSError.

        - `clean`: the last incarnation here stopped cleanly; `verified`: the logs were compared with that stop.
        - `kept`: they have every byte of the last incarnation here, on disk or not.
        - `by_fsync`: this incarnation reports only what is on its disk.
        - `same_disk`: an earlier incarnation used this directory.
        - `lost_commits`: the commits that the store lacks and that this node or the store knows of.
        - `knows_store`: this directory says how far the node had seen the store.
        """
        self._by_fsync = by_fsync
        self._lost_commits = lost_commits
        self._intact = kept
        earlier = note_incarnation(files, directory, self.joining.incarnation, clean=clean)
        known = self._metadata.image.nodes.get(str(self.members.node_id))
        if known is not None:
            self._predecessor = known.incarnation
            self._killed = not self._has_ended_cleanly(known, earlier, verified=verified)
            self.knows_store = knows_store or known.is_of_earlier_version
            self._emptied = not same_disk or (known.emptied and known.state is NodeState.STARTING)
            if self._emptied:
                self._logs.found_emptied()
            is_older = self._is_older(known, earlier)
            if is_older:
                self._notes(
                    f"{directory} is older than what the cluster knows of node {self.members.node_id}: it was restored "
                    "or copied. This node leads nothing before it has caught up with the other replicas"
                )
                self.knows_store = False
            if is_older or not (kept or (same_disk and known.by_fsync)):
                self._intact = False
                write_lost_since(files, directory, known.incarnation)
            else:
                self._note_incomplete(files, directory, known)
        self._write(now)

    def _has_earlier_versions(self) -> bool:
        """Whether other nodes of the cluster run, or ran last, a version before this one."""
        own = str(self.members.node_id)
        return any(row.is_of_earlier_version for name, row in self._metadata.image.nodes.items() if name != own)

    def _is_older(self, known: NodeRecord, earlier: list[str] | None) -> bool:
        """Whether the directory lacks what the cluster knows of this node. `earlier`: its incarnations here.

        An older version writes none, so after a downgrade the newest are missing.
        """
        if earlier is None:
            return True
        own = self.joining.incarnation
        return bool(earlier) and not known.is_of_earlier_version and known.incarnation not in (*earlier, own)

    def _has_ended_cleanly(self, known: NodeRecord, earlier: list[str] | None, *, verified: bool) -> bool:
        """Whether a clean stop that was `verified` ended the incarnation that the cluster knows, and the controller has
        seen what that one reported of its own start. `earlier`: the incarnations in the directory."""
        is_last = earlier is not None and earlier[-1:] == [known.incarnation]
        return verified and is_last and not (known.killed and known.state is NodeState.STARTING)

    def _note_incomplete(self, files: FileSystem, directory: str, known: NodeRecord) -> None:
        """Add the losses of incarnations since the one that the cluster knows, which could not report them before they
        ended.

        Add what the row still names, whatever its state: the controller may not have seen that.
        """
        lost = {*self._logs.incomplete(), *known.incomplete}
        self._intact = known.intact or known.state is not NodeState.STARTING
        noted = read_lost_since(files, directory)
        if noted is not None and noted[0] == known.incarnation:
            self._intact = self._intact and bool(noted[1])
            lost |= noted[1]
        self._logs.found_incomplete(lost)
        if lost and self._has_earlier_versions():  # as a controller these would not read which partitions they are
            self._intact = False
            write_lost_since(files, directory, known.incarnation)
        if lost and self._intact:
            write_lost_since(files, directory, known.incarnation, sorted(lost))

    def confirmed(self, at: Millis) -> None:
        """The lease was renewed at that time, and all commits of other nodes until then are known."""
        self._fresh_until = at + self.joining.lease_ms

    def is_fresh(self, now: Millis) -> bool:
        """Whether the others still consider this node alive, and it knows all they had agreed on."""
        return now <= self._fresh_until

    def seen(self, now: Millis, present: Mapping[int, str]) -> None:
        """These incarnations of these nodes are live now."""
        self.controller.present = dict(present)
        self.controller.look(now)

    def enter(self) -> bool:
        """The image has changed: if the controller has made this incarnation active, it may lead now. Returns whether
        it has."""
        record = self.record
        self._has_registered = self._has_registered or record is not None
        known = self._metadata.image.nodes.get(str(self.members.node_id))
        self.is_replaced = record is None and self._is_replaced(known)
        if record is not None and record.state is NodeState.ACTIVE:
            self.members.has_joined = True
        return self.members.has_joined

    def follow(self, now: Millis, delta: MetadataDelta) -> None:
        """The image has moved by this delta, and the node with it."""
        self._look_at_given_up()
        if self._is_leaving:
            self._leaving.look(now)
        if delta.names(CONTROLLER) or delta.names(NODES):
            if self._has_to_say():
                if not self._is_leaving:
                    self._notes("the cluster had given this node up; it registers again")
                self._write(now)
            self.controller.look(now)
        else:
            self.controller.follow(now, delta.names(TOPICS))
        if self._has_news_of_leaders(delta):
            self.look_at_logs(now)

    def _has_news_of_leaders(self, delta: MetadataDelta) -> bool:
        """Whether a partition has lost its last proven leader, or has a leader about which the row should report
        more."""
        record, topics = self.record, self._metadata.image.topics
        if record is None:
            return False
        if record.log_ends or record.refusing or record.incomplete or record.found:
            return True
        if self._logs.some_can_not_be_read():
            return True
        named = [topics[name] for name in delta.names(TOPICS) if name in topics]
        return any(needs_log_ends(placed) for topic in named for placed in topic.partitions)

    def look_at_logs(self, now: Millis) -> None:
        """Logs have failed or recovered, or the controller needs their ends: update the row.

        A leaving node reports no more: others lead in its place anyway.
        """
        record = self.record
        if record is not None and not self._is_leaving and record != self._with_logs(record):
            self._write(now)

    def _with_logs(self, record: NodeRecord) -> NodeRecord:
        """This row with the present state of the logs."""
        logs = self._logs
        return replace(
            record,
            offline=logs.offline(),
            incomplete=logs.incomplete(),
            log_ends=logs.log_ends(),
            refusing=logs.refusing(),
            found=logs.found(),
        )

    def _look_at_given_up(self) -> None:
        """An offline log that no other node may lead is still led from here, and can be read.

        Nodes that are down count as others: one may restart and lead before this node learns of either. So may one
        that copies the end of its log from here first.
        """
        record = self.record
        said = {*self._saying, *(() if record is None else record.offline)}
        here = frozenset({self.members.node_id})
        others = frozenset(map(int, self._metadata.image.nodes)) - here
        self.given_up = frozenset(
            place
            for place in said
            if self.controller.moves_away(place, NodeStates(others, leaving=here), once_proven=True)
        )

    # ---- leaving ---------------------------------------------------------------------------------------------------

    def leave(self, now: Millis) -> None:
        """Ask the controller to give this node's leaderships to others."""
        self._is_leaving = True
        self._write(now)

    def may_stop(self) -> bool:
        """Whether nothing is left here that another node could take over, and every serving node knows it.

        True also if the cluster has already fenced this node.
        """
        record = self.record
        if record is None or record.state is NodeState.FENCED or self.controller.present is None:
            return True
        return record.state is NodeState.LEAVING and self._leaving.is_done()

    # ---- the node's own row ----------------------------------------------------------------------------------------

    def _write(self, now: Millis) -> None:
        if not self._is_writing:
            self._is_writing = True
            self._retry.cancel()
            self._metadata.change(now, self._registration, self)

    def _has_to_say(self) -> bool:
        """Whether the row of this incarnation is wrong: it was given up, or made active although it leaves."""
        record = self.record
        return record is not None and record.state is (NodeState.ACTIVE if self._is_leaving else NodeState.FENCED)

    def _is_replaced(self, known: NodeRecord | None) -> bool:
        """Whether this row of the node is a successor's."""
        return known is not None and self._has_registered

    def _is_overtaken(self, known: NodeRecord | None) -> bool:
        """Whether another incarnation has registered between the start of this one and its own registration."""
        return known is not None and known.incarnation != self._predecessor

    def _registration(self, now: Millis) -> Planned:
        image, node_id = self._metadata.image, self.members.node_id
        record = self.record
        if self._is_leaving:
            has_news = (
                record is not None and record.state is NodeState.STARTING and (record.killed or not record.intact)
            )
            if record is None or has_news:
                return  # the controller has still to learn of the lost bytes, or that some may be lost
            if record.state in (NodeState.ACTIVE, NodeState.STARTING):
                yield RowBatch([state_row(record, node_id, NodeState.LEAVING)])
            return
        if record is not None and record.state is not NodeState.FENCED:
            row = self._with_logs(record)
            if row != record:
                self._saying = row.offline
                self._look_at_given_up()
                yield RowBatch([RowChange(f"{PREFIX}{node_id}", replace(row, version=0), record.version)])
            return
        if self.is_replaced:
            self._notes(f"another process has registered as node {node_id}: this one takes no part any more, stop it")
            return
        known = image.nodes.get(str(node_id))
        if record is None and self._is_overtaken(known):
            self._intact = False  # the other one may have stored records that are not here
            if not self.is_fresh(now):
                self._retry.set(now + RETRY_MS)
                return
        joining = self.joining
        row = NodeRecord(
            joining.host,
            joining.port,
            self._rack,
            joining.endpoints,
            joining.incarnation,
            NodeState.STARTING,
            self._intact or record is not None,
            by_fsync=self._by_fsync,
            features={**HIGHEST, NODE_PROOF: 1},
            emptied=self._emptied and record is None,
            lost_commits=self._lost_commits if record is None else 0,
            knows_store=self.knows_store,
            killed=self._killed and record is None,
        )
        row = self._with_logs(row)
        yield RowBatch([RowChange(f"{PREFIX}{node_id}", row, ABSENT if known is None else known.version)])

    def change_ended(self, now: Millis, result: Any) -> None:
        self._is_writing, self._saying = False, ()
        self._look_at_given_up()
        if self._has_to_say():  # since the row was being written
            self._write(now)
        else:
            self.look_at_logs(now)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self._is_writing = False
        self._retry.set(now + RETRY_MS)
        if not isinstance(error, StoreError):
            raise error
        self._notes(f"the node could not be registered yet: {error}")
