"""Builds answers of the classic protocol that depend on the version or the error.

Source: Kafka's JoinGroupResponse.java, LeaveGroupResponse.java.
"""

from collections.abc import Sequence

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.protocol.messages.leave_group import LeaveGroupResponse, MemberResponse

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
    """A missing protocol is null since version 7, and "" before."""
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
    """Before version 3 the error of the only member is the answer's error."""
    if version >= _LEAVE_IN_BATCHES_SINCE:
        return LeaveGroupResponse(error_code=error, members=members)
    if error is ErrorCode.NONE and members:
        return LeaveGroupResponse(error_code=members[0].error_code)
    return LeaveGroupResponse(error_code=error)
