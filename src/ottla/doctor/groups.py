"""Lists and describes the groups that one broker coordinates, of every type, with their positions.

Five requests a broker, whatever the number of groups: ListGroups names those that the broker coordinates, so that no
coordinator has to be looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.connection import Connection
from ottla.client.dead_letters import REDRIVE_PREFIX
from ottla.client.errors import check
from ottla.client.read_together import InVersions, Question, version_of
from ottla.doctor.snapshot import CLASSIC, CONSUMER, SHARE, Committed, Group, Member, TopicPartition
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_protocol_assignment import ConsumerProtocolAssignment
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest

OFFSETS_OF_MANY: Final = 8
"""The first version of OffsetFetch that names several groups (KIP-709)."""
OFFSETS_BY_NAME: Final = 9
"""The last version of OffsetFetch that names topics, not their ids."""
DESCRIBES: Final[dict[str, Callable[[list[str]], Question]]] = {
    CLASSIC: DescribeGroupsRequest,
    CONSUMER: ConsumerGroupDescribeRequest,
    SHARE: ShareGroupDescribeRequest,
}
"""The request that describes the groups of a type."""
POSITIONS: Final = "positions"
SHARE_POSITIONS: Final = "share positions"


@dataclass(frozen=True, slots=True)
class Listed:
    """A group in the list of the broker that coordinates it. `type` is in lower case, `state` is Kafka's word."""

    name: str
    type: str
    state: str


def listed_on(connection: Connection) -> list[Listed]:
    """The names of the groups that this broker coordinates. Raises ClientError."""
    answer = connection.send(ListGroupsRequest())
    check(answer.error_code, "the list of groups")
    return listed_in(answer)


def listed_in(answer: Any) -> list[Listed]:
    """The groups in an answer to ListGroups."""
    return [Listed(each.group_id, each.group_type.lower() or CLASSIC, each.group_state) for each in answer.groups]


def described_on(connection: Connection, listed: Sequence[Listed]) -> list[Group]:
    """Members and positions of some of the groups that this broker coordinates. Raises ClientError."""
    answers: dict[Hashable, Any] = {}
    for name, question in questions_of(listed).items():
        version = version_of(connection, question)
        answers[name] = connection.send(question.message if isinstance(question, InVersions) else question, version)
    return groups_in(listed, answers)


def questions_of(listed: Sequence[Listed]) -> dict[Hashable, Question]:
    """The questions to the coordinator of these groups."""
    found: dict[Hashable, Question] = {}
    for type, request in DESCRIBES.items():
        if names := [each.name for each in listed if each.type == type]:
            found[type] = request(names)
    if names := [each.name for each in listed if each.type in (CLASSIC, CONSUMER)]:
        asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(name, topics=None) for name in names])
        found[POSITIONS] = InVersions(asked, OFFSETS_OF_MANY, OFFSETS_BY_NAME)
    if names := [each.name for each in listed if each.type == SHARE]:
        rows = [DescribeShareGroupOffsetsRequestGroup(name, None) for name in names]
        found[SHARE_POSITIONS] = DescribeShareGroupOffsetsRequest(rows)
    return found


def groups_in(listed: Sequence[Listed], answers: Mapping[Hashable, Any]) -> list[Group]:
    """The groups, from the answers to `questions_of`."""
    members: dict[str, list[Member]] = {}
    states: dict[str, str] = {}
    for type in DESCRIBES:
        for group in answers[type].groups if type in answers else ():
            if not group.error_code:
                states[group.group_id] = group.group_state
                read = _classic_member if type == CLASSIC else _member
                members[group.group_id] = [read(each) for each in group.members]
    committed = _committed(answers[POSITIONS]) if POSITIONS in answers else {}
    if SHARE_POSITIONS in answers:
        committed |= _share_offsets(answers[SHARE_POSITIONS])
    return [
        Group(
            each.name,
            each.type,
            states.get(each.name) or each.state,
            tuple(members.get(each.name, ())),
            committed.get(each.name, {}),
        )
        for each in listed
    ]


def _member(each: Any) -> Member:
    """A member of a KIP-848 group or a share group; the members of the latter have no target."""
    target = getattr(each, "target_assignment", None)
    return Member(
        each.member_id,
        each.client_id,
        each.client_host,
        getattr(each, "instance_id", None),
        _places(each.assignment),
        None if target is None else _places(target),
    )


def _places(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset((each.topic_name, index) for each in assignment.topic_partitions for index in each.partitions)


def _classic_member(each: Any) -> Member:
    """A member of a classic group. Other protocols than "consumer" have assignments in their own formats."""
    owned: frozenset[TopicPartition] = frozenset()
    data = bytes(each.member_assignment or b"")
    try:
        if len(data) >= 2:
            version = max(0, min(int.from_bytes(data[:2], "big"), ConsumerProtocolAssignment.MAX_VERSION))
            assignment, _ = ConsumerProtocolAssignment.decode(memoryview(data), 2, version)
            owned = frozenset(
                (topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions
            )
    except (MalformedFrameError, ValueError):
        pass
    return Member(each.member_id, each.client_id, each.client_host, each.group_instance_id, owned)


def _committed(answer: Any) -> dict[str, dict[TopicPartition, Committed]]:
    """The committed offsets of groups."""
    return {
        group.group_id: {
            (topic.name, part.partition_index): Committed(
                part.committed_offset,
                part.committed_leader_epoch,
                metadata=(part.metadata or "") if group.group_id.startswith(REDRIVE_PREFIX) else "",
            )
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code and part.committed_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }


def _share_offsets(answer: Any) -> dict[str, dict[TopicPartition, Committed]]:
    """The start offsets and lags of share groups."""
    return {
        group.group_id: {
            (topic.topic_name, part.partition_index): Committed(
                part.start_offset, part.leader_epoch, part.lag if part.lag >= 0 else None
            )
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code and part.start_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }
