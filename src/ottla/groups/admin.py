"""Answers what is asked about groups from outside: DescribeGroups, ListGroups, DeleteGroups.

Source: Kafka's GroupMetadataManager.java (describeGroups, listGroups), GroupCoordinatorShard.java (deleteGroups).
"""

from collections.abc import Container

from ottla.groups.classic.group import Group, GroupState
from ottla.groups.classic.records import encode_group
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.group import GroupState as ConsumerGroupState
from ottla.groups.consumer.groups import ConsumerGroups
from ottla.groups.decision import DecisionBuilder, fits
from ottla.groups.offsets import Offsets
from ottla.groups.settings import GroupSettings
from ottla.groups.share.group import ShareGroup
from ottla.groups.share.groups import ShareGroups
from ottla.machine import Call, ShardRecord, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

_GROUP_ID_NOT_FOUND_SINCE = 6
GROUP_TYPE = "classic"

STATES = frozenset(
    map(
        str.lower,
        (*(state.value for state in GroupState), ConsumerGroupState.ASSIGNING, ConsumerGroupState.RECONCILING),
    )
)
TYPES = frozenset((GROUP_TYPE, ConsumerGroup.TYPE, ShareGroup.TYPE))
"""The group types that filters may name."""


def describe(
    ticket: Ticket,
    call: Call,
    body: DescribeGroupsRequest,
    groups: dict[str, Group],
    others: Container[str],
    decision: DecisionBuilder,
) -> None:
    described = [_described(call, group_id, groups.get(group_id), group_id in others) for group_id in body.groups]
    decision.answer(ticket, DescribeGroupsResponse(groups=described))


def _described(call: Call, group_id: str, group: Group | None, is_other: bool) -> DescribedGroup:
    """Metadata and the protocol are shown of a Stable group only. An unknown group is Dead, since v6 an error."""
    if group is None:
        if call.version < _GROUP_ID_NOT_FOUND_SINCE:
            return DescribedGroup(group_id=group_id, group_state=GroupState.DEAD.value)
        return DescribedGroup(
            group_id=group_id,
            group_state=GroupState.DEAD.value,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} is not a classic group." if is_other else f"Group {group_id} not found.",
        )
    stable = group.state is GroupState.STABLE
    protocol = (group.protocol_name or "") if stable else ""
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=protocol,
        members=[
            DescribedGroupMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(protocol) if stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        ],
    )


def list_groups(
    ticket: Ticket,
    body: ListGroupsRequest,
    groups: dict[str, Group],
    consumer: ConsumerGroups,
    share: ShareGroups,
    decision: DecisionBuilder,
) -> None:
    """A state or type that does not exist matches nothing."""
    states, types = set(map(meant, body.states_filter)), set(map(meant, body.types_filter))
    listed = [
        ListedGroup(group.group_id, group.protocol_type or "", group.state.value, GROUP_TYPE)
        for group in groups.values()
    ]
    listed += consumer.listed()
    listed += share.listed()
    found = [
        each
        for each in listed
        if (not states or each.group_state.lower() in states) and (not types or each.group_type in types)
    ]
    decision.answer(ticket, ListGroupsResponse(groups=found))


def meant(name: str) -> str:
    """A state or type in a filter in the form for comparison: without case, nor space around it."""
    return name.strip().lower()


def delete_groups(
    ticket: Ticket,
    body: DeleteGroupsRequest,
    groups: dict[str, Group],
    offsets: Offsets,
    consumer: ConsumerGroups,
    share: ShareGroups,
    settings: GroupSettings,
    decision: DecisionBuilder,
) -> None:
    """Only groups without members are deleted, with all their offsets."""
    results: list[DeletableGroupResult] = []
    for group_id in dict.fromkeys(body.groups_names):
        group = groups.get(group_id)
        records: list[ShardRecord] | None = None
        if group_id in share:
            records = share.deletion(group_id)
        elif group_id in consumer:
            tombstones = consumer.deletion(group_id)
            records = None if tombstones is None else [*offsets.delete_all(group_id), *tombstones]
        elif group is not None and group.state is GroupState.EMPTY:
            records = [*offsets.delete_all(group_id), encode_group(group_id, None)]
        error = ErrorCode.NONE
        if group is None and group_id not in share and group_id not in consumer:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif records is None:
            error = ErrorCode.NON_EMPTY_GROUP
        elif fits([*decision.records, *records], settings):
            decision.records += records
        else:
            error = ErrorCode.UNKNOWN_SERVER_ERROR
        results.append(DeletableGroupResult(group_id, error))
    decision.answer(ticket, DeleteGroupsResponse(results=results))
