"""Simulates members of consumer groups in the protocol of KIP-848, and classic ones that share their groups.

    out -> joining -> in -> in ...        out again when fenced, when leaving, or when its instance id is reused

A member sends heartbeats, one at a time, at the interval that the coordinator gives. Before it gives up partitions, it
commits their offsets; then it reports that it no longer owns them. It starts new partitions at the group's committed
offsets. If an answer is lost, it sends a full heartbeat again. A fenced member gives up everything and joins again.

Sources: Kafka's ConsumerHeartbeatRequestManager.java, ConsumerMembershipManager.java; KIP-848.
"""

import uuid
from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, RequestTopicPartitions
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.protocol.wire import Message
from ottla.sim.clients.consumers import COORDINATOR_AWAY, OUTCOME_UNKNOWN, RETRY_US, GroupMember, commit_request
from ottla.sim.clients.history import Commit, TopicPartition
from ottla.sim.clients.kafka import MOVED, OF_GROUPS, Answer, find_coordinator
from ottla.sim.clients.readers import Reader
from ottla.sim.clients.workload_view import GroupsWorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.trace import InvariantError

SESSION_MS = 3_000
REBALANCE_TIMEOUT_MS = 4_000
COMMIT_US: Micros = 700 * MS
JOIN_EPOCH, LEAVE_EPOCH, STATIC_LEAVE_EPOCH = 0, -1, -2
MEMBER_EPOCHS_SINCE = 9
MAKES_ITS_ID_SINCE = 1

FENCED = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
COMMIT_REFUSED = FENCED | {
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class HeartbeatingMember(Reader):
    """One member. `choices`: its possible subscriptions, names or one regular expression, used in turn."""

    def __init__(
        self,
        workload: GroupsWorkloadView,
        name: str,
        group: str,
        topics: tuple[str, ...],
        *,
        choices: list[tuple[str, ...] | str],
        instance: str | None = None,
    ) -> None:
        super().__init__(workload, name, topics)
        self.group = group
        self.instance = instance
        self.choices = choices
        self.subscription = choices[0]
        needs_regex = any(isinstance(choice, str) for choice in choices)
        self.versions[ApiKey.CONSUMER_GROUP_HEARTBEAT] = 1 if needs_regex or self.rng.random() < 0.6 else 0
        self.versions[ApiKey.OFFSET_COMMIT] = MEMBER_EPOCHS_SINCE
        self.versions[ApiKey.OFFSET_FETCH] = MEMBER_EPOCHS_SINCE
        self.owners = workload.ownership(group)
        self.member_id = ""
        self.epoch = JOIN_EPOCH
        self.state = "out"
        self.leaving = False
        self.owned: dict[TopicPartition, None] = {}
        self._releasing: dict[TopicPartition, None] = {}
        """Partitions that the member still owns but must give up."""
        self._says_all = True
        self._asking = False
        self._life = 0
        """Counts the memberships; answers to an earlier one are ignored."""
        self._interval_us: Micros = 500 * MS
        self._next_us: Micros = 0
        self._committed: dict[TopicPartition, int] = {}
        self._committing = False
        self._safe_until_us: Micros = 0
        self._safe_in_life = 0
        self.after(self.rng.randrange(1_500 * MS), self.connect)
        self.after(COMMIT_US, self._commit_now_and_then)

    def committed(self, where: TopicPartition) -> int:
        """Return the newest offset whose commit this member was acknowledged, -1 if there is none."""
        return self._committed.get(where, -1)

    def is_safe(self) -> bool:
        """Whether the node must consider it alive: it was answered within the session, in the node's current
        incarnation."""
        return (
            self.state == "in"
            and self.world.clock.now_us < self._safe_until_us
            and self._safe_in_life == self.workload.lives
        )

    # ---- the connection --------------------------------------------------------------------------------------------

    def ready(self) -> None:
        self.request(ApiKey.FIND_COORDINATOR, find_coordinator(OF_GROUPS, self.group), self._found_coordinator)

    def _found_coordinator(self, message: Any) -> None:
        if message is None:
            return
        code = self.note_coordinator(OF_GROUPS, self.group, message)
        if code == ErrorCode.NONE:
            self._seek([where for where in self.owned if where not in self.positions])
            self.fetch()
            self._beat_after(0)
        elif code in COORDINATOR_AWAY:
            self.after(RETRY_US, self._refresh_again)
        else:
            raise InvariantError(f"{self.name}: FindCoordinator answers {code}")

    def _ask_coordinator(self, key: int, message: Message, answer: Answer, *args: Any) -> None:
        self.request(key, message, answer, *args, at=self.coordinators.get((OF_GROUPS, self.group)))

    def _hear_of_coordinator(self, code: int) -> None:
        """Handle an error that may mean that the coordinator has moved."""
        if code in MOVED:
            self.miss_coordinator(OF_GROUPS, self.group)

    def gone(self) -> None:
        super().gone()
        self._asking = self._committing = False
        self._says_all = True

    def may_fetch(self) -> bool:
        return self.state == "in"

    # ---- heartbeats ------------------------------------------------------------------------------------------------

    def _beat_after(self, delay_us: Micros) -> None:
        due_us = self._next_us = self.world.clock.now_us + delay_us
        self.after(delay_us, self._beat_at, due_us)

    def _beat_at(self, due_us: Micros) -> None:
        if due_us == self._next_us:
            self._beat()

    def _beat(self) -> None:
        if self.connection is None or self._asking or self.leaving:
            return
        joins = self.state != "in"
        if joins:
            self.state, self.epoch = "joining", JOIN_EPOCH
            if not self.member_id and self.versions[ApiKey.CONSUMER_GROUP_HEARTBEAT] >= MAKES_ITS_ID_SINCE:
                self.member_id = str(uuid.UUID(int=self.rng.getrandbits(128)))
        request = ConsumerGroupHeartbeatRequest(
            self.group,
            self.member_id,
            self.epoch,
            self.instance,
            None,
            -1,
            None,
            None,
            None,
            None,
        )
        if joins or self._says_all:
            self._subscribe(request)
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.topic_partitions = [] if joins else self._owned_by_id()
            self._says_all = False
        self._asking = True
        how = self._life, joins, self.world.clock.now_us
        self._ask_coordinator(ApiKey.CONSUMER_GROUP_HEARTBEAT, request, self._heard, *how)

    def _subscribe(self, request: ConsumerGroupHeartbeatRequest) -> None:
        if isinstance(self.subscription, str):
            request.subscribed_topic_names, request.subscribed_topic_regex = [], self.subscription
        else:
            request.subscribed_topic_names, request.subscribed_topic_regex = list(self.subscription), ""

    def _owned_by_id(self) -> list[RequestTopicPartitions]:
        topics: dict[str, list[int]] = {}
        for topic, index in self.owned:
            topics.setdefault(topic, []).append(index)
        return [RequestTopicPartitions(self.known[topic].topic_id, indexes) for topic, indexes in topics.items()]

    def _heard(self, message: Any, life: int, joins: bool, sent_us: Micros) -> None:
        if message is None or life != self._life:
            return
        self._asking = False
        code = message.error_code
        if code == ErrorCode.NONE:
            self._answered(message, joins, sent_us)
        elif code in FENCED:
            self._fenced(code)
        elif code in COORDINATOR_AWAY or code == ErrorCode.UNRELEASED_INSTANCE_ID:
            self._says_all = True
            self._hear_of_coordinator(code)
            self._beat_after(self.rng.randrange(RETRY_US, 3 * RETRY_US))
        else:
            raise InvariantError(f"{self.name}: ConsumerGroupHeartbeat answers {code} {message.error_message}")

    def _answered(self, message: Any, joins: bool, sent_us: Micros) -> None:
        if not joins and message.member_epoch < self.epoch:
            raise InvariantError(f"{self.name} goes from epoch {self.epoch} back to {message.member_epoch}")
        self.owners.told_epoch(self.world.clock.now_us, self.name, message.member_epoch, sent_us, joins=joins)
        self.member_id, self.epoch, self.state = message.member_id, message.member_epoch, "in"
        self._safe_until_us = sent_us + (SESSION_MS - self.workload.deaf_ms) * MS
        self._safe_in_life = self.workload.lives
        self._interval_us = message.heartbeat_interval_ms * MS
        self._beat_after(self._interval_us)
        if message.assignment is not None:
            self._assigned(message.assignment)

    def _assigned(self, assignment: Any) -> None:
        names = {topic.topic_id: name for name, topic in self.known.items()}
        mine: dict[TopicPartition, None] = {}
        for topic in assignment.topic_partitions:
            if topic.topic_id not in names:
                raise InvariantError(f"{self.name} is assigned a topic that it does not read: {topic.topic_id.hex()}")
            mine.update({(names[topic.topic_id], index): None for index in topic.partitions})
        self._releasing = {where: None for where in self.owned if where not in mine}
        new = [where for where in mine if where not in self.owned]
        if self._releasing or new:
            self.world.trace.add(self.name, f"{self.group} epoch {self.epoch}: owns {list(mine)}")
        if self._releasing:
            self.after(self.rng.randrange(300 * MS), self._release, self._life)
        if new:
            self._says_all = True
            self._beat_after(self.rng.randrange(100 * MS))
        slot = self.instance or self.member_id
        self.owners.give(self.world.clock.now_us, self.name, slot, self.epoch, new, self.is_safe)
        self.owned.update(dict.fromkeys(new))
        self._seek(new)

    def _release(self, life: int) -> None:
        """Commit and give up the partitions in `_releasing`, after the last work on them has ended."""
        gone, self._releasing = self._releasing, {}
        if life != self._life or not gone:
            return
        self._commit()
        self.owners.let_go(self.name, gone)
        for where in gone:
            del self.owned[where]
            self.positions.pop(where, None)
            self._committed.pop(where, None)
        self._says_all = True
        self._beat_after(0)

    def _fenced(self, code: int) -> None:
        self.world.trace.add(self.name, f"fenced from {self.group}: {code}")
        early_us = self._safe_until_us - self.world.clock.now_us
        if code == ErrorCode.UNKNOWN_MEMBER_ID and self.is_safe() and self.instance is None:
            raise InvariantError(f"{self.name} is put out of {self.group} {early_us // MS} ms before its session ends")
        self._forget()
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        self._beat_after(self.rng.randrange(RETRY_US, 3 * RETRY_US))

    def _forget(self) -> None:
        """Forget all partitions and the membership."""
        self._life += 1
        self._asking = False
        self.state, self.epoch, self._says_all = "out", JOIN_EPOCH, True
        self.owners.let_go(self.name, list(self.owned))
        self.owned.clear()
        self._releasing.clear()
        self.positions.clear()
        self._committed.clear()

    # ---- coming, going, changing -----------------------------------------------------------------------------------

    def leave(self) -> None:
        """Leave the group; a static member may intend to return."""
        self.leaving = True
        if self.state == "in" and self.connection is not None and not self._asking:
            self._commit()
            static = self.instance is not None and self.rng.random() < 0.7
            epoch = STATIC_LEAVE_EPOCH if static else LEAVE_EPOCH
            request = ConsumerGroupHeartbeatRequest(
                self.group, self.member_id, epoch, self.instance, None, -1, None, None, None, None
            )
            self._ask_coordinator(ApiKey.CONSUMER_GROUP_HEARTBEAT, request, self._left)
        self._forget()

    def _left(self, message: Any) -> None:
        """The member has left, whatever the answer is."""

    def rejoin(self) -> None:
        """Come back after `leave`."""
        if self.leaving:
            self.leaving = False
            self._forget()
            if self.instance is None and self.rng.random() < 0.5:
                self.member_id = ""
            self._beat_after(0)

    def change(self) -> None:
        """Subscribe to something else."""
        self.subscription = self.rng.choice(self.choices)
        self._says_all = True
        if self.state == "in":
            self._beat_after(0)

    # ---- committed offsets -----------------------------------------------------------------------------------------

    def _seek(self, partitions: list[TopicPartition]) -> None:
        if not partitions or self.state != "in":
            return
        topics: dict[str, list[int]] = {}
        for topic, index in partitions:
            topics.setdefault(topic, []).append(index)
        group = OffsetFetchRequestGroup(
            self.group,
            self.member_id,
            self.epoch,
            [OffsetFetchRequestTopics(name, bytes(16), indexes) for name, indexes in topics.items()],
        )
        request = OffsetFetchRequest(groups=[group], require_stable=True)
        self._ask_coordinator(
            ApiKey.OFFSET_FETCH, request, self._found, self._life, partitions, self.world.clock.now_us
        )

    def _found(self, message: Any, life: int, partitions: list[TopicPartition], begun_us: Micros) -> None:
        if life != self._life or message is None:
            return
        (group,) = message.groups
        if group.error_code:
            if group.error_code not in COORDINATOR_AWAY | COMMIT_REFUSED:
                raise InvariantError(f"{self.name}: OffsetFetch answers {group.error_code}")
            self._hear_of_coordinator(group.error_code)
            self.after(RETRY_US, self._seek_again, life)
            return
        for topic in group.topics:
            for part in topic.partitions:
                where = (topic.name, part.partition_index)
                if where not in self.owned or where in self.positions:
                    continue
                self.history.fetch_commit(begun_us, self.group, where, part.committed_offset)
                self.positions[where] = part.committed_offset
                if part.committed_offset >= 0:
                    self._committed[where] = part.committed_offset
        self.fetch()

    def _seek_again(self, life: int) -> None:
        if life == self._life and self.connection is not None:
            self._seek([where for where in self.owned if where not in self.positions])

    def _commit_now_and_then(self) -> None:
        self.after(COMMIT_US, self._commit_now_and_then)
        if self.state == "in" and not self._committing:
            self._commit()

    def resume(self) -> None:
        """Resume. A member that was paused still considers itself a member."""
        stood_still = self.paused
        super().resume()
        if stood_still and self.state == "in":
            self._commit(again=True)

    def _commit(self, *, again: bool = False) -> None:
        moved = {w: at for w, at in self.positions.items() if at >= 0 and (again or self._committed.get(w, -1) != at)}
        if not moved or self.connection is None:
            return
        request = commit_request(self.group, self.epoch, self.member_id, self.instance, moved)
        now_us = self.world.clock.now_us
        commits = dict(zip(moved, self.history.begin_commit(now_us, self.group, moved), strict=True))
        self._committing = True
        self._ask_coordinator(ApiKey.OFFSET_COMMIT, request, self._commit_ended, self._life, now_us, commits)

    def _commit_ended(self, message: Any, life: int, sent_us: Micros, commits: dict[TopicPartition, Commit]) -> None:
        if message is None:
            return
        self._committing = False
        now_us = self.world.clock.now_us
        for topic in message.topics:
            for part in topic.partitions:
                where = (topic.name, part.partition_index)
                code = part.error_code
                self._hear_of_coordinator(code)
                if code == ErrorCode.NONE:
                    self.owners.commit_taken(self.name, where, sent_us)
                    self.history.end_commit(now_us, commits[where], accepted=True)
                    if life == self._life and where in self.owned:
                        self._committed[where] = commits[where].offset
                    self.history.trim_commits(self.group, where, now_us - 60_000 * MS)
                elif code not in OUTCOME_UNKNOWN:
                    self.history.end_commit(now_us, commits[where], accepted=False)
                    if code not in COMMIT_REFUSED and code not in COORDINATOR_AWAY:
                        raise InvariantError(f"{self.name}: OffsetCommit of {where} answers {code}")


class ClassicMember(GroupMember):
    """A member of the classic protocol whose ownership is checked together with the other protocol's."""

    def __init__(
        self,
        workload: GroupsWorkloadView,
        name: str,
        group: str,
        topics: tuple[str, ...],
        *,
        instance: str | None = None,
    ) -> None:
        super().__init__(workload, name, group, topics, instance=instance)
        self.owners = workload.ownership(group)
        self._mine: list[TopicPartition] = []

    def is_safe(self) -> bool:
        """Whether the node must consider it alive."""
        return (
            self.state == "stable"
            and self.world.clock.now_us < self._safe_until_us
            and self._safe_in_life == self.workload.lives
        )

    def assigned(self, mine: list[TopicPartition]) -> None:
        self._mine = mine
        slot = self.instance or self.member_id
        self._safe_until_us = 0  # until a heartbeat says so
        self.owners.give(self.world.clock.now_us, self.name, slot, self.generation, mine, self.is_safe)
        super().assigned(mine)

    def _let_go(self) -> None:
        self.owners.let_go(self.name, self._mine)
        self._mine = []

    def _join(self) -> None:
        if self.state not in ("joining", "syncing"):
            self._let_go()
        super()._join()

    def _refused(self, api: str, code: int) -> None:
        if code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
            code = ErrorCode.REBALANCE_IN_PROGRESS  # the group is changing its type
        super()._refused(api, code)

    def _forget_membership(self) -> None:
        self._let_go()
        super()._forget_membership()

    def leave(self) -> None:
        super().leave()
        self._let_go()
