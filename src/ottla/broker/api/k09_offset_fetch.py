"""OffsetFetch, key 9, versions 1 to 10: read how far groups have read.

The handler asks each group's shard; a partition without an offset gets -1.

Versions: 2 topics null for all, a top-level error; 3 throttle_time_ms; 5 committed_leader_epoch; 6 flexible; 7
require_stable; 8 many groups at once; 9 member_id and member_epoch; 10 topics by id instead of by name.

Not supported: version 0 (offsets in ZooKeeper), which Kafka has removed too. A group whose offsets are all requested
twice is answered once. If a librdkafka client asks for some partitions on a node that does not coordinate the group,
its connection is closed. It would never process the NOT_COORDINATOR answer (its issue 5586), and asks again once its
connection has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from ottla.broker.api.group_calls import call_of
from ottla.broker.api_spec import ApiSpec
from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.effects import Close, Outbox
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, SubRequest, Work, answer_of_parts
from ottla.groups.offsets import OffsetsSeen, SeeOffsets
from ottla.machine import Call
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.OFFSET_FETCH,
    versions=(1, 10),
    acl=(
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    needs_lease=True,
    loaded_with=CONSUMER_OFFSETS_TOPIC,
)


_ELSEWHERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_TOP_LEVEL_ERROR_SINCE = 2
_MANY_GROUPS_SINCE = 8
_BY_TOPIC_ID_SINCE = 10
GROUP_STEPS = 10
"""Steps of reading a group of which all is asked, besides those of its offsets: 20 groups in a slice."""


class FetchGroups(CoordinatorRequest):
    """A fetch for one group or many. `order`: the request for each; `refused`: the topics refused beforehand; `outbox`:
    the node's, if the client's connection is closed when a group is not coordinated here, otherwise None."""

    __slots__ = ("order", "outbox", "refused")

    def __init__(
        self,
        calls: list[tuple[int, Call]],
        order: list[OffsetFetchRequestGroup],
        refused: list[list[OffsetFetchResponseTopics] | ErrorCode],
        outbox: Outbox | None,
    ) -> None:
        super().__init__(calls)
        self.order = order
        self.refused = refused
        self.outbox = outbox

    def finish(self, request: Request) -> OffsetFetchResponse | None:
        replies = iter(self.replies)
        groups: list[OffsetFetchResponseGroup] = []
        for asked, refused in zip(self.order, self.refused, strict=True):
            if isinstance(refused, ErrorCode):
                groups.append(OffsetFetchResponseGroup(asked.group_id, error_code=refused))
                continue
            answered: OffsetFetchResponseGroup = next(replies).groups[0]
            if not answered.error_code:
                answered.topics += refused
            groups.append(answered)
        if self.outbox is not None and any(group.error_code in _ELSEWHERE for group in groups):
            _hang_up(self.outbox, request)
            return None
        if request.version >= _MANY_GROUPS_SINCE:
            return OffsetFetchResponse(groups=groups)
        return _of_one_group(request.version, self.order[0], groups[0])


def handle(node: Core, request: Request) -> Any:
    body: OffsetFetchRequest = request.body
    asked = _once(body.groups) if request.version >= _MANY_GROUPS_SINCE else [_one_group(body)]
    is_long = len(asked) > SLICE_STEPS or sum(map(_steps, asked)) > SLICE_STEPS
    if is_long or any(group.topics is None for group in asked):
        return node.slices.begin(request, _long_answer(node, request, asked), is_long=is_long)
    return _ask(node, asked, request, node.outbox if _never_retries(request) else None)


def _never_retries(request: Request) -> bool:
    """Whether this client would not retry partitions with NOT_COORDINATOR, and leave them unread."""
    return "rdkafka" in request.channel.software


def _hang_up(outbox: Outbox, request: Request) -> None:
    outbox.add(Close(request.identity.address.connection_id, "another node coordinates the group"))


def _once(groups: list[OffsetFetchRequestGroup]) -> list[OffsetFetchRequestGroup]:
    """The groups without repeated requests for everything, which would multiply the answer."""
    whole: set[str] = set()
    asked: list[OffsetFetchRequestGroup] = []
    for group in groups:
        if group.topics is not None:
            asked.append(group)
        elif group.group_id not in whole:
            whole.add(group.group_id)
            asked.append(group)
    return asked


def _steps(group: OffsetFetchRequestGroup) -> int:
    return 1 + sum(1 + len(topic.partition_indexes) for topic in group.topics or ())


# ---- many groups, and groups of many partitions --------------------------------------------------------------------


def _long_answer(node: Core, request: Request, asked: list[OffsetFetchRequestGroup]) -> Work:
    """Groups with few requested offsets are asked some at a time.

    A group with more, or with all of its offsets requested, answers with its state at one moment, as a group's offsets
    belong together. The answer is encoded from that in slices.
    """
    answered: list[bytes] = []
    few: list[OffsetFetchRequestGroup] = []
    steps = steps_of_large = 0
    for position, group in enumerate(asked, 1):
        is_large = group.topics is None or _steps(group) > SLICE_STEPS
        if not is_large:
            few.append(group)
            steps += _steps(group)
        if few and (is_large or steps >= SLICE_STEPS or position == len(asked)):
            answer = yield SubRequest(request, request.body, partial(_ask, node, few))
            answered.append(_bytes_of(answer.groups, request.version))
            few, steps = [], 0
        if is_large:
            error, topics, more = yield from _of_large_group(node, request, group)
            if request.version < _MANY_GROUPS_SINCE:
                return OffsetFetchResponse(error_code=error, topics=topics)
            answered.append(_bytes_of([OffsetFetchResponseGroup(group.group_id, topics, error)], request.version))
            steps_of_large += GROUP_STEPS + more
            if steps_of_large >= SLICE_STEPS and position < len(asked):
                steps_of_large = 0
                yield
    empty = OffsetFetchResponse()
    node.throttle.charge_message(request.now, request, empty)
    return answer_of_parts(request, empty, True, len(asked), answered)


def _bytes_of(groups: list[OffsetFetchResponseGroup], version: int) -> bytes:
    out = bytearray()
    for group in groups:
        group.encode(out, version)
    return bytes(out)


def _of_large_group(
    node: Core, request: Request, group: OffsetFetchRequestGroup
) -> Generator[SubRequest | None, Any, tuple[ErrorCode, Any, int]]:
    """The group's error, its topics, encoded, and the steps since the last slice."""
    version = request.version
    told, steps = EncodedStructs(version), 0
    seen = OffsetsSeen({}, [], ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if node.access.on_group(request, Operation.DESCRIBE, group.group_id):
        body = SeeOffsets(group.group_id, group.member_id, group.member_epoch)
        seen = yield SubRequest(request, body, partial(_see, node), is_light=True)
    if seen.error:
        if seen.error in _ELSEWHERE and group.topics is not None and _never_retries(request):
            _hang_up(node.outbox, request)
            yield  # the request ends with its connection
        if version < _TOP_LEVEL_ERROR_SINCE:
            failed = ((topic, seen.error) for topic in group.topics or ())
            steps = yield from _encode(told, version, failed)
        return seen.error, told, steps
    asked = group.topics
    looked_at = _all_seen(node, request, seen) if asked is None else _sorted_out(node, request, asked)
    stable = request.body.require_stable
    steps = yield from _encode(told, version, looked_at, lambda topic, some: seen.partitions(topic, some, stable))
    return ErrorCode.NONE, told, steps


def _see(node: Core, request: Request) -> Any:
    index = node.coordinators.groups.partition_for(request.body.group_id)
    return node.coordinators.groups.submit(request.now, request, CoordinatorRequest([(index, call_of(request))]))


_LookedAt: TypeAlias = Iterator[tuple[OffsetFetchRequestTopics, ErrorCode] | None]
"""The topics of the answer, one after the other; None for a checked topic that the answer leaves out."""


def _all_seen(node: Core, request: Request, seen: OffsetsSeen) -> _LookedAt:
    """Of all topics with offsets, those that the client may see; by id only those that still exist. Offsets committed
    to a deleted topic of the same name do not count."""
    for name, partitions in seen.committed.items():
        known = node.image.topics.get(name)
        topic_id = ZERO_UUID if known is None else known.id
        indexes = [index for index, offset in partitions.items() if offset.is_of(topic_id)]
        is_told = indexes and (known is not None or request.version < _BY_TOPIC_ID_SINCE)
        if is_told and node.access.quiet.on_topic(request, Operation.DESCRIBE, name):
            yield OffsetFetchRequestTopics(name, topic_id, indexes), ErrorCode.NONE
        else:
            yield None


def _sorted_out(node: Core, request: Request, topics: list[OffsetFetchRequestTopics]) -> _LookedAt:
    """The topics that the client may ask about, then the others."""
    refused: list[tuple[OffsetFetchRequestTopics, ErrorCode]] = []
    for topic in topics:
        error = _error_of(node, request, topic)
        if error is ErrorCode.NONE:
            yield topic, error
        else:
            refused.append((topic, error))
            yield None
    yield from refused


def _encode(
    told: EncodedStructs,
    version: int,
    looked_at: _LookedAt,
    answer: Callable[[OffsetFetchRequestTopics, list[int]], list[OffsetFetchResponsePartitions]] | None = None,
) -> Generator[None, Any, int]:
    """Add topics to an answer, a slice at a time. `answer` gives some partitions of a topic without an error. Returns
    the steps since the last slice."""
    steps = 0
    for each in looked_at:
        steps += 1
        if each is not None:
            topic, error = each
            partitions: Any = EncodedStructs(version)
            for first in range(0, len(topic.partition_indexes), SLICE_STEPS):
                indexes = topic.partition_indexes[first : first + SLICE_STEPS]
                some = _failed(indexes, error) if error or answer is None else answer(topic, indexes)
                partitions.add(some if version >= _MANY_GROUPS_SINCE else map(_as_before, some))
                steps += len(some)
                if steps >= SLICE_STEPS:
                    steps = 0
                    yield
            if version >= _MANY_GROUPS_SINCE:
                told.add((OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions),))
            else:
                told.add((OffsetFetchResponseTopic(topic.name, partitions),))
        if steps >= SLICE_STEPS:
            steps = 0
            yield
    return steps


# ---- groups with few requested offsets -----------------------------------------------------------------------------


def _ask(node: Core, asked: list[OffsetFetchRequestGroup], request: Request, outbox: Outbox | None = None) -> Any:
    calls: list[tuple[int, Call]] = []
    refused: list[list[OffsetFetchResponseTopics] | ErrorCode] = []
    for group in asked:
        if not node.access.on_group(request, Operation.DESCRIBE, group.group_id):
            refused.append(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            continue
        topics, not_allowed = _sort_out(node, request, group.topics or ())
        refused.append(not_allowed)
        wanted = OffsetFetchRequestGroup(group.group_id, group.member_id, group.member_epoch, topics)
        asks = OffsetFetchRequest(groups=[wanted], require_stable=request.body.require_stable)
        calls.append((node.coordinators.groups.partition_for(group.group_id), call_of(request, asks)))
    return node.coordinators.groups.submit(request.now, request, FetchGroups(calls, asked, refused, outbox))


def _one_group(body: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    topics = body.topics
    return OffsetFetchRequestGroup(
        group_id=body.group_id,
        topics=None
        if topics is None
        else [OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes) for each in topics],
    )


def _sort_out(
    node: Core, request: Request, topics: Iterable[OffsetFetchRequestTopics]
) -> tuple[list[OffsetFetchRequestTopics], list[OffsetFetchResponseTopics]]:
    """The topics to ask a group about, and the answers for the others."""
    wanted: list[OffsetFetchRequestTopics] = []
    refused: list[OffsetFetchResponseTopics] = []
    for topic in topics:
        error = _error_of(node, request, topic)
        if error is ErrorCode.NONE:
            wanted.append(topic)
        else:
            partitions = _failed(topic.partition_indexes, error)
            refused.append(OffsetFetchResponseTopics(topic.name, topic.topic_id, partitions))
    return wanted, refused


def _error_of(node: Core, request: Request, topic: OffsetFetchRequestTopics) -> ErrorCode:
    """The error for a topic that the client gets no offsets of; sets both its name and its id."""
    if request.version >= _BY_TOPIC_ID_SINCE:
        known = node.image.topics_by_id.get(topic.topic_id)
        if known is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = known.name
    else:
        known = node.image.topics.get(topic.name)
        topic.topic_id = ZERO_UUID if known is None else known.id
    allowed = node.access.on_topic(request, Operation.DESCRIBE, topic.name)
    return ErrorCode.NONE if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _failed(indexes: list[int], error: ErrorCode) -> list[OffsetFetchResponsePartitions]:
    return [OffsetFetchResponsePartitions(index, -1, -1, "", error) for index in indexes]


def _of_one_group(version: int, asked: OffsetFetchRequestGroup, group: OffsetFetchResponseGroup) -> OffsetFetchResponse:
    """The answer as it was for one group; version 1 has no place for an error but the partitions."""
    topics = group.topics
    if version < _TOP_LEVEL_ERROR_SINCE and group.error_code:
        error = ErrorCode(group.error_code)
        topics = [
            OffsetFetchResponseTopics(topic.name, topic.topic_id, _failed(topic.partition_indexes, error))
            for topic in asked.topics or []
        ]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[OffsetFetchResponseTopic(topic.name, list(map(_as_before, topic.partitions))) for topic in topics],
    )


def _as_before(each: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    """A partition's answer as it was for one group."""
    return OffsetFetchResponsePartition(
        each.partition_index, each.committed_offset, each.committed_leader_epoch, each.metadata, each.error_code
    )
