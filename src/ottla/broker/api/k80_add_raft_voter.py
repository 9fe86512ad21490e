"""AddRaftVoter, key 80, versions 0 to 1: one more voter on the cluster's metadata.

The request is refused, as by a Kafka with kraft.version 0; see `raft_voters`.

Versions: 1 whether to wait for the commit; no effect here.

Not supported: adding one.

Source: KafkaRaftClient.handleAddVoterRequest; KIP-853, KIP-1186.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.raft_voters import refusal_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.add_raft_voter import AddRaftVoterResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.ADD_RAFT_VOTER,
    versions=(0, 1),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
)


def handle(node: Core, request: Request) -> AddRaftVoterResponse:
    error, sentence = refusal_of(node, request, "add")
    if error == ErrorCode.UNSUPPORTED_VERSION and not request.body.listeners:
        error, sentence = ErrorCode.INVALID_REQUEST, "Add voter request didn't include an endpoint"
    return AddRaftVoterResponse(error_code=error, error_message=sentence)
