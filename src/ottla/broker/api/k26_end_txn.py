"""EndTxn, key 26, versions 0 to 5: commit or abort a transaction.

The transactional id decides, and answers when the result is durable; the markers that make it visible follow.

Versions: 2 PRODUCER_FENCED (before: INVALID_PRODUCER_EPOCH), 3 flexible, 4 TRANSACTION_ABORTABLE is known, 5 the second
version of the protocol (KIP-890): the answer has the producer id and epoch of the next transaction.

Not supported: nothing.

Source: KafkaApis.handleEndTxnRequest, TransactionCoordinator.endTransaction; KIP-98, KIP-890.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.transaction_calls import ask_transaction
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.END_TXN,
    versions=(0, 5),
    acl=((Operation.WRITE, ResourceType.TRANSACTIONAL_ID),),
    needs_lease=True,
    loaded_with=TRANSACTION_STATE_TOPIC,
)


def handle(node: Core, request: Request) -> Any:
    body: EndTxnRequest = request.body
    name = body.transactional_id
    if not node.access.allows(request.identity, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name, request):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not name:
        return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ask_transaction(node, request, name)
