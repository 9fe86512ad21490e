"""Describes groups for several APIs: asks their shards, and returns what the client may see of each group.

Sources: KafkaApis.scala handleConsumerGroupDescribe, handleShareGroupDescribe; KIP-430.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final

from ottla.broker.api.group_calls import by_shard, call_of
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation, ResourceType
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Core


REPEATED_MAX: Final = 200
_HIDDEN_TOPICS: Final = "The described group uses topics that the client is not authorized to describe."


def named_once(group_ids: list[str]) -> list[str]:
    """The groups to describe. In a long request each group is described once, as a description may be long."""
    return list(dict.fromkeys(group_ids)) if len(group_ids) > REPEATED_MAX else group_ids


class DescribeGroups(CoordinatorRequest):
    """Asks the shards of groups and assembles their answers in the order of the request.

    `described` starts with the groups that the client may not see, and gets all others.
    """

    __slots__ = ("described", "node", "order")

    def __init__(self, node: Core, calls: list[tuple[int, Call]], order: list[str], refused: dict[str, Any]) -> None:
        super().__init__(calls)
        self.node = node
        self.order = order
        self.described = refused

    def as_seen(self, request: Request, group: Any) -> Any:
        """A described group as the client may see it, with its authorized operations if the client asks for them."""
        if request.body.include_authorized_operations and not group.error_code:
            group.authorized_operations = self.node.access.authorized_operations(
                request, ResourceType.GROUP, group.group_id
            )
        return group

    def in_order(self, request: Request) -> list[Any]:
        """Every group that was asked for."""
        for reply in self.replies:
            for group in reply.groups:
                self.described[group.group_id] = self.as_seen(request, group)
        return [self.described[group_id] for group_id in self.order]


class DescribeMembers(DescribeGroups):
    """Describes groups with their members' topics: a group with a topic that the client may not describe is refused as
    a whole."""

    __slots__ = ()
    feature: ClassVar[str]
    """Without which these groups are not."""
    answer: ClassVar[type[Any]]
    described_group: ClassVar[type[Any]]

    def topics_of(self, member: Any) -> Iterable[str]:
        """The topics that the description of a member names."""
        raise NotImplementedError

    def as_seen(self, request: Request, group: Any) -> Any:
        topics = {name for member in group.members for name in self.topics_of(member)}
        if not all(self.node.access.on_topic(request, Operation.DESCRIBE, name) for name in sorted(topics)):
            return self.described_group(ErrorCode.TOPIC_AUTHORIZATION_FAILED, _HIDDEN_TOPICS, group.group_id)
        return super().as_seen(request, group)

    def finish(self, request: Request) -> Any:
        return self.answer(groups=self.in_order(request))


def describe_members(node: Core, request: Request, describe: type[DescribeMembers]) -> Any:
    """Serve a ConsumerGroupDescribe or a ShareGroupDescribe."""
    request.body.group_ids = named_once(request.body.group_ids)
    return node.slices.each(request, partial(_describe_members, node, describe), "group_ids", "groups")


def _describe_members(node: Core, describe: type[DescribeMembers], request: Request) -> Any:
    group_ids: list[str] = request.body.group_ids
    if not node.image.level_of(describe.feature):
        error = ErrorCode.UNSUPPORTED_VERSION
        return describe.answer(groups=[describe.described_group(error, group_id=group_id) for group_id in group_ids])
    refused: dict[str, Any] = {}
    for group_id in group_ids:
        error = ErrorCode.NONE if group_id else ErrorCode.INVALID_GROUP_ID
        if not node.access.on_group(request, Operation.DESCRIBE, group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        if error:
            refused[group_id] = describe.described_group(error, error.message, group_id)
    shards = by_shard(node, (group_id for group_id in dict.fromkeys(group_ids) if group_id not in refused))
    calls = [(at, call_of(request, type(request.body)(groups))) for at, groups in shards.items()]
    return node.coordinators.groups.submit(request.now, request, describe(node, calls, group_ids, refused))
