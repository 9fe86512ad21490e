"""A share group's coordinator on a stage: topics and timings that a test can change at will."""

from typing import Any

from ottla.groups.metadata_view import ShareGroupConfig
from ottla.groups.settings import GroupSettings
from ottla.groups.shard import GroupShard, TopicsDeleted
from ottla.groups.share.membership import ConnectionLost
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from tests.harness.groups.group_stage import QUICK, Stage


class MetadataView:
    def __init__(self) -> None:
        self.topics: dict[str, tuple[bytes, int]] = {}
        self.timing = ShareGroupConfig()

    def topic(self, name: str) -> tuple[bytes, int] | None:
        return self.topics.get(name)

    def share_group_config(self, group_id: str) -> ShareGroupConfig:
        return self.timing


class ShareStage(Stage):
    """`topic` makes one; `beat`, `join` and `leave` are heartbeats; `owners` is who reads what."""

    def __init__(self, settings: GroupSettings = QUICK, **topics: int) -> None:
        self.around = MetadataView()
        self._lives = 0
        for name, partitions in topics.items():
            self.topic(name, partitions)
        super().__init__(settings)

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.settings, self._entropy, self.notes.append, self.around, history=self.history)

    def topic(self, name: str, partitions: int) -> None:
        """A new topic, or more partitions for one that is there."""
        known = self.around.topics.get(name)
        self._lives += 1
        self.around.topics[name] = (self._lives.to_bytes(16, "big") if known is None else known[0], partitions)

    def delete_topic(self, name: str) -> None:
        del self.around.topics[name]
        self.tell(TopicsDeleted((name,)))

    def tell(self, body: object) -> None:
        """A call of the node itself."""
        self._carry_out(self.shard.decide(self.now, 0, Call(-1, 0, "", "", body)))

    def reply(self, body: Any, version: int = 1, **more: Any) -> Any:
        return self.answers[self.ask(body, version, **more)]

    def beat(
        self, member: str, epoch: int, topics: list[str] | None = None, group: str = "g", rack: str | None = None
    ) -> ShareGroupHeartbeatResponse:
        answer = self.reply(ShareGroupHeartbeatRequest(group, member, epoch, rack, topics))
        assert isinstance(answer, ShareGroupHeartbeatResponse)
        return answer

    def join(self, member: str, *topics: str, group: str = "g") -> ShareGroupHeartbeatResponse:
        answer = self.beat(member, 0, list(topics or ("t",)), group)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return answer

    def go_on(self, member: str, group: str = "g") -> ShareGroupHeartbeatResponse:
        """The next heartbeat of a member that has heard every answer."""
        share = self.shard.share.of(group)
        assert share is not None
        answer = self.beat(member, share.members[member].member_epoch, group=group)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return answer

    def lose(self, member: str, group: str = "g") -> None:
        """The member's connection is gone."""
        self.tell(ConnectionLost(group, member))

    def owners(self, group: str = "g") -> dict[str, list[tuple[str, int]]]:
        """What each member has been told to read."""
        (described,) = self.reply(ShareGroupDescribeRequest([group])).groups
        return {
            member.member_id: [(part.topic_name, index) for part in member.assignment.topic_partitions
                               for index in part.partitions]
            for member in described.members
        }  # fmt: skip


def assigned(answer: ShareGroupHeartbeatResponse) -> list[int] | None:
    """The partitions in an answer, topics aside; None where it brings no assignment."""
    if answer.assignment is None:
        return None
    return [index for part in answer.assignment.topic_partitions for index in part.partitions]
