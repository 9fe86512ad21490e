"""ConsumerGroupDescribe, key 69, versions 0 to 1: state, epochs, members and assignments of consumer groups.

The handler asks each group's shard and answers in the order of the request. A group that reads a topic which the client
may not describe is refused as a whole. With `group.version` at 0 every group is refused (UNSUPPORTED_VERSION).

Versions: 1 which protocol a member speaks.

Not supported: nothing.

Source: KafkaApis.scala handleConsumerGroupDescribe; KIP-848, KIP-430.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_descriptions import DescribeMembers, describe_members
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.metadata.features import GROUP_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse, DescribedGroup, Member

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CONSUMER_GROUP_DESCRIBE,
    versions=(0, 1),
    acl=(
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


class Describe(DescribeMembers):
    """A running ConsumerGroupDescribe request."""

    __slots__ = ()
    feature = GROUP_VERSION
    answer = ConsumerGroupDescribeResponse
    described_group = DescribedGroup

    def topics_of(self, member: Member) -> Iterable[str]:
        return (
            *member.subscribed_topic_names,
            *(part.topic_name for part in member.assignment.topic_partitions),
            *(part.topic_name for part in member.target_assignment.topic_partitions),
        )


def handle(node: Core, request: Request) -> Any:
    return describe_members(node, request, Describe)
