"""StreamsGroupDescribe, key 89, version 0: state, topology and members of streams groups.

Each group is refused (UNSUPPORTED_VERSION), as by a Kafka whose feature streams.version is 0.

Not supported: streams groups.

Source: KafkaApis.handleStreamsGroupDescribe; KIP-1071.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.streams_group_describe import DescribedGroup, StreamsGroupDescribeResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.STREAMS_GROUP_DESCRIBE,
    versions=(0, 0),
)


def handle(node: Core, request: Request) -> Any:
    return node.slices.each(request, _answer, "group_ids", "groups")


def _answer(request: Request) -> StreamsGroupDescribeResponse:
    error = ErrorCode.UNSUPPORTED_VERSION
    return StreamsGroupDescribeResponse(
        groups=[DescribedGroup(error, group_id=group_id) for group_id in request.body.group_ids]
    )
