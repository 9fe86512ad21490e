"""RemoveRaftVoter, key 81, version 0: one voter less on the cluster's metadata.

The request is refused, as by a Kafka with kraft.version 0; see `raft_voters`.

Not supported: removing one.

Source: KafkaRaftClient.handleRemoveVoterRequest; KIP-853.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api.raft_voters import refusal_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.requests import Request
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.messages.remove_raft_voter import RemoveRaftVoterResponse

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.REMOVE_RAFT_VOTER,
    versions=(0, 0),
    acl=((Operation.ALTER, ResourceType.CLUSTER),),
)


def handle(node: Core, request: Request) -> RemoveRaftVoterResponse:
    error, sentence = refusal_of(node, request, "remove")
    return RemoveRaftVoterResponse(error_code=error, error_message=sentence)
