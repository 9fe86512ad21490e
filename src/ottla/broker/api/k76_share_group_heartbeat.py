"""ShareGroupHeartbeat, key 76, version 1: join a share group, stay in it, leave it.

A member with a client-made id joins with epoch 0, continues with the epoch that it received, and leaves with -1. The
answer to the first heartbeat has the assignment. Kafka's first answer has an empty one, and the partitions follow a
heartbeat interval later. The connection is noted: when it is lost, the other members take over. With `share.version` at
0 all requests are refused (UNSUPPORTED_VERSION).

Not supported: subscriptions to more than 20,000 topics by name (INVALID_REQUEST).

Source: KafkaApis.scala handleShareGroupHeartbeat; KIP-932.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of, subscription_error
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.groups.epochs.heartbeats import LEAVE_EPOCH
from ottla.machine import Call
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.delivery.members import ShareMembers


SPEC = ApiSpec(
    key=ApiKey.SHARE_GROUP_HEARTBEAT,
    versions=(1, 1),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


class Heartbeat(CoordinatorRequest):
    """One heartbeat on its way."""

    __slots__ = ("members",)

    def __init__(self, members: ShareMembers, call: tuple[int, Call]) -> None:
        super().__init__([call])
        self.members = members

    def finish(self, request: Request) -> ShareGroupHeartbeatResponse:
        reply: ShareGroupHeartbeatResponse = self.replies[0]
        body: ShareGroupHeartbeatRequest = request.body
        if not reply.error_code:
            if body.member_epoch == LEAVE_EPOCH:
                self.members.left(body.group_id, body.member_id)
            else:
                self.members.heard(body.group_id, body.member_id, request.identity.address.connection_id)
        return reply


def handle(node: Core, request: Request) -> Any:
    body: ShareGroupHeartbeatRequest = request.body
    if not node.image.level_of(SHARE_VERSION):
        return ShareGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not node.access.on_group(request, Operation.READ, body.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return ShareGroupHeartbeatResponse(error_code=error, error_message=error.message)
    refused = subscription_error(node, request, body.subscribed_topic_names)
    if refused is not None:
        return ShareGroupHeartbeatResponse(error_code=refused[0], error_message=refused[1])
    asked = Heartbeat(
        node.coordinators.share_members, (node.coordinators.groups.partition_for(body.group_id), call_of(request))
    )
    return node.coordinators.groups.submit(request.now, request, asked)
