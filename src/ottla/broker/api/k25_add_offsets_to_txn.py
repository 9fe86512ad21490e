"""AddOffsetsToTxn, key 25, versions 0 to 4: a transaction is about to commit offsets of this group.

The handler adds the partition of `__consumer_offsets` that has the group's offsets to the transaction.

Versions: 2 PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH), 3 flexible, 4 TRANSACTION_ABORTABLE is known.

Not supported: nothing.

Source: KafkaApis.handleAddOffsetsToTxnRequest; KIP-98.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.api.group_calls import call_of
from ottla.broker.api.transaction_calls import addition, place_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.slices import SubRequest, Work
from ottla.metadata.store import StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ADD_OFFSETS_TO_TXN,
    versions=(0, 4),
    acl=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.READ, ResourceType.GROUP),
    ),
    needs_lease=True,
    loaded_with=TRANSACTION_STATE_TOPIC,
)


class _Addition(CoordinatorRequest):
    """The partition of one group, to be added to a transaction."""

    __slots__ = ()

    def finish(self, request: Request) -> AddOffsetsToTxnResponse:
        (topic,) = self.replies[0].topic_results
        return AddOffsetsToTxnResponse(error_code=topic.results_by_partition[0].partition_error_code)


def handle(node: Core, request: Request) -> Any:
    body: AddOffsetsToTxnRequest = request.body
    name = body.transactional_id
    if not node.access.allows(request.identity, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name, request):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not node.access.on_group(request, Operation.READ, body.group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not name:
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    if CONSUMER_OFFSETS_TOPIC not in node.image.topics:
        return node.slices.begin(request, _add_once_made(node, request), is_long=False)
    return _add(node, request)


def _add_once_made(node: Core, request: Request) -> Work:
    """Create the groups' topic first: the added partition belongs to it."""
    try:
        yield from node.forwarding.making_internal(CONSUMER_OFFSETS_TOPIC)
    except StoreError as failed:
        node.notes(f"the topic of the coordinators could not be made: {failed}")
        return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return (yield SubRequest(request, request.body, partial(_add, node)))


def _add(node: Core, request: Request) -> Any:
    body: AddOffsetsToTxnRequest = request.body
    index = node.coordinators.groups.partition_for(body.group_id)
    asked = addition(body, [AddPartitionsToTxnTopic(CONSUMER_OFFSETS_TOPIC, [index])])
    return node.coordinators.transactions.submit(
        request.now, request, _Addition([place_of(node, body.transactional_id, call_of(request, asked))])
    )
