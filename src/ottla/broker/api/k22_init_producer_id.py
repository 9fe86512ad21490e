"""InitProducerId, key 22, versions 0 to 5: a producer id for an idempotent or a transactional producer.

Without a transactional id, the answer is always a fresh producer id with epoch 0. As in Kafka, the id and epoch that a
producer may send from version 3 on are only checked for consistency. Ids come from durable blocks; if none is available
the answer is COORDINATOR_LOAD_IN_PROGRESS and the client retries. With a transactional id, the answer is its producer
id in the next epoch, which aborts any transaction that an earlier instance left open (txn/transaction.py).

Versions: 2 flexible, 3 the producer sends its id and epoch, 4 PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH), 5 new
error codes.

Not supported: version 6 (two-phase commit), which is unstable in Kafka 4.3.

Source: KafkaApis.handleInitProducerIdRequest, TransactionCoordinator.handleInitProducerId; KIP-98, KIP-360.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.transaction_calls import ask_transaction
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.broker.slices import Work
from ottla.metadata.store import StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.INIT_PRODUCER_ID,
    versions=(0, 5),
    acl=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER),
        (Operation.WRITE, ResourceType.TOPIC),
    ),
    needs_lease=True,
    loaded_with=TRANSACTION_STATE_TOPIC,
)


NONE_GIVEN = -1


def handle(node: Core, request: Request) -> Any:
    body: InitProducerIdRequest = request.body
    if body.transactional_id is not None:
        return _of_transactional_id(node, request, body.transactional_id)
    if not _may_produce(node, request):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if (body.producer_id == NONE_GIVEN) != (body.producer_epoch == NONE_GIVEN):
        return _refused(ErrorCode.INVALID_REQUEST)
    taken = node.topics.producer_ids.take()
    if taken is None:
        return node.slices.begin(request, _claim(node), is_long=False)
    return InitProducerIdResponse(producer_id=taken, producer_epoch=0)


def _claim(node: Core) -> Work:
    """The answer to a request that arrives when the current block is used up."""
    try:
        return InitProducerIdResponse(producer_id=(yield node.topics.taking_producer_id), producer_epoch=0)
    except StoreError as failed:
        node.notes(f"could not allocate a producer id: {failed}")
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)


def _of_transactional_id(node: Core, request: Request, transactional_id: str) -> Any:
    body: InitProducerIdRequest = request.body
    if not node.access.allows(
        request.identity, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id, request
    ):
        return _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not transactional_id or (body.producer_id == NONE_GIVEN) != (body.producer_epoch == NONE_GIVEN):
        return _refused(ErrorCode.INVALID_REQUEST)
    return ask_transaction(node, request, transactional_id)


def _may_produce(node: Core, request: Request) -> bool:
    """IdempotentWrite on the cluster, or Write on any topic (KIP-679)."""
    return node.access.quiet.on_cluster(request, Operation.IDEMPOTENT_WRITE) or node.access.on_any_topic(
        request, Operation.WRITE
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
