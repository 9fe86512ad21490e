"""Simulates a client of a cluster that commits offsets for a group without members, and fetches the committed ones.

The leader of the group's partition of `__consumer_offsets` is the coordinator. Acknowledged offsets may never go back,
whichever node coordinates. A fetch returns the newest commit that was acknowledged before it was sent, or a newer one.
"""

from typing import Any

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from ottla.sim.clients.consumers import COORDINATOR_AWAY, OUTCOME_UNKNOWN
from ottla.sim.clients.history import Commit, History
from ottla.sim.clients.replicated import ClusterView, LeaderClient, Question, TopicPartition
from ottla.sim.kernel.trace import InvariantError

COMMIT_VERSION, FETCH_VERSION = 9, 9
FETCHES = 0.4
"""How many of its requests are fetches."""


class OffsetCommitter(LeaderClient):
    """One group, whose partition of the offsets topic is `place`; commits for `about`."""

    def __init__(
        self,
        cluster: ClusterView,
        name: str,
        place: TopicPartition,
        *,
        group: str,
        about: TopicPartition,
        history: History,
    ) -> None:
        super().__init__(cluster, name, place)
        self.group = group
        self.about = about
        self.history = history
        self._next = 0

    def next_request(self) -> Question | None:
        if self.winding_down or self.rng.random() < 0.5:
            return None
        return self._fetch() if self.rng.random() < FETCHES else self._commit()

    def _commit(self) -> Question:
        self._next += 1
        topic, index = self.about
        part = OffsetCommitRequestPartition(index, self._next)
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        (commit,) = self.history.begin_commit(self.world.clock.now_us, self.group, {self.about: self._next})
        return request, COMMIT_VERSION, lambda answer: self._committed(answer, commit)

    def _committed(self, answer: Any, commit: Commit) -> bool:
        code = self.last_error = answer.topics[0].partitions[0].error_code
        if code in OUTCOME_UNKNOWN:
            return False
        self.history.end_commit(self.world.clock.now_us, commit, accepted=not code)
        if code and code not in COORDINATOR_AWAY and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise InvariantError(f"{self.name}: OffsetCommit answers {ErrorCode(code).name}")
        return not code

    def _fetch(self) -> Question:
        topic, index = self.about
        asked = OffsetFetchRequestTopics(name=topic, partition_indexes=[index])
        group = OffsetFetchRequestGroup(group_id=self.group, member_id=None, member_epoch=-1, topics=[asked])
        begun_us = self.world.clock.now_us
        return OffsetFetchRequest(groups=[group]), FETCH_VERSION, lambda answer: self._fetched(answer, begun_us)

    def _fetched(self, answer: Any, begun_us: int) -> bool:
        group = answer.groups[0]
        part = group.topics[0].partitions[0] if group.topics else None
        code = self.last_error = group.error_code or (0 if part is None else part.error_code)
        if code:
            if code not in COORDINATOR_AWAY:
                raise InvariantError(f"{self.name}: OffsetFetch answers {ErrorCode(code).name}")
        elif part is not None:
            self.history.fetch_commit(begun_us, self.group, self.about, part.committed_offset)
        return not code
