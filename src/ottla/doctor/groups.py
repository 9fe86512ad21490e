"""Lists and describes the groups that one broker coordinates, of every type, with their positions.

Five requests a broker, whatever the number of groups: ListGroups names those that the broker coordinates, so that no
coordinator has to be looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.connection import Connection
from ottla.client.errors import UnsupportedVersionError, check
from ottla.doctor.snapshot import CLASSIC, CONSUMER, SHARE, Committed, Group, Member, TopicPartition
from ottla.protocol.apis import ApiKey
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


@dataclass(frozen=True, slots=True)
class Listed:
    """A group in the list of the broker that coordinates it. `type` is in lower case, `state` is Kafka's word."""

    name: str
    type: str
    state: str


def groups_on(connection: Connection) -> list[Group]:
    """The groups that this broker coordinates. Raises ClientError."""
    return described_on(connection, listed_on(connection))


def listed_on(connection: Connection) -> list[Listed]:
    """The names of the groups that this broker coordinates. Raises ClientError."""
    answer = connection.send(ListGroupsRequest())
    check(answer.error_code, "the list of groups")
    return [Listed(each.group_id, each.group_type.lower() or CLASSIC, each.group_state) for each in answer.groups]


def described_on(connection: Connection, listed: Sequence[Listed]) -> list[Group]:
    """Members and positions of some of the groups that this broker coordinates. Raises ClientError."""
    types = {each.name: each.type for each in listed}
    members, states = _members(connection, types)
    committed = _committed(connection, [name for name, type in types.items() if type in (CLASSIC, CONSUMER)])
    committed |= _share_offsets(connection, [name for name, type in types.items() if type == SHARE])
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


def _members(connection: Connection, types: dict[str, str]) -> tuple[dict[str, list[Member]], dict[str, str]]:
    """Members and states of groups, by name."""
    members: dict[str, list[Member]] = {}
    states: dict[str, str] = {}
    requests = {
        CLASSIC: DescribeGroupsRequest,
        CONSUMER: ConsumerGroupDescribeRequest,
        SHARE: ShareGroupDescribeRequest,
    }
    for type, request in requests.items():
        names = [name for name, each in types.items() if each == type]
        if not names:
            continue
        for group in connection.send(request(names)).groups:
            if not group.error_code:
                states[group.group_id] = group.group_state
                read = _classic_member if type == CLASSIC else _member
                members[group.group_id] = [read(each) for each in group.members]
    return members, states


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


def _committed(connection: Connection, names: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
    """The committed offsets of groups. Raises UnsupportedVersionError for a broker older than Kafka 3.0."""
    asked = [OffsetFetchRequestGroup(name, topics=None) for name in names]
    if not asked:
        return {}
    version = min(connection.version_of(ApiKey.OFFSET_FETCH), OFFSETS_BY_NAME)
    if version < OFFSETS_OF_MANY:
        raise UnsupportedVersionError(
            f"The broker at {connection.address} reports no offsets of several groups at once."
        )
    answer = connection.send(OffsetFetchRequest(groups=asked), version)
    return {
        group.group_id: {
            (topic.name, part.partition_index): Committed(part.committed_offset, part.committed_leader_epoch)
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code and part.committed_offset >= 0
        }
        for group in answer.groups
        if not group.error_code
    }


def _share_offsets(connection: Connection, names: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
    """The start offsets and lags of share groups."""
    asked = [DescribeShareGroupOffsetsRequestGroup(name, None) for name in names]
    if not asked:
        return {}
    answer = connection.send(DescribeShareGroupOffsetsRequest(asked))
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
