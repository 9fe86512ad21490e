"""Serves the five APIs of the share coordinator: requests for many keys, shards that each answer for one.

It splits a request into calls and merges the replies into one answer. Only brokers may send them (CLUSTER_ACTION).

Source: Kafka's ShareCoordinatorService.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.broker.slices import SubRequest, Work
from ottla.machine import Call
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.write_share_group_state import PartitionData
from ottla.share.records import UNCHANGED
from ottla.share.state import coordinator_key, refuse

if TYPE_CHECKING:
    from ottla.broker.core import Core


BATCHES_AT_ONCE: Final = 2_000
"""Batches of one share partition's state per slice: writing one takes four microseconds."""


class WireStateRequest(CoordinatorRequest):
    """Calls for single keys; `refused` are answers that needed no shard."""

    __slots__ = ("refused",)

    def __init__(self, calls: list[tuple[int, Call]], refused: list[Any]) -> None:
        super().__init__(calls)
        self.refused = refused

    def finish(self, request: Request) -> Any:
        return joined([*self.refused, *self.replies])


def ask(node: Core, request: Request) -> Any:
    """Answer a request of one of the five APIs, or park it."""
    if request.api_key == ApiKey.WRITE_SHARE_GROUP_STATE and any(
        len(part.state_batches) > BATCHES_AT_ONCE for topic in request.body.topics for part in topic.partitions
    ):
        return node.slices.begin(request, _written_in_slices(node, request), is_long=True, outlives=True)
    return node.slices.each_partition(request, partial(_ask, node), answered=("results", "partitions"))


def _written_in_slices(node: Core, request: Request) -> Work:
    """Writes of many batches, some at a time, each as a separate write.

    The first one has the start offset and the last one the count of complete deliveries. The first refusal ends the
    writes of its partition.
    """
    body = request.body
    answers: list[Any] = []
    for topic in body.topics:
        for whole in topic.partitions:
            answer: Any = None
            for part in _parts(whole):
                single = type(body)(body.group_id, [type(topic)(topic.topic_id, [part])])
                answer = yield SubRequest(request, single, partial(_ask, node))
                if answer.results[0].partitions[0].error_code:
                    break
            answers.append(answer)
    return joined(answers)


def _parts(whole: PartitionData) -> Iterator[PartitionData]:
    for first in range(0, max(1, len(whole.state_batches)), BATCHES_AT_ONCE):
        part = copy(whole)
        part.state_batches = whole.state_batches[first : first + BATCHES_AT_ONCE]
        if first:
            part.start_offset = UNCHANGED
        if first + BATCHES_AT_ONCE < len(whole.state_batches):
            part.delivery_complete_count = UNCHANGED
        yield part


def _ask(node: Core, request: Request) -> Any:
    calls, refused = _sorted(node, request)
    if calls:
        node.coordinators.share.states.prune_later(request.now)
    if calls and node.coordinators.share.states.lacks_topic:
        return node.slices.begin(request, _ask_once_made(node, request), is_long=False)
    if not calls:
        return joined(refused) if refused else _empty(request.body)
    return node.coordinators.share_state.submit(request.now, request, WireStateRequest(calls, refused))


def _ask_once_made(node: Core, request: Request) -> Work:
    """Create the coordinators' topic first. If that fails, the answer is that this node is no coordinator."""
    yield from node.coordinators.share.states.making_topic()

    def submit(piece: Request) -> Any:
        return node.coordinators.share_state.submit(piece.now, piece, WireStateRequest(*_sorted(node, piece)))

    return (yield SubRequest(request, request.body, submit))


def _sorted(node: Core, request: Request) -> tuple[list[tuple[int, Call]], list[Any]]:
    """The calls for single keys, and the answers that need no shard."""
    body = request.body
    allowed = node.access.on_cluster(request, Operation.CLUSTER_ACTION)
    # As in Kafka, the shard itself refuses to read and write uninitialized state; a node of the cluster may know
    # topics that this one does not know yet, or has forgotten.
    in_use = (ApiKey.READ_SHARE_GROUP_STATE, ApiKey.WRITE_SHARE_GROUP_STATE)
    checks = request.api_key not in in_use and not node.peers.trusts(request.identity, request.client_id)
    calls: list[tuple[int, Call]] = []
    refused: list[Any] = []
    for topic in body.topics:
        known = node.image.topics_by_id.get(bytes(topic.topic_id))
        for part in topic.partitions:
            single = type(body)(body.group_id, [type(topic)(topic.topic_id, [part])])
            if not allowed:
                refused.append(refuse(single, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            elif not body.group_id:
                refused.append(refuse(single, ErrorCode.INVALID_REQUEST))
            elif checks and (known is None or not 0 <= part.partition < len(known.partitions)):
                refused.append(refuse(single, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                key = coordinator_key(body.group_id, bytes(topic.topic_id), part.partition)
                index = node.coordinators.share_state.partition_for(key)
                calls.append((index, Call(request.api_key, request.version, request.client_id, "", single)))
    return calls, refused


def joined(answers: list[Any]) -> Any:
    """One answer with the results of all, grouped by topic."""
    whole = answers[0]
    topics = {bytes(topic.topic_id): topic for topic in whole.results}
    for answer in answers[1:]:
        for topic in answer.results:
            known = topics.setdefault(bytes(topic.topic_id), topic)
            if known is topic:
                whole.results.append(topic)
            else:
                known.partitions += topic.partitions
    return whole


def _empty(body: Any) -> Any:
    """The answer to a request that names nothing."""
    return APIS[body.API_KEY].response()
