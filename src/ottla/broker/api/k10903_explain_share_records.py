"""ExplainShareRecords, key 10903, version 0: a member of a share group says why it cannot process records.

One of Ottla's own requests (docs/private-requests.md). ShareAcknowledge has no field for a reason. A worker sends this
request to the leader of the partition before it releases or rejects a record. It works beside any share consumer, on a
connection of its own, so it needs no share session.

Share consumers do not show their member id. So the delivery count identifies the delivery: a record is explained only
while a member has acquired it with this delivery, as the request's principal, and has not acknowledged it. A request
that has a member id (clients that know theirs) must have that of the member.

The leader keeps the last reason of a record until the record is done: in memory alone, so a new leader does not know
it. The dead letter has it in a header (`dead_letters`), DescribeSharePartitions shows it.

Bounds: `RECORDS_MAX` topics, partitions and records in a request, `REASON_BYTES_MAX` bytes a reason, and those of a
share partition (`ottla.share.failures`).

Not supported: nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api_spec import ApiSpec
from ottla.broker.delivery.host import ShareHost
from ottla.broker.delivery.partitions import HostedShare
from ottla.broker.requests import Request
from ottla.metadata.features import SHARE_VERSION
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.explain_share_records import (
    ExplainShareRecordsRequest,
    ExplainShareRecordsResponse,
    RequestPartition,
    RequestRecord,
    ResponsePartition,
    ResponseRecord,
    ResponseTopic,
)
from ottla.protocol.private_requests import REASON_BYTES_MAX
from ottla.share.partition import SharePartition

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.EXPLAIN_SHARE_RECORDS,
    versions=(0, 0),
    acl=(
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
)


RECORDS_MAX: Final = 1_000

_NOT_HELD = "No member of this principal has acquired the record with this delivery, or it has acknowledged it."
_NO_ROOM = "The partition has too many different reasons."
_NO_REASON = f"A reason has 1 to {REASON_BYTES_MAX} bytes."


def handle(node: Core, request: Request) -> Any:
    body: ExplainShareRecordsRequest = request.body
    if not node.access.on_group(request, Operation.READ, body.group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if not node.image.level_of(SHARE_VERSION):
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    parts = [part for topic in body.topics for part in topic.partitions]
    count = max(len(body.topics), len(parts), sum(len(part.records) for part in parts))
    if not body.group_id or count > RECORDS_MAX:
        return _refused(ErrorCode.INVALID_REQUEST, f"Name a group, and at most {RECORDS_MAX} topics and records.")
    topics: list[ResponseTopic] = []
    for topic in body.topics:
        may_read = node.access.on_topic(request, Operation.READ, topic.name)
        topics.append(
            ResponseTopic(
                topic.name, [_explain(node, request, topic.name, part, may_read) for part in topic.partitions]
            )
        )
    return ExplainShareRecordsResponse(topics=topics)


def _refused(error: ErrorCode, message: str | None = None) -> ExplainShareRecordsResponse:
    return ExplainShareRecordsResponse(error_code=error, error_message=message or error.message, topics=[])


def _explain(node: Core, request: Request, topic: str, part: RequestPartition, may_read: bool) -> ResponsePartition:
    """Keep the reasons of one partition's records."""
    index = part.partition_index
    led = node.leadership.led(topic, index) if may_read else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if isinstance(led, ErrorCode):
        return ResponsePartition(index, led, led.message, [])
    share = node.coordinators.in_use.share
    image = node.image.topics.get(topic)
    hosted = None if share is None or image is None else share.known(request.body.group_id, (image.id, index))
    records: list[ResponseRecord] = []
    for record in part.records:
        error, message = _explain_one(request, share, hosted, record)
        records.append(ResponseRecord(record.offset, error, message))
    return ResponsePartition(index, records=records)


def _explain_one(
    request: Request, share: ShareHost | None, hosted: HostedShare | None, record: RequestRecord
) -> tuple[ErrorCode, str | None]:
    """Keep the reason of one record; returns the error and its message."""
    if not 0 < len(record.reason.encode("utf-8", "replace")) <= REASON_BYTES_MAX:
        return ErrorCode.INVALID_REQUEST, _NO_REASON
    machine = None if hosted is None else hosted.machine
    if share is None or machine is None or not _holds(request, share, machine, record):
        return ErrorCode.INVALID_RECORD_STATE, _NOT_HELD
    if not machine.explain(record.offset, record.delivery_count, record.reason):
        return ErrorCode.THROTTLING_QUOTA_EXCEEDED, _NO_ROOM
    return ErrorCode.NONE, None


def _holds(request: Request, share: ShareHost, machine: SharePartition, record: RequestRecord) -> bool:
    """Whether a member of the request's principal has acquired the record with this delivery."""
    group_id, member_id = request.body.group_id, request.body.member_id
    holder = machine.holder(record.offset, record.delivery_count)
    if holder is None or (member_id is not None and member_id != holder):
        return False
    session = share.sessions.get(group_id, holder)
    return session is not None and session.principal == request.identity.principal
