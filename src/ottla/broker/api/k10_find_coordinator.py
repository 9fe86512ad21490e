"""FindCoordinator, key 10, versions 0 to 6: which node coordinates a group, a transaction or a share partition.

The handler names the leader of the key's partition, on the listener of the client, and creates the coordinator's topic
if it does not exist. The key of a share partition is `group:topicId:partition`, the id in URL-safe base64.

Versions: 1 key_type and error_message, 3 flexible, 4 many keys at once, 5 TRANSACTION_ABORTABLE is known, 6 key type 2
(share).

Not supported: nothing.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from ottla.broker.api_spec import ApiSpec
from ottla.broker.cluster.members import NOBODY, Member
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, Work, in_pieces
from ottla.metadata.store import StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import (
    CONSUMER_OFFSETS_TOPIC,
    SHARE_GROUP_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
    partition_of,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    acl=(
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
        (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
    ),
    between_nodes=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2

_MANY_KEYS_SINCE = 4
_SHARE_SINCE = 6
_SHARE_KEY = re.compile(r".+:[A-Za-z0-9_-]{22}:[0-9]{1,10}", re.ASCII | re.DOTALL)
_TOPIC_OF: Final = {
    GROUP: CONSUMER_OFFSETS_TOPIC,
    TRANSACTION: TRANSACTION_STATE_TOPIC,
    SHARE: SHARE_GROUP_STATE_TOPIC,
}
_NO_NODE: Final = Member(NOBODY, "", -1, None)


def handle(node: Core, request: Request) -> FindCoordinatorResponse | Parked:
    is_long = len(request.body.coordinator_keys) > SLICE_STEPS
    if is_long or _lacks_topic(node, request):
        return node.slices.begin(request, _answer(node, request), is_long=is_long)
    return _find(node, request)


def _answer(node: Core, request: Request) -> Work:
    """The answer to a request for many keys, or for the first ones ever."""
    if _lacks_topic(node, request):
        yield from _make_topic(node, _TOPIC_OF[request.body.key_type])
    if len(request.body.coordinator_keys) > SLICE_STEPS:
        return (yield from in_pieces(request, partial(_find, node), "coordinator_keys", "coordinators"))
    return _find(node, request)


def _make_topic(node: Core, topic: str) -> Work:
    """Have the coordinators' topic created."""
    try:
        yield from node.forwarding.making_internal(topic)
    except StoreError as failed:
        node.notes(f"the topic of the coordinators could not be made: {failed}")


def _lacks_topic(node: Core, request: Request) -> bool:
    """Whether the coordinators' topic has to be created before a coordinator can be named."""
    body: FindCoordinatorRequest = request.body
    if _TOPIC_OF.get(body.key_type) in node.image.topics:
        return False
    keys = body.coordinator_keys if request.version >= _MANY_KEYS_SINCE else [body.key]
    return any(_error(node, request, body.key_type, key) is ErrorCode.NONE for key in keys)


def _find(node: Core, request: Request) -> FindCoordinatorResponse:
    body: FindCoordinatorRequest = request.body
    if request.version >= _MANY_KEYS_SINCE:
        return FindCoordinatorResponse(
            coordinators=[_coordinator(node, request, body.key_type, key) for key in body.coordinator_keys]
        )
    found = _coordinator(node, request, body.key_type, body.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=ErrorCode(found.error_code).message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _coordinator(node: Core, request: Request, key_type: int, key: str) -> Coordinator:
    error = _error(node, request, key_type, key)
    found = _NO_NODE
    if error is ErrorCode.NONE:
        found = _leader(node, request, _TOPIC_OF[key_type], key)
        if found is _NO_NODE:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    message = "" if error is ErrorCode.NONE else error.message
    return Coordinator(key, found.node_id, found.host, found.port, error, message)


def _leader(node: Core, request: Request, topic: str, key: str) -> Member:
    """The leader of the partition of the coordinators' topic that the key falls into."""
    image = node.image.topics.get(topic)
    placed = None if image is None else image.partitions[partition_of(key, len(image.partitions))]
    found = [] if placed is None else node.members.of(request.identity.address, [placed.leader])
    return found[0] if found else _NO_NODE


def _error(node: Core, request: Request, key_type: int, key: str) -> ErrorCode:
    if key_type == GROUP:
        if node.access.on_group(request, Operation.DESCRIBE, key):
            return ErrorCode.NONE
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if key_type == TRANSACTION:
        if node.access.allows(request.identity, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key, request):
            return ErrorCode.NONE
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if key_type == SHARE and request.version >= _SHARE_SINCE:
        if not node.access.on_cluster(request, Operation.CLUSTER_ACTION):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        if _SHARE_KEY.fullmatch(key):
            return ErrorCode.NONE
    return ErrorCode.INVALID_REQUEST
