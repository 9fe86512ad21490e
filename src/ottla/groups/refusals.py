"""Answers every request about groups that never reached its group: each API has its own fields for an error.

Source: the getErrorResponse methods of Kafka's request classes.
"""

from ottla.groups.classic.replies import join_reply, leave_reply
from ottla.groups.consumer.membership import ConsumerHeartbeat
from ottla.groups.offsets import OffsetsSeen, PreparedCommit, SeeOffsets, TransactionalCommit, commit_error
from ottla.groups.share.admin import AddShares, AskShares, BeginDeletion, EndDeletion, ShareAnswer
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.leave_group import LeaveGroupRequest
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
)
from ottla.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse, OffsetFetchResponseGroup
from ottla.protocol.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from ottla.protocol.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


def refuse(call: Call, error: ErrorCode) -> object:
    """The answer to a call that never reached its group, because its coordinator is loading, moved or not here."""
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
        case TransactionalCommit(asked=asked):
            return commit_error(asked, error)
        case PreparedCommit():
            return error
        case SeeOffsets():
            return OffsetsSeen({}, [], error)
        case OffsetDeleteRequest():
            return OffsetDeleteResponse(error_code=error)
        case ListGroupsRequest():
            return ListGroupsResponse(error_code=error)
        case ConsumerHeartbeat():
            return ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.message)
        case ShareGroupHeartbeatRequest():
            return ShareGroupHeartbeatResponse(error_code=error, error_message=error.message)
        case AskShares() | AddShares() | BeginDeletion() | EndDeletion():
            return ShareAnswer(error, error.message)
        case body:
            return _refuse_each_group(body, error)


def _refuse_each_group(body: object, error: ErrorCode) -> object:
    """The answer to a request about several groups, with the error for each of them."""
    match body:
        case OffsetFetchRequest():
            return OffsetFetchResponse(
                groups=[OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in body.groups]
            )
        case DescribeGroupsRequest():
            return DescribeGroupsResponse(
                groups=[DescribedGroup(group_id=group_id, error_code=error) for group_id in body.groups]
            )
        case DeleteGroupsRequest():
            return DeleteGroupsResponse(
                results=[DeletableGroupResult(group_id=group_id, error_code=error) for group_id in body.groups_names]
            )
        case ConsumerGroupDescribeRequest():
            return ConsumerGroupDescribeResponse(
                groups=[DescribedConsumerGroup(error, error.message, group_id) for group_id in body.group_ids]
            )
        case ShareGroupDescribeRequest():
            return ShareGroupDescribeResponse(
                groups=[DescribedShareGroup(error, error.message, group_id) for group_id in body.group_ids]
            )
        case other:
            raise AssertionError(f"no coordinator of groups answers {type(other).__name__}")


def refuse_other_kind(call: Call) -> object:
    """The answer to a request of the classic protocol that names a group of another kind."""
    match call.body:
        case JoinGroupRequest():
            return refuse(call, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        case HeartbeatRequest() | SyncGroupRequest() | LeaveGroupRequest():
            return refuse(call, ErrorCode.UNKNOWN_MEMBER_ID)
        case _:
            return refuse(call, ErrorCode.GROUP_ID_NOT_FOUND)
