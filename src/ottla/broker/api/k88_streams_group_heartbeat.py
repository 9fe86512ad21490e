"""StreamsGroupHeartbeat, key 88, version 0: a member of a streams group keeps its session alive.

Every request is refused (UNSUPPORTED_VERSION), as by a Kafka whose feature streams.version is 0. Kafka Streams then
reports that the cluster does not support the protocol; its default, the classic protocol, works.

Not supported: streams groups.

Source: KafkaApis.handleStreamsGroupHeartbeat; KIP-1071.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.streams_group_heartbeat import StreamsGroupHeartbeatResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.STREAMS_GROUP_HEARTBEAT,
    versions=(0, 0),
)


def handle(_: Core, __: Request) -> StreamsGroupHeartbeatResponse:
    return StreamsGroupHeartbeatResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
