"""TxnOffsetCommit, key 28, versions 0 to 5: offsets of a group that take effect when a transaction commits.

The handler refuses unknown and unauthorized topics and partitions. It passes the rest to the group, as records of the
producer's transaction. The transaction's first commit in the group's partition waits for the coordinator (KIP-890),
like a produced batch.

Versions: 2 committed_leader_epoch, 3 flexible, generation, member and instance id (KIP-447), 4 TRANSACTION_ABORTABLE is
known, 5 the group's partition is added to the transaction by this request.

Not supported: more than 20,000 partitions in a request: the connection is closed.

Source: KafkaApis.handleTxnOffsetCommitRequest, GroupCoordinatorService.commitTransactionalOffsets; KIP-447, KIP-890.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.group_calls import call_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.coordinators.verification import Errors, Verification
from ottla.broker.requests import Request, RequestRefusedError
from ottla.broker.slices import SubRequest, Work, steps_of
from ottla.groups.offsets import TransactionalCommit
from ottla.log.answers import AppendRefusedError
from ottla.log.producers import VerificationGuard
from ottla.machine import Writer
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core
    from ottla.broker.partitions.partition import Partition


SPEC = ApiSpec(
    key=ApiKey.TXN_OFFSET_COMMIT,
    versions=(0, 5),
    acl=(
        (Operation.WRITE, ResourceType.TRANSACTIONAL_ID),
        (Operation.READ, ResourceType.GROUP),
        (Operation.READ, ResourceType.TOPIC),
    ),
    needs_lease=True,
    loaded_with=TRANSACTION_STATE_TOPIC,
)


PARTITIONS_MAX: Final = 20_000
"""All offsets are committed at once, so that no reader finds half of them."""
_LOADING_SINCE = 2
_ABORTABLE_SINCE = 4
_ADDS_PARTITION_SINCE = 5
_RefusedError = Mapping[tuple[str, int], ErrorCode]
_NOTHING: _RefusedError = {}


class _Commit(CoordinatorRequest):
    """The call to the group, and the answers for the refused partitions. `whole`: the request as received."""

    __slots__ = ("refused", "whole")

    def __init__(self, node: Core, request: Request, commit: TransactionalCommit, refused: _RefusedError) -> None:
        super().__init__([(node.coordinators.groups.partition_for(commit.asked.group_id), call_of(request, commit))])
        self.refused = refused
        self.whole: TxnOffsetCommitRequest = request.body

    def finish(self, request: Request) -> TxnOffsetCommitResponse:
        errors = dict(self.refused)
        for topic in self.replies[0].topics:
            for each in topic.partitions:
                errors[topic.name, each.partition_index] = ErrorCode(each.error_code)
        return _answer(self.whole, request.version, errors)


def handle(node: Core, request: Request) -> Any:
    body: TxnOffsetCommitRequest = request.body
    if steps_of(body.topics) > PARTITIONS_MAX:
        raise RequestRefusedError(f"TxnOffsetCommit names more than {PARTITIONS_MAX} partitions")
    name = body.transactional_id
    if not node.access.allows(request.identity, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name, request):
        return _refusal(body, request.version, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not node.access.on_group(request, Operation.READ, body.group_id):
        return _refusal(body, request.version, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    refused: dict[tuple[str, int], ErrorCode] = {}
    topics = [taken for taken in (_taken(node, request, topic, refused) for topic in body.topics) if taken.partitions]
    if not topics:
        return _answer(body, request.version, refused)
    if not body.group_id:
        return _refusal(body, request.version, ErrorCode.INVALID_GROUP_ID, refused)
    asked = OffsetCommitRequest(body.group_id, body.generation_id, body.member_id, -1, body.group_instance_id, topics)
    commit = TransactionalCommit(asked, Writer(body.producer_id, body.producer_epoch))
    partition = node.leadership.led(CONSUMER_OFFSETS_TOPIC, node.coordinators.groups.partition_for(body.group_id))
    if isinstance(partition, ErrorCode):
        return _refusal(body, request.version, ErrorCode.NOT_COORDINATOR, refused)
    try:
        guard = _guard(node, request, partition)
    except AppendRefusedError as fenced:
        return _refusal(body, request.version, fenced.error_code, refused)
    if guard is None:
        return _commit(node, request, partition, _Commit(node, request, commit, refused), None)
    place = (CONSUMER_OFFSETS_TOPIC, partition.index)
    adds = request.version >= _ADDS_PARTITION_SINCE
    errors = node.coordinators.verifier.verify_here(request.now, name, commit.writer, [place], adds=adds)
    if errors is not None and errors[place]:
        return _refusal(body, request.version, _said(errors[place], request.version), refused)
    if errors is not None:
        return _commit(node, request, partition, _Commit(node, request, commit, refused), guard)
    return node.slices.begin(request, _verified(node, request, partition, commit, refused, guard), is_long=False)


def _guard(node: Core, request: Request, partition: Partition) -> VerificationGuard | None:
    """The guard that the commit needs if it opens the transaction in the group's partition."""
    body: TxnOffsetCommitRequest = request.body
    second_version = request.version >= _ADDS_PARTITION_SINCE
    guard = partition.log.producers.guard(
        body.producer_id, body.producer_epoch, 0, node.wall.at(request.now), second_version=second_version
    )
    return guard if node.coordinators.verifier.asks(second_version=second_version) else None


def _verified(
    node: Core,
    request: Request,
    partition: Partition,
    commit: TransactionalCommit,
    refused: _RefusedError,
    guard: VerificationGuard,
) -> Work:
    body: TxnOffsetCommitRequest = request.body
    place = (CONSUMER_OFFSETS_TOPIC, partition.index)
    adds = request.version >= _ADDS_PARTITION_SINCE
    question = Verification(node.coordinators.verifier, body.transactional_id, commit.writer, [place], adds=adds)
    leader_epoch = partition.leader_epoch
    errors: Errors = yield SubRequest(request, None, question.begin, is_light=True)
    if not partition.leads or partition.leader_epoch != leader_epoch:
        return _refusal(body, request.version, ErrorCode.NOT_COORDINATOR, refused)
    if errors[place]:
        return _refusal(body, request.version, _said(errors[place], request.version), refused)
    asked = _Commit(node, request, commit, refused)
    return (yield SubRequest(request, None, lambda piece: _commit(node, piece, partition, asked, guard), is_light=True))


def _said(error: ErrorCode, version: int) -> ErrorCode:
    """The client's error for an error of the transaction's coordinator."""
    if error is ErrorCode.NETWORK_EXCEPTION:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    return error


def _commit(node: Core, request: Request, partition: Partition, asked: _Commit, guard: VerificationGuard | None) -> Any:
    """Let the group decide. Its records are appended before this returns, so the guard is checked here."""
    producer_id, producer_epoch = asked.whole.producer_id, asked.whole.producer_epoch
    producers = partition.log.producers
    try:
        if node.coordinators.verifier.asks(second_version=request.version >= _ADDS_PARTITION_SINCE):
            producers.verify_guard(producer_id, producer_epoch, 0, 0, guard)
        else:
            producers.verify(producer_id, producer_epoch, -1, transactional=True, client=False)
    except AppendRefusedError as refusal:
        return _refusal(asked.whole, request.version, refusal.error_code, asked.refused)
    return node.coordinators.groups.submit(request.now, request, asked)


def _taken(
    node: Core, request: Request, topic: TxnOffsetCommitRequestTopic, refused: dict[tuple[str, int], ErrorCode]
) -> OffsetCommitRequestTopic:
    """The part of a topic that goes to the group; the rest is added to `refused`."""
    known = node.image.topics.get(topic.name)
    allowed = node.access.on_topic(request, Operation.READ, topic.name)
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    count = len(known.partitions) if known is not None and allowed else 0
    partitions: list[OffsetCommitRequestPartition] = []
    for each in topic.partitions:
        if 0 <= each.partition_index < count:
            partitions.append(
                OffsetCommitRequestPartition(
                    each.partition_index,
                    each.committed_offset,
                    each.committed_leader_epoch,
                    each.committed_metadata,
                )
            )
        else:
            refused[topic.name, each.partition_index] = error
    return OffsetCommitRequestTopic(topic.name, bytes(16) if known is None else known.id, partitions)


def _refusal(
    body: TxnOffsetCommitRequest, version: int, error: ErrorCode, refused: _RefusedError = _NOTHING
) -> TxnOffsetCommitResponse:
    """The same error for every partition that was not refused before."""
    places = {(topic.name, each.partition_index): error for topic in body.topics for each in topic.partitions}
    return _answer(body, version, {**places, **refused})


def _answer(body: TxnOffsetCommitRequest, version: int, errors: _RefusedError) -> TxnOffsetCommitResponse:
    """An answer in the order of the request."""
    topics: list[TxnOffsetCommitResponseTopic] = []
    for topic in body.topics:
        told = TxnOffsetCommitResponseTopic(topic.name, [])
        topics.append(told)
        for each in topic.partitions:
            error = errors[topic.name, each.partition_index]
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _LOADING_SINCE:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            told.partitions.append(TxnOffsetCommitResponsePartition(each.partition_index, error))
    return TxnOffsetCommitResponse(topics=topics)
