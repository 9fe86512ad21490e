"""Wire answers of the classic group protocol, where a version or an error asks for more than filling in fields.

Knows which fields carry an error in which API. Does not decide anything.

Source: the getErrorResponse methods of Kafka's request classes; JoinGroupResponse.java, LeaveGroupResponse.java.
"""

from collections.abc import Sequence

from ottla.groups.share_admin import AddShares, AskShares, BeginDeletion, EndDeletion, ShareAnswer
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from ottla.protocol.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

_NULL_PROTOCOL_NAME_SINCE = 7
_LEAVE_IN_BATCHES_SINCE = 3


def join_reply(
    version: int,
    error: ErrorCode,
    member_id: str,
    *,
    generation: int = -1,
    protocol_type: str | None = None,
    protocol_name: str | None = None,
    leader: str = "",
    skip_assignment: bool = False,
    members: Sequence[JoinGroupResponseMember] = (),
) -> JoinGroupResponse:
    """No protocol is null since version 7 and "" before."""
    return JoinGroupResponse(
        error_code=error,
        generation_id=generation,
        protocol_type=protocol_type,
        protocol_name=(protocol_name or None) if version >= _NULL_PROTOCOL_NAME_SINCE else protocol_name or "",
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=list(members),
    )


def leave_reply(version: int, error: ErrorCode, members: list[MemberResponse]) -> LeaveGroupResponse:
    """Before version 3 the one member's error is the answer's."""
    if version >= _LEAVE_IN_BATCHES_SINCE:
        return LeaveGroupResponse(error_code=error, members=members)
    if error is ErrorCode.NONE and members:
        return LeaveGroupResponse(error_code=members[0].error_code)
    return LeaveGroupResponse(error_code=error)


def commit_error(body: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                    for each in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def refuse(call: Call, error: ErrorCode) -> object:
    """The answer to a call that never reached its group: its coordinator is loading, gone or not here."""
    match call.body:
        case JoinGroupRequest():
            return join_reply(call.version, error, "")
        case SyncGroupRequest():
            return SyncGroupResponse(error_code=error)
        case HeartbeatRequest():
            # While the group loads, its members are better off believing that all is well.
            loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error)
        case LeaveGroupRequest():
            return leave_reply(call.version, error, [])
        case OffsetCommitRequest() as body:
            return commit_error(body, error)
        case OffsetFetchRequest() as body:
            return OffsetFetchResponse(
                groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in body.groups]
            )
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(error_code=error)
        case DescribeGroupsRequest() as body:
            return DescribeGroupsResponse(
                groups=[DescribedGroup(group_id=group_id, error_code=error) for group_id in body.groups]
            )
        case ListGroupsRequest():
            return ListGroupsResponse(error_code=error)
        case DeleteGroupsRequest() as body:
            return DeleteGroupsResponse(
                results=[DeletableGroupResult(group_id=group_id, error_code=error) for group_id in body.groups_names]
            )
        case ShareGroupHeartbeatRequest():
            return ShareGroupHeartbeatResponse(error_code=error, error_message=error.message)
        case ShareGroupDescribeRequest() as body:
            return ShareGroupDescribeResponse(
                groups=[DescribedShareGroup(error, error.message, group_id) for group_id in body.group_ids]
            )
        case AskShares() | AddShares() | BeginDeletion() | EndDeletion():
            return ShareAnswer(error, error.message)
        case other:
            raise AssertionError(f"no coordinator of groups answers {type(other).__name__}")


def refuse_share_group(call: Call) -> object:
    """The answer to a request of the classic protocol that names a share group."""
    match call.body:
        case JoinGroupRequest():
            return refuse(call, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        case HeartbeatRequest() | SyncGroupRequest() | LeaveGroupRequest():
            return refuse(call, ErrorCode.UNKNOWN_MEMBER_ID)
        case _:
            return refuse(call, ErrorCode.GROUP_ID_NOT_FOUND)
