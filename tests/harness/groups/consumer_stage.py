"""A consumer group's coordinator on a stage: topics and timings that a test can change, members that keep to the rules.

    stage = ConsumerStage(t=4)
    stage.join("a")                 # heartbeats as a member sends them, answers checked
    stage.rest("a", "b")            # heartbeats of these until nothing changes
    stage.owners()                  # who reads what

A `Player` is one member as a client keeps it: what it was told, what it has, what it still has to let go of.
"""

from dataclasses import replace
from typing import Any

from ottla.groups.consumer.membership import ConsumerHeartbeat
from ottla.groups.metadata_view import ConsumerGroupConfig, ShareGroupConfig
from ottla.groups.settings import GroupSettings
from ottla.groups.shard import GroupShard, TopicsDeleted
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tests.harness.groups.group_stage import QUICK, Stage

Place = tuple[bytes, int]


class MetadataView:
    def __init__(self) -> None:
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.topics_version: object = 0
        self.timing = ConsumerGroupConfig(assignment_interval_ms=0)

    def topic(self, name: str) -> tuple[bytes, int] | None:
        return self.topics.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name, (known, _) in self.topics.items() if known == topic_id), None)

    def topic_names(self) -> list[str]:
        return list(self.topics)

    def share_group_config(self, group_id: str) -> ShareGroupConfig:
        return ShareGroupConfig()

    def consumer_group_config(self, group_id: str) -> ConsumerGroupConfig:
        return self.timing

    def heartbeating(self) -> int:
        return 0


class Player:
    """One member as its client keeps it."""

    def __init__(
        self, member_id: str, topics: tuple[str, ...], instance_id: str | None = None, regex: str | None = None
    ) -> None:
        self.member_id = member_id
        self.topics = topics
        self.instance_id = instance_id
        self.regex = regex
        self.epoch = 0
        self.owned: set[Place] = set()
        self.assigned: set[Place] = set()
        self.says_all = True
        self.answer = ConsumerGroupHeartbeatResponse()

    def request(self, group: str) -> ConsumerGroupHeartbeatRequest:
        """Its next heartbeat: everything when it joins or is not sure that it was heard, else what it owns."""
        full = self.epoch == 0 or self.says_all
        return ConsumerGroupHeartbeatRequest(
            group,
            self.member_id,
            self.epoch,
            self.instance_id,
            None,
            60_000 if full else -1,
            list(self.topics) if full else None,
            self.regex if full else None,
            None,
            parts(self.owned),
        )

    def hear(self, answer: ConsumerGroupHeartbeatResponse) -> None:
        self.answer = answer
        if answer.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.begin_again()
            return
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        self.epoch = answer.member_epoch
        self.says_all = False
        if answer.assignment is not None:
            self.assigned = places(answer.assignment.topic_partitions)
            self.owned |= self.assigned

    def begin_again(self) -> None:
        self.epoch = 0
        self.owned, self.assigned = set(), set()

    def let_go(self) -> None:
        """Of what it is not assigned any more."""
        self.owned &= self.assigned


class ConsumerStage(Stage):
    """See the module's docstring."""

    def __init__(self, settings: GroupSettings = QUICK, **topics: int) -> None:
        self.around = MetadataView()
        self._lives = 0
        self.players: dict[str, Player] = {}
        self.hidden: set[str] = set()
        for name, partitions in topics.items():
            self.topic(name, partitions)
        super().__init__(settings)

    def sees(self, name: str) -> bool:
        return name not in self.hidden

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self._entropy, self.notes.append, self.around, history=self.history)

    def timing(self, **changes: Any) -> None:
        self.around.timing = replace(self.around.timing, **changes)

    def topic(self, name: str, partitions: int) -> None:
        """A new topic, or more partitions for one that is there."""
        known = self.around.topics.get(name)
        self._lives += 1
        self.around.topics[name] = (self._lives.to_bytes(16, "big") if known is None else known[0], partitions)
        self.around.topics_version = self._lives

    def delete_topic(self, name: str) -> None:
        del self.around.topics[name]
        self._lives += 1
        self.around.topics_version = self._lives
        self._carry_out(self.shard.decide(self.now, 0, Call(-1, 0, "", "", TopicsDeleted((name,)))))

    def reply(self, body: Any, version: int = 1, **more: Any) -> Any:
        if isinstance(body, ConsumerGroupHeartbeatRequest):
            body = ConsumerHeartbeat(body, self.sees)
        return self.answers[self.ask(body, version, **more)]

    # ---- members that keep to the rules ----------------------------------------------------------------------------

    def join(
        self, member: str, *topics: str, group: str = "g", instance: str | None = None, regex: str | None = None
    ) -> Player:
        player = self.players[member] = Player(member, topics or (() if regex else ("t",)), instance, regex)
        self.beat(member, group=group)
        return player

    def beat(self, member: str, group: str = "g", *, lets_go: bool = True) -> Player:
        """Its next heartbeat, heard."""
        player = self.players[member]
        if lets_go:
            player.let_go()
        player.hear(self.reply(player.request(group)))
        return player

    def leave(self, member: str, group: str = "g", epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        player = self.players.pop(member)
        answer = self.reply(ConsumerGroupHeartbeatRequest(group, member, epoch, player.instance_id))
        assert isinstance(answer, ConsumerGroupHeartbeatResponse)
        return answer

    def rest(self, *members: str, group: str = "g", rounds: int = 20) -> None:
        """Heartbeats of these, or of all, until nothing moves."""
        for _ in range(rounds):
            before = self.next_offset
            self.tick(10)
            for member in members or tuple(self.players):
                self.beat(member, group)
            if self.next_offset == before:
                return
        raise AssertionError("the group does not come to rest")

    # ---- what there is ---------------------------------------------------------------------------------------------

    def described(self, group: str = "g") -> DescribedGroup:
        (found,) = self.reply(ConsumerGroupDescribeRequest([group])).groups
        assert isinstance(found, DescribedGroup)
        return found

    def owners(self, group: str = "g") -> dict[str, list[tuple[str, int]]]:
        """What each member has been told to read."""
        return {
            member.member_id: [(part.topic_name, index) for part in member.assignment.topic_partitions
                               for index in part.partitions]
            for member in self.described(group).members
        }  # fmt: skip

    def places(self) -> set[Place]:
        """Every partition there is."""
        return {(topic_id, index) for topic_id, count in self.around.topics.values() for index in range(count)}

    # ---- offsets ---------------------------------------------------------------------------------------------------

    def commit(
        self, member: str, epoch: int, offset: int = 1, partition: int = 0, version: int = 9, group: str = "g"
    ) -> ErrorCode:
        topic = OffsetCommitRequestTopic(
            "t", self.around.topics["t"][0], [OffsetCommitRequestPartition(partition, offset)]
        )
        answer = self.reply(
            OffsetCommitRequest(group, generation_id_or_member_epoch=epoch, member_id=member, topics=[topic]), version
        )
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def fetch(
        self, member: str | None = None, epoch: int = -1, partition: int = 0, group: str = "g"
    ) -> tuple[ErrorCode, int]:
        asked = [OffsetFetchRequestTopics("t", partition_indexes=[partition])]
        answer = self.reply(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, member, epoch, asked)]), 9)
        found = answer.groups[0]
        offset = found.topics[0].partitions[0].committed_offset if found.topics else -1
        return ErrorCode(found.error_code), offset


def parts(owned: set[Place]) -> list[RequestTopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(owned):
        topics.setdefault(topic_id, []).append(index)
    return [RequestTopicPartitions(topic_id, indexes) for topic_id, indexes in topics.items()]


def places(some: Any) -> set[Place]:
    return {(bytes(part.topic_id), index) for part in some for index in part.partitions}
