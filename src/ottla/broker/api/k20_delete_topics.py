"""DeleteTopics, key 20, versions 1 to 6: delete topics by name or id.

The handler deletes the topics that the client may delete, up to 200 in one commit. They are gone when the answer is
sent; their files are removed later. The request's timeout is ignored. Ids are not secret, names are: a client that may
not describe a topic learns no name from its id.

Versions: 3 TOPIC_DELETION_DISABLED instead of INVALID_REQUEST, 4 flexible, 5 error messages and quota errors, 6 ids.

Not supported: nothing. From version 5 on, a topic beyond the client's quota on topic changes is refused; before, the
client is throttled.

Source: ControllerApis.deleteTopics; KIP-516, KIP-599.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned
from ottla.broker.effects import Parked
from ottla.broker.quotas import Mutations
from ottla.broker.requests import Request
from ottla.broker.slices import EncodedStructs, Work
from ottla.machine import Millis
from ottla.metadata.store import StoreError
from ottla.metadata.topics import TopicImage
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DELETE_TOPICS,
    versions=(1, 6),
    acl=(
        (Operation.DELETE, ResourceType.CLUSTER),
        (Operation.DELETE, ResourceType.TOPIC),
        (Operation.DESCRIBE, ResourceType.TOPIC),
    ),
    forwarding=Forwarding.WHOLE,
)


_DISABLED_SINCE = 3
_STRICT_SINCE = 5
_BY_TOPIC_ID_SINCE = 6


TOPICS_AT_ONCE: Final = 200
"""How many topics one commit of the metadata store deletes, before other requests have their turn."""


def handle(node: Core, request: Request) -> DeleteTopicsResponse | Parked:
    return node.slices.begin(request, _answer(node, request), is_long=len(_asked(request)) > TOPICS_AT_ONCE)


def refused(request: Request, error: ErrorCode, sentence: str) -> DeleteTopicsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return DeleteTopicsResponse(responses=[_failed(state, error, sentence) for state in _asked(request)])


def _asked(request: Request) -> list[DeleteTopicState]:
    body: DeleteTopicsRequest = request.body
    if request.version >= _BY_TOPIC_ID_SINCE:
        return body.topics
    return [DeleteTopicState(name) for name in body.topic_names]


def _answer(node: Core, request: Request) -> Work:
    asked = _asked(request)
    told: Any = EncodedStructs(request.version)
    mutations = node.throttle.mutations(request, _STRICT_SINCE)
    meant = _sorted_out(node, asked) if node.settings["delete.topic.enable"] else _disabled(request, asked)
    while some := list(islice(meant, TOPICS_AT_ONCE)):
        told.add((yield partial(_deleting, node, request, some, mutations)))
        if len(some) == TOPICS_AT_ONCE:
            yield
    return DeleteTopicsResponse(throttle_time_ms=mutations.throttle_ms, responses=told)


def _deleting(node: Core, request: Request, meant: Iterable[_Meant], mutations: Mutations, now: Millis) -> Planned:
    """The plan to delete those of these topics that may be deleted, in one commit; it returns the result of each."""
    results: list[DeletableTopicResult] = []
    going: dict[bytes, TopicImage] = {}
    for state, error, sentence in meant:
        answer = _failed(state, error, sentence) if error else _look_up(node, request, state)
        if isinstance(answer, TopicImage):
            topic = answer
            answer = DeletableTopicResult(topic.name, topic.id)
            if mutations.allows(now, topic.id, len(topic.partitions)):
                going[topic.id] = topic
            else:
                answer.error_code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
        results.append(answer)
    try:
        yield from node.topics.deleting(going.values())
    except StoreError as failed:
        node.notes(f"topics could not be deleted: {failed}")
        for result in results:
            if result.error_code == 0:
                result.error_code, result.error_message = error_of(failed), str(failed)
    return results


_Meant: TypeAlias = tuple[DeleteTopicState, ErrorCode, str | None]
"""A topic that the request names, and the error in how it is named."""


def _disabled(request: Request, asked: list[DeleteTopicState]) -> Iterator[_Meant]:
    disabled = request.version >= _DISABLED_SINCE
    error = ErrorCode.TOPIC_DELETION_DISABLED if disabled else ErrorCode.INVALID_REQUEST
    return ((state, error, None) for state in asked)


def _sorted_out(node: Core, asked: list[DeleteTopicState]) -> Iterator[_Meant]:
    """Every topic that is meant, once."""
    names = Counter(state.name for state in asked if state.name is not None and state.topic_id == ZERO_UUID)
    ids = Counter(state.topic_id for state in asked if state.name is None and state.topic_id != ZERO_UUID)
    refused = ErrorCode.INVALID_REQUEST
    for state in asked:
        if state.name is None and state.topic_id == ZERO_UUID:
            yield state, refused, "Neither topic name nor id were specified."
        elif state.name is not None and state.topic_id != ZERO_UUID:
            yield state, refused, "You may not specify both topic name and topic id."
    known = ((name, times, node.image.topics.get(name)) for name, times in names.items())
    both = {topic.id for _, times, topic in known if topic is not None and times == 1 and topic.id in ids}
    for topic_id, times in ids.items():
        if topic_id not in both:
            state = DeleteTopicState(None, topic_id)
            yield (state, refused, "Duplicate topic id.") if times > 1 else (state, ErrorCode.NONE, None)
    for name, times in names.items():
        topic = node.image.topics.get(name)
        if times > 1:
            yield DeleteTopicState(name), refused, "Duplicate topic name."
        elif topic is not None and topic.id in both:
            fault = "The provided topic name maps to an ID that was already supplied."
            yield DeleteTopicState(name, topic.id), refused, fault
        else:
            yield DeleteTopicState(name), ErrorCode.NONE, None


def _look_up(node: Core, request: Request, state: DeleteTopicState) -> TopicImage | DeletableTopicResult:
    """The topic, if this client may delete it."""
    if state.name is None:
        topic = node.image.topics_by_id.get(state.topic_id)
        if topic is None:
            return _failed(state, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        topic = node.image.topics.get(state.name)
    name = state.name if topic is None else topic.name
    assert name is not None
    everywhere = node.access.quiet.on_cluster(request, Operation.DELETE)
    if not everywhere and not node.access.on_topic(request, Operation.DESCRIBE, name):
        return _failed(state, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic is None:
        return _failed(state, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if not everywhere and not node.access.on_topic(request, Operation.DELETE, name):
        return _failed(DeleteTopicState(name, state.topic_id), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return topic


def _failed(state: DeleteTopicState, error: ErrorCode, sentence: str | None = None) -> DeletableTopicResult:
    return DeletableTopicResult(state.name, state.topic_id, error, sentence or error.message)
