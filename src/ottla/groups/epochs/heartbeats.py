"""Checks heartbeats of groups with epochs, as far as every kind does it, and keeps the sessions of members.

Source: Kafka's GroupMetadataManager.java, GroupCoordinatorService.java.
"""

from collections.abc import Container, Mapping
from typing import Any, Final, TypeVar

from ottla.groups.deadlines import Deadline, GroupTimer
from ottla.groups.decision import fits
from ottla.groups.epochs.group import EpochGroup, EpochMember
from ottla.groups.settings import GroupSettings
from ottla.machine import Millis, ShardRecord
from ottla.machine.timers import Timers
from ottla.protocol.errors import ErrorCode

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1

GroupT = TypeVar("GroupT", bound=EpochGroup[Any, Any])


class HeartbeatRefusedError(Exception):
    """Raised for a heartbeat that is answered with an error."""

    def __init__(self, error: ErrorCode, message: str | None = None) -> None:
        self.error = error
        self.message = error.message if message is None else message


class TooLargeError(HeartbeatRefusedError):
    """Raised when the records of a heartbeat do not fit into one batch."""


def check_names(*names: tuple[str, str | None]) -> None:
    """Check (field, text) of ids in a request, which may be null but not blank. Raises HeartbeatRefusedError."""
    for field, text in names:
        if text is not None and not text.strip():
            raise HeartbeatRefusedError(ErrorCode.INVALID_REQUEST, f"{field} can't be empty.")


def missing(kind: str, group_id: str, other_groups: Container[str]) -> str:
    """Says why there is no group of this kind and id."""
    return f"Group {group_id} is not a {kind} group." if group_id in other_groups else f"Group {group_id} not found."


def known(groups: Mapping[str, GroupT], kind: str, group_id: str, in_the_way: Container[str]) -> GroupT:
    """The group that a heartbeat names. Raises HeartbeatRefusedError."""
    group = groups.get(group_id)
    if group is None and group_id in in_the_way:
        raise HeartbeatRefusedError(ErrorCode.GROUP_ID_NOT_FOUND, missing(kind, group_id, in_the_way))
    if group is None:
        raise HeartbeatRefusedError(ErrorCode.GROUP_ID_NOT_FOUND, f"{kind.capitalize()} group {group_id} not found.")
    return group


def unknown_member(group_id: str, member_id: str) -> HeartbeatRefusedError:
    """Why a heartbeat is refused whose sender is no member."""
    return HeartbeatRefusedError(
        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}."
    )


def full(kind: str, members_max: int) -> HeartbeatRefusedError:
    """Why a member is refused for which the group has no room."""
    return HeartbeatRefusedError(
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        f"The {kind} group has reached its maximum capacity of {members_max} members.",
    )


def fenced(kind: str, member: EpochMember, epoch: int) -> HeartbeatRefusedError:
    """Why a heartbeat is refused that has another epoch than the member."""
    size = "greater" if epoch > member.member_epoch else "smaller"
    return HeartbeatRefusedError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The {kind} group member has a {size} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin.",
    )


def in_one_batch(group_id: str, records: list[ShardRecord], settings: GroupSettings) -> list[ShardRecord]:
    """These records, which are a heartbeat's outcome and can't be split. Raises TooLargeError."""
    if not fits(records, settings):
        text = f"The records of group {group_id} do not fit into one batch."
        raise TooLargeError(ErrorCode.UNKNOWN_SERVER_ERROR, text)
    return records


class Sessions:
    """The sessions of the members of one kind of groups, among the deadlines of a shard."""

    __slots__ = ("_deadlines", "_session", "_timers")

    def __init__(self, timers: Timers[GroupTimer], session: Deadline, *deadlines: Deadline) -> None:
        self._timers = timers
        self._session = session
        self._deadlines = (session, *deadlines)
        """Every kind of deadline that a member may have, and that ends with its membership."""

    def begin(self, group_id: str, member_id: str, until: Millis) -> None:
        """Begin a member's session, or extend it."""
        self._timers.set((group_id, self._session, member_id), until)

    def end(self, group_id: str, member_id: str) -> None:
        """End a member's session, and its other deadlines."""
        for kind in self._deadlines:
            self._timers.cancel((group_id, kind, member_id))

    def check(self, group: EpochGroup[Any, Any]) -> None:
        for member_id in group.members:
            watched = (group.group_id, self._session, member_id) in self._timers
            assert watched, f"{group.group_id}: nobody watches member {member_id}"
