"""Simulates group members: join, sync, heartbeat, fetch, commit, leave; dynamic and static, in the classic protocol.

The leader assigns by ranges from the subscriptions that it was given, as Kafka's RangeAssignor does. A member that
learns of a rebalance commits, gives up its partitions and joins again. A member that was paused too long is fenced.

    unjoined -> joining -> syncing -> stable -> joining ...

Sources: Kafka's AbstractCoordinator.java, ConsumerCoordinator.java, RangeAssignor.java; KIP-345, KIP-394.
"""

from collections.abc import Iterable
from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.protocol.messages.consumer_protocol_assignment import TopicPartition as AssignedTopic
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.wire import Message
from ottla.sim.clients.history import Commit, TopicPartition
from ottla.sim.clients.kafka import MOVED, OF_GROUPS, Answer, find_coordinator
from ottla.sim.clients.readers import Reader
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.network import Endpoint
from ottla.sim.kernel.trace import InvariantError

SESSION_TIMEOUT_MS = 3_000
REBALANCE_TIMEOUT_MS = 4_000
HEARTBEAT_US: Micros = 700 * MS
COMMIT_US: Micros = 900 * MS
JOIN_PATIENCE_US: Micros = 12_000 * MS

STATIC_SINCE = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.OFFSET_COMMIT: 7,
}
LEAVE_BY_LIST_SINCE = 3
GROUPS_LIST_SINCE = 8

COORDINATOR_AWAY = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
FENCED = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
OUTCOME_UNKNOWN = COORDINATOR_AWAY - {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
RETRY_US: Micros = 150 * MS


def commit_request(
    group: str, epoch: int, member_id: str, instance: str | None, offsets: dict[TopicPartition, int]
) -> OffsetCommitRequest:
    """Return the request that commits these offsets; `epoch`: the generation of a classic member, the member epoch of
    another."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (topic, index), offset in offsets.items():
        entry = topics.setdefault(topic, OffsetCommitRequestTopic(name=topic, partitions=[]))
        entry.partitions.append(OffsetCommitRequestPartition(index, offset, -1, ""))
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=epoch,
        member_id=member_id,
        group_instance_id=instance,
        topics=list(topics.values()),
    )


class GroupMember(Reader):
    """One member of a group. `instance`: a static member's id."""

    def __init__(
        self, workload: WorkloadView, name: str, group: str, topics: tuple[str, ...], *, instance: str | None = None
    ) -> None:
        super().__init__(workload, name, topics)
        self.group = group
        self.instance = instance
        if instance is not None:
            for key, since in STATIC_SINCE.items():
                self.versions[key] = max(self.versions[key], since)
        self.member_id = ""
        self.generation = -1
        self.state = "unjoined"
        self.leaving = False
        self._round = 0
        self._committed: dict[TopicPartition, int] = {}
        self._commit_under_way = False
        self._safe_until_us: Micros = 0
        self._safe_in_life = 0
        self.after(self.rng.randrange(1_500 * MS), self.connect)
        self.after(HEARTBEAT_US, self._heartbeat)
        self.after(COMMIT_US, self._commit_now_and_then)

    @property
    def where(self) -> list[TopicPartition]:
        """The partitions that this member owns, to its own knowledge."""
        return sorted(self.positions)

    def committed(self, where: TopicPartition) -> int:
        """Return the newest offset whose commit this member was acknowledged, -1 if there is none."""
        return self._committed.get(where, -1)

    # ---- the connection --------------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> Endpoint | None:
        """The endpoint of the group's coordinator; None if it is unknown."""
        return self.coordinators.get((OF_GROUPS, self.group))

    def ready(self) -> None:
        if self.state == "stable":
            self.fetch()
        if self.state != "stable" or (self.follows and self.coordinator is None):
            self._find_coordinator()

    def gone(self) -> None:
        super().gone()
        self._commit_under_way = False
        if self.state in ("joining", "syncing"):
            self.state = "unjoined"

    def may_fetch(self) -> bool:
        return self.state == "stable"

    def _find_coordinator(self) -> None:
        self.request(ApiKey.FIND_COORDINATOR, find_coordinator(OF_GROUPS, self.group), self._found_coordinator)

    def _found_coordinator(self, message: Any) -> None:
        if message is None:
            return
        code = self.note_coordinator(OF_GROUPS, self.group, message)
        if code == ErrorCode.NONE:
            if self.state != "stable":
                self._join()
        elif code in COORDINATOR_AWAY or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self.after(RETRY_US, self._again, self._round)
            self.look_again()
        else:
            raise InvariantError(f"{self.name}: FindCoordinator answers {code}")

    def ask_coordinator(self, key: int, message: Message, answer: Answer, *args: Any, **how: Any) -> None:
        """Ask the group's coordinator."""
        self.request(key, message, answer, *args, at=self.coordinator, **how)

    def _hear_of_coordinator(self, code: int) -> None:
        """Handle an error that may mean that the coordinator has moved."""
        if code in MOVED:
            self.miss_coordinator(OF_GROUPS, self.group)

    def _again(self, round_: int) -> None:
        """Start again, unless the member has done so already."""
        if self.connection is not None and self.state == "unjoined" and round_ == self._round:
            self._find_coordinator()

    # ---- joining ---------------------------------------------------------------------------------------------------

    def _join(self) -> None:
        if self.state in ("joining", "syncing") or self.leaving:
            return
        self.state = "joining"
        self._round += 1
        subscription = bytearray(b"\0\1")
        ConsumerProtocolSubscription(topics=sorted(self.topics)).encode(subscription, 1)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol("range", bytes(subscription))],
            reason=None,
        )
        self.ask_coordinator(ApiKey.JOIN_GROUP, request, self._joined, self._round, patience_us=JOIN_PATIENCE_US)

    def _joined(self, message: Any, round_: int) -> None:
        if message is None or round_ != self._round or self.state != "joining":
            return
        code = message.error_code
        self.state = "unjoined"
        if code == ErrorCode.NONE:
            self.member_id, self.generation = message.member_id, message.generation_id
            self.state = "syncing"
            self._sync(message)
        elif code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = message.member_id
            self._join()
        else:
            self._refused("JoinGroup", code)

    def _refused(self, api: str, code: int) -> None:
        """Start again after a while, if the error is one that a member may get."""
        if code in FENCED:
            self._forget_membership()
        elif code not in COORDINATOR_AWAY and code != ErrorCode.REBALANCE_IN_PROGRESS:
            raise InvariantError(f"{self.name}: {api} answers {code}")
        self.after(RETRY_US, self._again, self._round)

    def _forget_membership(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.positions.clear()
        self._committed.clear()
        self.state = "unjoined"

    def _sync(self, joined: Any) -> None:
        assignments: list[SyncGroupRequestAssignment] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            subscriptions: dict[str, Iterable[str]] = {}
            for member in joined.members:
                subscription, _ = ConsumerProtocolSubscription.decode(member.metadata, 2, 0)
                subscriptions[member.member_id] = subscription.topics
            if joined.member_id not in subscriptions:
                raise InvariantError(
                    f"{self.name} leads generation {joined.generation_id} of {self.group} and is not in it"
                )
            assignments = self._assign(subscriptions)
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        self.ask_coordinator(ApiKey.SYNC_GROUP, request, self._synced, self._round, patience_us=JOIN_PATIENCE_US)

    def _assign(self, subscriptions: dict[str, Iterable[str]]) -> list[SyncGroupRequestAssignment]:
        shares: dict[str, dict[str, list[int]]] = {member: {} for member in subscriptions}
        for topic in self.topics:
            members = sorted(member for member, topics in subscriptions.items() if topic in topics)
            count = len(self.known[topic].partitions)
            each, extra = divmod(count, len(members))
            at = 0
            for i, member in enumerate(members):
                size = each + (i < extra)
                if size:
                    shares[member][topic] = list(range(at, at + size))
                at += size
        answer: list[SyncGroupRequestAssignment] = []
        for member, share in shares.items():
            out = bytearray(b"\0\1")
            topics = [AssignedTopic(topic, partitions) for topic, partitions in share.items()]
            ConsumerProtocolAssignment(assigned_partitions=topics, user_data=None).encode(out, 1)
            answer.append(SyncGroupRequestAssignment(member, bytes(out)))
        return answer

    def _synced(self, message: Any, round_: int) -> None:
        if message is None or round_ != self._round or self.state != "syncing":
            return
        code = message.error_code
        self.state = "unjoined"
        if code == ErrorCode.NONE:
            self._assigned(bytes(message.assignment))
        else:
            self._refused("SyncGroup", code)

    def _assigned(self, assignment: bytes) -> None:
        mine: list[TopicPartition] = []
        if assignment:
            decoded, _ = ConsumerProtocolAssignment.decode(assignment, 2, 1)
            mine = [(topic.topic, index) for topic in decoded.assigned_partitions for index in topic.partitions]
        self.world.trace.add(self.name, f"{self.group} generation {self.generation}: owns {mine}")
        # A static member keeps its place in a generation under a new member id (KIP-345).
        self.history.own(self.group, self.generation, self.instance or self.member_id, mine)
        self.state = "stable"
        self.positions.clear()
        self._committed.clear()
        self.assigned(mine)

    def assigned(self, mine: list[TopicPartition]) -> None:
        """Resume these partitions, which the member owns from now on, at the group's committed offsets."""
        if mine:
            self._fetch_offsets(mine)

    # ---- staying ---------------------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        if self.leaving and self.state == "unjoined":
            return
        self.after(HEARTBEAT_US, self._heartbeat)
        if self.state != "stable" or self.connection is None:
            return
        request = HeartbeatRequest(self.group, self.generation, self.member_id, self.instance)
        self.ask_coordinator(ApiKey.HEARTBEAT, request, self._heard, self._round, self.world.clock.now_us)

    def _heard(self, message: Any, round_: int, sent_us: Micros) -> None:
        if message is None or round_ != self._round or self.state != "stable":
            return
        code = message.error_code
        if code == ErrorCode.NONE:
            self._safe_until_us = sent_us + (SESSION_TIMEOUT_MS - self.workload.deaf_ms) * MS
            self._safe_in_life = self.workload.lives
        elif code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._commit()
            self.state = "unjoined"
            self._join()
        elif code in FENCED:
            early_us = self._safe_until_us - self.world.clock.now_us
            if code == ErrorCode.UNKNOWN_MEMBER_ID and early_us > 0 and self._safe_in_life == self.workload.lives:
                raise InvariantError(
                    f"{self.name} is put out of {self.group} {early_us // MS} ms before its session ends"
                )
            self._fenced(code)
        elif code in COORDINATOR_AWAY:
            self._hear_of_coordinator(code)
        elif code:
            raise InvariantError(f"{self.name}: Heartbeat answers {code}")

    def _fenced(self, code: int) -> None:
        self.world.trace.add(self.name, f"fenced from {self.group}: {code}")
        self._forget_membership()
        self._round += 1
        self.after(RETRY_US, self._again, self._round)

    def leave(self) -> None:
        """Leave the group permanently (a static member only disconnects)."""
        self.leaving = True
        if self.state == "stable" and self.connection is not None and self.instance is None:
            self._commit()
            listed = self.versions[ApiKey.LEAVE_GROUP] >= LEAVE_BY_LIST_SINCE
            request = LeaveGroupRequest(
                group_id=self.group,
                member_id="" if listed else self.member_id,
                members=[MemberIdentity(self.member_id, None, None)] if listed else [],
            )
            self.ask_coordinator(ApiKey.LEAVE_GROUP, request, self._left)
        self.state = "unjoined"
        self.positions.clear()

    def _left(self, message: Any) -> None:
        if message is not None and self.leaving:
            self.running = False
            self.hang_up()

    def rejoin(self) -> None:
        """Come back after `leave`."""
        if self.leaving:
            self.leaving = False
            self.running = True
            self._forget_membership()
            self._round += 1
            if self.connection is None:
                self.connect()
            else:
                self._find_coordinator()
            self.after(HEARTBEAT_US, self._heartbeat)

    # ---- committed offsets -----------------------------------------------------------------------------------------

    def _fetch_offsets(self, mine: list[TopicPartition]) -> None:
        topics: dict[str, list[int]] = {}
        for topic, index in mine:
            topics.setdefault(topic, []).append(index)
        if self.versions[ApiKey.OFFSET_FETCH] >= GROUPS_LIST_SINCE:
            group = OffsetFetchRequestGroup(
                group_id=self.group,
                member_id=None,
                member_epoch=-1,
                topics=[OffsetFetchRequestTopics(name=name, partition_indexes=parts) for name, parts in topics.items()],
            )
            request = OffsetFetchRequest(groups=[group], require_stable=True)
        else:
            request = OffsetFetchRequest(
                group_id=self.group, topics=[OffsetFetchRequestTopic(name, parts) for name, parts in topics.items()]
            )
        now_us = self.world.clock.now_us
        self.ask_coordinator(ApiKey.OFFSET_FETCH, request, self._offsets_fetched, self._round, mine, now_us)

    def _offsets_fetched(self, message: Any, round_: int, mine: list[TopicPartition], begun_us: Micros) -> None:
        if round_ != self._round or self.state != "stable":
            return
        if message is None:
            self.state = "unjoined"
            return
        answer = message.groups[0] if message.groups else message
        code = answer.error_code
        found = {(topic.name, part.partition_index): part for topic in answer.topics for part in topic.partitions}
        code = code or next((part.error_code for part in found.values() if part.error_code), 0)
        if code:
            if code not in COORDINATOR_AWAY and code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise InvariantError(f"{self.name}: OffsetFetch answers {code}")
            self._hear_of_coordinator(code)
            self.after(RETRY_US, self._fetch_offsets_again, mine, self._round)
            return
        for where in mine:
            part = found.get(where)
            if part is None:
                raise InvariantError(f"{self.name}: OffsetFetch does not answer for {where}")
            self.found_committed(begun_us, where, part.committed_offset)
            self.positions[where] = part.committed_offset
            if part.committed_offset >= 0:
                self._committed[where] = part.committed_offset
        self.fetch()

    def found_committed(self, begun_us: Micros, where: TopicPartition, offset: int) -> None:
        """Handle the answer to an OffsetFetch sent at `begun_us`."""
        self.history.fetch_commit(begun_us, self.group, where, offset)

    def _fetch_offsets_again(self, mine: list[TopicPartition], round_: int) -> None:
        if round_ == self._round and self.state == "stable":
            self._fetch_offsets(mine)

    def _commit_now_and_then(self) -> None:
        self.after(COMMIT_US, self._commit_now_and_then)
        if self.state == "stable" and not self._commit_under_way:
            self._commit()

    def resume(self) -> None:
        """Resume. A member that was paused still considers itself a member: it commits its positions, whatever has
        happened since."""
        stood_still = self.paused
        super().resume()
        if stood_still and self.state == "stable":
            self._commit(again=True)

    def _commit(self, *, again: bool = False) -> None:
        """Commit the positions that have changed since the last commit, or all of them if `again`."""
        moved = {w: at for w, at in self.positions.items() if at >= 0 and (again or self._committed.get(w, -1) != at)}
        if not moved or self.connection is None:
            return
        request = commit_request(self.group, self.generation, self.member_id, self.instance, moved)
        commits = self.history.begin_commit(self.world.clock.now_us, self.group, moved)
        by_place = dict(zip(moved, commits, strict=True))
        newest = self.history.newest_generation(self.group)
        self._commit_under_way = True
        how = self._round, self.generation, newest, by_place
        self.ask_coordinator(ApiKey.OFFSET_COMMIT, request, self._commit_ended, *how)

    def _commit_ended(
        self, message: Any, round_: int, generation: int, newest: int, commits: dict[TopicPartition, Commit]
    ) -> None:
        if message is None:
            return
        self._commit_under_way = False
        now_us = self.world.clock.now_us
        fenced = 0
        for topic in message.topics:
            for part in topic.partitions:
                where = (topic.name, part.partition_index)
                commit = commits[where]
                code = part.error_code
                self._hear_of_coordinator(code)
                if code == ErrorCode.NONE:
                    self.history.check_fenced(self.group, self.name, generation, newest)
                    self.history.end_commit(now_us, commit, accepted=True)
                    self._committed[where] = commit.offset
                    self.history.trim_commits(self.group, where, now_us - 60_000 * MS)
                elif code not in OUTCOME_UNKNOWN:
                    self.history.end_commit(now_us, commit, accepted=False)
                    fenced = code if code in FENCED else fenced
                    if code not in FENCED and code not in COORDINATOR_AWAY and code not in PASSING:
                        raise InvariantError(f"{self.name}: OffsetCommit of {where} answers {code}")
        if fenced and round_ == self._round and self.state == "stable":
            self._fenced(fenced)


PASSING = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
