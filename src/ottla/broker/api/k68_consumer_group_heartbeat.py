"""ConsumerGroupHeartbeat, key 68, versions 0 to 1: join a consumer group, stay in it, leave it.

A member joins with epoch 0, continues with the epoch that it received, and leaves with -1. The coordinator answers with
its assignment and the time of the next heartbeat. With `group.version` at 0 all requests are refused
(UNSUPPORTED_VERSION).

Versions: 1 members make their ids themselves; regular expressions.

Not supported: subscriptions to more than 20,000 topics by name (INVALID_REQUEST).

Source: KafkaApis.scala handleConsumerGroupHeartbeat; KIP-848, KIP-1082.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of, subscription_error
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.groups.consumer.membership import ConsumerHeartbeat
from ottla.metadata.features import GROUP_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CONSUMER_GROUP_HEARTBEAT,
    versions=(0, 1),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    body: ConsumerGroupHeartbeatRequest = request.body
    if not node.image.level_of(GROUP_VERSION):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    if not node.access.on_group(request, Operation.READ, body.group_id):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return ConsumerGroupHeartbeatResponse(error_code=error, error_message=error.message)
    refused = subscription_error(node, request, body.subscribed_topic_names)
    if refused is not None:
        return ConsumerGroupHeartbeatResponse(error_code=refused[0], error_message=refused[1])
    heard = ConsumerHeartbeat(body, lambda name: node.access.quiet.on_topic(request, Operation.DESCRIBE, name))
    asked = CoordinatorRequest([(node.coordinators.groups.partition_for(body.group_id), call_of(request, heard))])
    return node.coordinators.groups.submit(request.now, request, asked)
