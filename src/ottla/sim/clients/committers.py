"""Simulates a client that only commits: a group without members, its offsets written, read and deleted as a whole.

It exercises what group members seldom do: many overwrites of few keys in `__consumer_offsets`, tombstones, groups that
come and go. To `history` a deletion is one more commit, of no offset.
"""

from typing import Any

from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.sim.clients.consumers import COORDINATOR_AWAY, GROUPS_LIST_SINCE, OUTCOME_UNKNOWN
from ottla.sim.clients.history import NOTHING_COMMITTED, Commit, TopicPartition
from ottla.sim.clients.kafka import OF_GROUPS, KafkaClient, find_coordinator
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.trace import InvariantError


class Committer(KafkaClient):
    """One client, one group, one partition; one request at a time."""

    def __init__(self, workload: WorkloadView, name: str, group: str, where: TopicPartition) -> None:
        super().__init__(workload, name)
        self.group = group
        self.where = where
        self.works = True
        self._next = 0
        self._busy = False
        self.versions[ApiKey.OFFSET_FETCH] = max(self.versions[ApiKey.OFFSET_FETCH], GROUPS_LIST_SINCE)
        self.after(self.rng.randrange(1_000 * MS), self.connect)
        self.after(1_000 * MS, self._work)

    def ready(self) -> None:
        self.request(ApiKey.FIND_COORDINATOR, find_coordinator(OF_GROUPS, self.group), self._found)

    def _found(self, message: Any) -> None:
        """Nothing to learn, because there is one node. But the request creates the coordinator's topic."""

    def gone(self) -> None:
        self._busy = False

    def _work(self) -> None:
        if not self.works:
            return
        self.after(self.rng.randrange(20 * MS, 400 * MS), self._work)
        if self.connection is None or self._busy:
            return
        self._busy = True
        chance = self.rng.random()
        if chance < 0.65:
            self._commit()
        elif chance < 0.95:
            self._fetch()
        else:
            commit = self.history.begin_commit(self._now_us, self.group, {self.where: NOTHING_COMMITTED})[0]
            self.request(ApiKey.DELETE_GROUPS, DeleteGroupsRequest([self.group]), self._deleted, commit)

    @property
    def _now_us(self) -> Micros:
        return self.world.clock.now_us

    def _commit(self) -> None:
        self._next += 1
        topic, index = self.where
        part = OffsetCommitRequestPartition(index, self._next, -1, "x" * self.rng.randrange(60))
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        commit = self.history.begin_commit(self._now_us, self.group, {self.where: self._next})[0]
        self.request(ApiKey.OFFSET_COMMIT, request, self._committed, commit)

    def _committed(self, message: Any, commit: Commit) -> None:
        if message is not None:
            self._end(message.topics[0].partitions[0].error_code, commit, "OffsetCommit")

    def _deleted(self, message: Any, commit: Commit) -> None:
        if message is not None:
            self._end(message.results[0].error_code, commit, "DeleteGroups")

    def _end(self, code: int, commit: Commit, what: str) -> None:
        self._busy = False
        if code == ErrorCode.NONE:
            self.history.end_commit(self._now_us, commit, accepted=True)
            self.history.trim_commits(self.group, self.where, self._now_us - 60_000 * MS)
        elif code not in OUTCOME_UNKNOWN:
            self.history.end_commit(self._now_us, commit, accepted=False)
            if code not in COORDINATOR_AWAY and code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise InvariantError(f"{self.name}: {what} answers {code}")

    def _fetch(self) -> None:
        topic, index = self.where
        group = OffsetFetchRequestGroup(
            group_id=self.group,
            member_id=None,
            member_epoch=-1,
            topics=[OffsetFetchRequestTopics(name=topic, partition_indexes=[index])],
        )
        self.request(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=[group]), self._fetched, self._now_us)

    def _fetched(self, message: Any, begun_us: Micros) -> None:
        if message is None:
            return
        self._busy = False
        group = message.groups[0]
        part = group.topics[0].partitions[0] if group.topics else None
        code = group.error_code or (part.error_code if part is not None else 0)
        if code:
            if code not in COORDINATOR_AWAY:
                raise InvariantError(f"{self.name}: OffsetFetch answers {code}")
        elif part is not None:
            self.history.fetch_commit(begun_us, self.group, self.where, part.committed_offset)
