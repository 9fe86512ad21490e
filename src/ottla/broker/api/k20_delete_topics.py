"""DeleteTopics, key 20, versions 1 to 6: delete topics by name or id.

What it does: takes all the topics it may delete away in one commit; they are gone when the answer leaves, their files
follow. Ids are not secret, names are: a client that may not describe a topic learns no name from its id.

What changed per version: 3 TOPIC_DELETION_DISABLED instead of INVALID_REQUEST, 4 flexible, 5 error messages, 6 ids.

What is skipped: quotas on topic changes (KIP-599).

Source: ControllerApis.deleteTopics; KIP-516.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.metadata.image import TopicImage
from ottla.metadata.store import StoreFailed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from ottla.protocol.wire import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.node import Node


_DISABLED_SINCE = 3
_BY_TOPIC_ID_SINCE = 6


def handle(node: Node, request: Request) -> DeleteTopicsResponse:
    body: DeleteTopicsRequest = request.body
    if request.version >= _BY_TOPIC_ID_SINCE:
        asked = body.topics
    else:
        asked = [DeleteTopicState(name) for name in body.topic_names]
    if not node.settings["delete.topic.enable"]:
        disabled = request.version >= _DISABLED_SINCE
        error = ErrorCode.TOPIC_DELETION_DISABLED if disabled else ErrorCode.INVALID_REQUEST
        return DeleteTopicsResponse(responses=[_failed(state, error) for state in asked])
    results: list[DeletableTopicResult] = []
    going: dict[bytes, TopicImage] = {}
    for state, fault in _sorted_out(node, asked):
        answer = _failed(state, ErrorCode.INVALID_REQUEST, fault) if fault else _look_up(node, request, state)
        if isinstance(answer, TopicImage):
            going[answer.id] = answer
            answer = DeletableTopicResult(answer.name, answer.id)
        results.append(answer)
    try:
        node.topics.delete_all(request.now, going.values())
    except StoreFailed as failed:
        node.notes(f"topics could not be deleted: {failed}")
        for result in results:
            if result.error_code == 0:
                result.error_code, result.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(failed)
    return DeleteTopicsResponse(responses=results)


def _sorted_out(node: Node, asked: list[DeleteTopicState]) -> list[tuple[DeleteTopicState, str]]:
    """Every topic that is meant, once, with what is wrong about how it is named ("" where nothing is)."""
    names = Counter(state.name for state in asked if state.name is not None and state.topic_id == ZERO_UUID)
    ids = Counter(state.topic_id for state in asked if state.name is None and state.topic_id != ZERO_UUID)
    out: list[tuple[DeleteTopicState, str]] = []
    for state in asked:
        if state.name is None and state.topic_id == ZERO_UUID:
            out.append((state, "Neither topic name nor id were specified."))
        elif state.name is not None and state.topic_id != ZERO_UUID:
            out.append((state, "You may not specify both topic name and topic id."))
    for topic_id, times in ids.items():
        out.append((DeleteTopicState(None, topic_id), "Duplicate topic id." if times > 1 else ""))
    for name, times in names.items():
        topic = node.image.topics.get(name)
        if times > 1:
            out.append((DeleteTopicState(name), "Duplicate topic name."))
        elif topic is not None and topic.id in ids:
            out = [(state, fault) for state, fault in out if state.topic_id != topic.id]
            fault = "The provided topic name maps to an ID that was already supplied."
            out.append((DeleteTopicState(name, topic.id), fault))
        else:
            out.append((DeleteTopicState(name), ""))
    return out


def _look_up(node: Node, request: Request, state: DeleteTopicState) -> TopicImage | DeletableTopicResult:
    """The topic, if this client may delete it."""
    if state.name is None:
        topic = node.image.topics_by_id.get(state.topic_id)
        if topic is None:
            return _failed(state, ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        topic = node.image.topics.get(state.name)
    name = state.name if topic is None else topic.name
    assert name is not None
    everywhere = node.access.on_cluster(request, Operation.DELETE)
    if not everywhere and not node.access.on_topic(request, Operation.DESCRIBE, name):
        return _failed(state, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if not everywhere and not node.access.on_topic(request, Operation.DELETE, name):
        return _failed(DeleteTopicState(name, state.topic_id), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return topic if topic is not None else _failed(state, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _failed(state: DeleteTopicState, error: ErrorCode, sentence: str | None = None) -> DeletableTopicResult:
    return DeletableTopicResult(state.name, state.topic_id, error, sentence or error.message)
