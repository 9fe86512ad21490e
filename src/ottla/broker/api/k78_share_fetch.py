"""ShareFetch, key 78, versions 1 to 2: acknowledge what was processed, acquire and read what comes next.

The handler enters the share session, submits piggybacked acknowledgements, and acquires records of the session's
partitions. It answers when there are any, when a partition has an error, or when max_wait_ms is over. Records leave as
file slices; a partition without any has an empty record set, never null. With `share.version` at 0 all requests are
refused (UNSUPPORTED_VERSION).

Versions: 1 max_records and batch_size, 2 share_acquire_mode (KIP-1206) and renewing acknowledgements (KIP-1222).

Not supported: nothing. As in Kafka, group membership is not checked: a session is enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.api_spec import ApiSpec, RequestSize
from ottla.broker.channel import Channel
from ottla.broker.delivery.answer import encode_share_fetch_response
from ottla.broker.delivery.requests import BATCH_OPTIMIZED, RECORD_LIMIT, ShareFetching
from ottla.broker.delivery.sessions import FINAL_EPOCH
from ottla.broker.effects import Parked, Part
from ottla.broker.quotas import Throttle
from ottla.broker.requests import Decoded, Request
from ottla.broker.security.authorizer import Access
from ottla.machine import Millis
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.framing import decode_request_header
from ottla.protocol.messages.share_fetch import ShareFetchRequest

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.delivery.host import ShareHost


SPEC = ApiSpec(
    key=ApiKey.SHARE_FETCH,
    versions=(1, 2),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    size=RequestSize.MANY_ELEMENTS,
    needs_lease=True,
    loaded_with=SHARE_GROUP_STATE_TOPIC,
)

_KEY = int(SPEC.key)


def receive(
    node: Core,
    now: Millis,
    channel: Channel,
    version: int,
    correlation_id: int,
    frame: memoryview,
    decoded: Decoded = None,
) -> list[Part] | Parked:
    """Serve one ShareFetch frame; see `Node.receive`. Raises MalformedFrameError."""
    if decoded is None:
        header, position = decode_request_header(frame)
        body, _ = ShareFetchRequest.decode(frame, position, version)
    else:
        header, body = decoded
    body.max_bytes = min(body.max_bytes, node.settings["fetch.max.bytes"])
    request = Request(channel, _KEY, version, correlation_id, header.client_id, now, body)
    fetch = ShareFetch(node.coordinators.share, node.access, node.throttle, request)
    error = fetch.refusal()
    if error is None:
        if body.is_renew_ack and _asks_for_records(body):
            error = ErrorCode.INVALID_REQUEST
        elif body.share_acquire_mode not in (BATCH_OPTIMIZED, RECORD_LIMIT):
            error = ErrorCode.UNKNOWN_SERVER_ERROR  # as Kafka maps its IllegalArgumentException
    if error is None:
        error = fetch.enter_session(now)
    if error is not None:
        throttle_ms = node.throttle.charge(now, channel, header.client_id)
        return encode_share_fetch_response(correlation_id, error, error.message, 0, [], [], throttle_ms)
    fetch.acknowledge_all(now)
    fetch.find_partitions(now)
    if fetch.is_held or not fetch.fetch(now):
        return fetch.wait()
    return fetch.parts(now)


def _asks_for_records(body: ShareFetchRequest) -> bool:
    """A renewing request must not fetch: its member may have no time for new records."""
    return bool(body.max_bytes or body.min_bytes or body.max_records or body.max_wait_ms)


class ShareFetch(ShareFetching):
    """A ShareFetch whose answer is encoded here."""

    __slots__ = ("throttle",)

    def __init__(self, share: ShareHost, access: Access, throttle: Throttle, request: Request) -> None:
        super().__init__(share, access, request)
        self.throttle = throttle

    def parts(self, now: Millis) -> list[Part]:
        if self.request.body.share_session_epoch == FINAL_EPOCH:
            self.leave_session(now)
        hints = self.leader_hints()
        request, fetched = self.request, sum(answer.size for answer in self.answers)
        # Acquired records are sent even to a throttled client: no other member gets them before their locks expire.
        throttle_ms = self.throttle.charge(now, request.channel, request.client_id, fetched=fetched)
        return encode_share_fetch_response(
            request.correlation_id, 0, None, self.lock_timeout_ms, self.answers, hints, throttle_ms
        )
