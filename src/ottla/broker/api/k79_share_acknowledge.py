"""ShareAcknowledge, key 79, versions 1 to 2: acknowledge acquired records.

The acknowledgements of each partition are accepted all or none, and answered once they are persisted. The final epoch
(-1) closes the session afterwards, and releases the member's other acquired records. With `share.version` at 0 all
requests are refused (UNSUPPORTED_VERSION).

Versions: 2 renewing acknowledgements and the lock's duration in the answer (KIP-1222).

Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.delivery.requests import ShareAcknowledging
from ottla.broker.delivery.sessions import FINAL_EPOCH, INITIAL_EPOCH
from ottla.broker.effects import Parked
from ottla.broker.requests import Request
from ottla.machine import Millis
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.SHARE_ACKNOWLEDGE,
    versions=(1, 2),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    size=RequestSize.MANY_ELEMENTS,
    needs_lease=True,
    loaded_with=SHARE_GROUP_STATE_TOPIC,
)


def handle(node: Core, request: Request) -> ShareAcknowledgeResponse | Parked:
    asked = ShareAcknowledge(node.coordinators.share, node.access, request)
    body = request.body
    error = asked.refusal()
    if error is None and body.share_session_epoch == INITIAL_EPOCH:
        error = ErrorCode.INVALID_SHARE_SESSION_EPOCH
    if error is None:
        session = node.coordinators.share.sessions.resume(
            asked.group_id, asked.member_id, body.share_session_epoch, request.identity.address.connection_id
        )
        if isinstance(session, ErrorCode):
            error = session
        else:
            asked.session = session
    if error is not None:
        return ShareAcknowledgeResponse(error_code=error, error_message=error.message)
    asked.acknowledge_all(request.now)
    if asked.is_persisting:
        return asked.park(None)
    return asked.message(request.now)


class ShareAcknowledge(ShareAcknowledging):
    """A ShareAcknowledge whose answer is built here."""

    __slots__ = ()

    def message(self, now: Millis) -> Any:
        if self.request.body.share_session_epoch == FINAL_EPOCH:
            self.leave_session(now)
        hints = self.leader_hints()
        topics: dict[bytes, list[PartitionData]] = {}
        for answer in self.answers:
            part = PartitionData(answer.place[1], answer.acknowledge_error or 0, answer.acknowledge_message)
            part.current_leader = LeaderIdAndEpoch(*answer.leader)
            topics.setdefault(answer.place[0], []).append(part)
        return ShareAcknowledgeResponse(
            acquisition_lock_timeout_ms=self.lock_timeout_ms,
            responses=[ShareAcknowledgeTopicResponse(topic_id, parts) for topic_id, parts in topics.items()],
            node_endpoints=[NodeEndpoint(*hint) for hint in hints],
        )
