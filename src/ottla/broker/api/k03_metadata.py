"""Metadata, key 3, versions 0 to 13: the cluster's nodes, topics and partition leaders; may create a topic.

The handler answers for all topics, for names, or for topic ids. If the request and `auto.create.topics.enable` allow
it, an unknown name is created. This first time it still gets UNKNOWN_TOPIC_OR_PARTITION, as in Kafka: clients retry.

Versions: 0 an empty list means all topics, 1 null does; 1 controller id, rack, is_internal; 2 cluster id; 4 the request
says whether it may create; 5 offline replicas; 6 LISTENER_NOT_FOUND, until then LEADER_NOT_AVAILABLE; 7 leader epochs;
8 authorized operations; 9 flexible; 10 topic ids in the answer; 11 no cluster operations; 12 topic ids in the request;
13 a top-level error code.

An answer for all topics has them from `EncodedTopics`, as far as they have not changed since the last such answer.

If a named topic has just lost a leader, the answer waits a moment for the new one. Otherwise librdkafka, which had
received the old leader just before, would wait a second before it asks again.

Not supported: nothing. If a request names ids, names beside them are ignored, as in Kafka. A topic with neither name
nor id is INVALID_REQUEST (Kafka: UNKNOWN_SERVER_ERROR).

Source: KafkaApis.handleTopicMetadataRequest, AutoTopicCreationManager.scala.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.api.reachable import Reach, Reachable
from ottla.broker.api.topic_creation import NewTopic, TopicRefusedError, check_room, plan_default_topic
from ottla.broker.api_spec import ApiSpec
from ottla.broker.cluster.encoded_topics import Kept
from ottla.broker.cluster.metadata import Planned
from ottla.broker.effects import Parked
from ottla.broker.parking import ParkedWork
from ottla.broker.quotas import Mutations
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import NOT_ASKED
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, SubRequest, Work
from ottla.machine import Millis, Ticket
from ottla.metadata.store import StoreError
from ottla.metadata.topic_names import INTERNAL_TOPICS, fault_of
from ottla.metadata.topics import TopicImage
from ottla.protocol.acls import CLUSTER_NAME, Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.wire import ZERO_UUID, Encoded, Struct

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.METADATA,
    versions=(0, 13),
    acl=(
        (Operation.DESCRIBE, ResourceType.TOPIC),
        (Operation.CREATE, ResourceType.CLUSTER),
        (Operation.CREATE, ResourceType.TOPIC),
        (Operation.DESCRIBE, ResourceType.CLUSTER),
    ),
)


_EMPTY_MEANS_NONE_SINCE = 1
_LISTENER_NOT_FOUND_SINCE = 6
_BY_TOPIC_ID_SINCE = 12
NAMES_AT_ONCE = 50
"""How many missing topics are created in one commit."""
LEADERS_AWAITED_MS: Final = 250
"""How long an answer waits for new leaders, in milliseconds: an election takes some 30 ms. Later requests of the client
wait too."""
LOOK_AGAIN_MS: Final = 5
KEPT_STEPS: Final = 0.1
"""The work, in steps of a slice, that a topic takes which is encoded already."""


def handle(node: Core, request: Request) -> MetadataResponse | Parked:
    if _malformed(request.version, request.body):
        return _refused(request.body)
    asked = request.body.topics
    is_long = len(asked) > SLICE_STEPS if asked else node.image.partition_count > SLICE_STEPS
    return node.slices.begin(request, _answer(node, request), is_long=is_long)


def _answer(node: Core, request: Request) -> Work:
    """The whole answer, its topics a slice at a time."""
    body: MetadataRequest = request.body
    topics: Any = EncodedStructs(request.version)
    waiting: list[Struct] = []
    steps = 0.0
    kept: list[Kept] = []
    missing = yield from _make_missing(node, request)
    if _awaits_leaders(node, request, request.now):
        yield SubRequest(request, None, LeadersAwaited(node, request).begin, is_light=True)
    for described, cost in _topics(node, request, missing, kept):
        waiting += described
        steps += cost
        if steps >= SLICE_STEPS:
            topics.add(waiting)
            waiting, steps = [], 0
            yield
            kept.clear()
    topics.add(waiting)
    cluster_operations = NOT_ASKED
    if body.include_cluster_authorized_operations:
        cluster_operations = 0
        if node.access.quiet.on_cluster(request, Operation.DESCRIBE):
            cluster_operations = node.access.authorized_operations(request, ResourceType.CLUSTER, CLUSTER_NAME)
    listed = node.members.listed(request.now, request.identity.address)
    return MetadataResponse(
        brokers=[MetadataResponseBroker(*each) for each in listed],
        cluster_id=node.cluster_id,
        controller_id=node.members.changed_at(listed),
        topics=topics,
        cluster_authorized_operations=cluster_operations,
    )


class LeadersAwaited(ParkedWork):
    """A request for topics of which some have lost their leader. It waits until others lead, or until its time is
    up."""

    def __init__(self, node: Core, request: Request) -> None:
        self._node = node
        self._request = request
        self._until = request.now + LEADERS_AWAITED_MS

    def begin(self, piece: Request) -> Parked:
        ticket = self._node.parking.park(piece, self._until, self)
        self._node.parking.limit(ticket, _next_look(piece.now))
        return Parked(ticket)

    def at_deadline(self, now: Millis, ticket: Ticket) -> None:
        if now < self._until and _awaits_leaders(self._node, self._request, now):
            self._node.parking.limit(ticket, _next_look(now))
        else:
            self._node.parking.answer(now, ticket, None)

    def abandon(self, ticket: Ticket) -> None:
        pass


def _next_look(now: Millis) -> Millis:
    """When leaders are checked again: at the same times for all waiting requests, so that they share a tick."""
    return now - now % LOOK_AGAIN_MS + LOOK_AGAIN_MS


def _awaits_leaders(node: Core, request: Request, now: Millis) -> bool:
    """Whether a topic that is named has lost a leader for which the controller has not found another yet."""
    named, image = request.body.topics or (), node.image
    if node.members.is_alone or len(named) > SLICE_STEPS:
        return False
    topics = [image.topics_by_id.get(each.topic_id) or image.topics.get(each.name or "") for each in named]
    leaders = {placed.leader for topic in topics if topic is not None for placed in topic.partitions}
    return any(map(Reachable(node, now, request.identity.address).has_lost, leaders))


def _topics(
    node: Core, request: Request, missing: dict[str, MetadataResponseTopic], kept: list[Kept]
) -> Iterator[tuple[Sequence[Struct], float]]:
    """The topics of the answer, a few at a time, with the steps that they took.

    `missing`: the answers for those that were created for it. `kept`: where to store what is encoded already; empty if
    that must be found again, because the cluster may have changed.
    """
    asked = request.body.topics
    if asked is None or (request.version < _EMPTY_MEANS_NONE_SINCE and not asked):
        yield from _every(node, request, kept)
        return
    if any(topic.topic_id != ZERO_UUID for topic in asked):
        for topic_id in dict.fromkeys(topic.topic_id for topic in asked if topic.topic_id != ZERO_UUID):
            described = _by_id(node, request, topic_id)
            yield (described,), _steps_of(described)
        return
    names = list(dict.fromkeys(topic.name or "" for topic in asked))
    for first in range(0, len(names), NAMES_AT_ONCE):
        some = [missing.get(name) or _by_name(node, request, name) for name in names[first : first + NAMES_AT_ONCE]]
        yield some, sum(map(_steps_of, some))


def _every(node: Core, request: Request, kept: list[Kept]) -> Iterator[tuple[Sequence[Struct], float]]:
    """All topics that the client may see."""
    for topic in list(node.image.topics.values()):
        if not node.access.quiet.on_topic(request, Operation.DESCRIBE, topic.name):
            yield (), 1
            continue
        if not kept:
            kept.append(_kept(node, request))
        known = kept[0].get(topic.name)
        if known is not None and known[0] is topic:
            yield (known[1],), KEPT_STEPS
            continue
        described = _described(node, request, topic)
        out = bytearray()
        described.encode(out, request.version)
        encoded = Encoded(bytes(out))
        kept[0][topic.name] = topic, encoded
        yield (encoded,), _steps_of(described)


def _kept(node: Core, request: Request) -> Kept:
    """The topics that are encoded already. None are while another answer would be right a moment later."""
    address = request.identity.address
    if request.body.include_topic_authorized_operations or Reachable(node, request.now, address).is_passing:
        return {}
    reached = node.members.reached(address)
    return node.encoded_topics.of(request.version, address.listener, reached, len(node.image.topics))


def _steps_of(topic: MetadataResponseTopic) -> int:
    return 1 + len(topic.partitions)


def _malformed(version: int, body: MetadataRequest) -> bool:
    with_ids = version >= _BY_TOPIC_ID_SINCE
    return any(
        (topic.name is None and (topic.topic_id == ZERO_UUID or not with_ids))
        or (topic.topic_id != ZERO_UUID and not with_ids)
        for topic in body.topics or ()
    )


def _refused(body: MetadataRequest) -> MetadataResponse:
    error = ErrorCode.INVALID_REQUEST
    topics = [MetadataResponseTopic(error, topic.name or "", topic.topic_id) for topic in body.topics or ()]
    return MetadataResponse(controller_id=-1, topics=topics, error_code=error)


def _by_id(node: Core, request: Request, topic_id: bytes) -> MetadataResponseTopic:
    topic = node.image.topics_by_id.get(topic_id)
    if topic is None:
        return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    if not node.access.on_topic(request, Operation.DESCRIBE, topic.name):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
    return _described(node, request, topic)


def _by_name(node: Core, request: Request, name: str) -> MetadataResponseTopic:
    if not node.access.on_topic(request, Operation.DESCRIBE, name):
        return MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name)
    topic = node.image.topics.get(name)
    return _missing(node, request, name) if topic is None else _described(node, request, topic)


def _missing(node: Core, request: Request, name: str) -> MetadataResponseTopic:
    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if fault_of(name) is None else ErrorCode.INVALID_TOPIC_EXCEPTION
    answer = MetadataResponseTopic(error, name, is_internal=name in INTERNAL_TOPICS)
    answer.topic_authorized_operations = _operations(node, request, name)
    return answer


def _make_missing(node: Core, request: Request) -> Work:
    """Create the missing topics that are named, if the request and the settings allow it, some in each commit.

    Returns the answer for each of these: this time they are still unknown.
    """
    asked = request.body.topics
    answers: dict[str, MetadataResponseTopic] = {}
    if not asked or any(topic.topic_id != ZERO_UUID for topic in asked):
        return answers
    if not request.body.allow_auto_topic_creation or not node.settings["auto.create.topics.enable"]:
        return answers
    missing = [topic.name for topic in asked if topic.name is not None and topic.name not in node.image.topics]
    visible = [name for name in dict.fromkeys(missing) if node.access.quiet.on_topic(request, Operation.DESCRIBE, name)]
    mutations = node.throttle.mutations(request)
    for first in range(0, len(visible), NAMES_AT_ONCE):
        names = visible[first : first + NAMES_AT_ONCE]
        answers |= {name: _missing(node, request, name) for name in names}
        denied = yield partial(_creating, node, request, names, mutations)
        answers |= {name: MetadataResponseTopic(ErrorCode.TOPIC_AUTHORIZATION_FAILED, name) for name in denied}
    return answers


def _creating(node: Core, request: Request, names: list[str], mutations: Mutations, now: Millis) -> Planned:
    """The plan to create the allowed topics; it returns the names that this client may not create."""
    denied: list[str] = []
    wanted: list[NewTopic] = []
    everywhere = node.access.quiet.on_cluster(request, Operation.CREATE)
    for name in names:
        if not everywhere and not node.access.on_topic(request, Operation.CREATE, name):
            denied.append(name)
            continue
        try:
            new = plan_default_topic(node, name)
            check_room(node, sum(other.partitions for other in wanted) + new.partitions)
        except TopicRefusedError:
            continue  # the answer is unchanged; CreateTopics would return the reason
        wanted.append(new)
    if not node.members.is_controller:
        node.forwarding.create(now, wanted, request)
        return denied
    try:
        allowed = [new for new in wanted if mutations.allows(now, new.name, new.partitions)]
        yield from node.topics.creating_on_demand(now, allowed)
    except StoreError as failed:
        node.notes(f"topics could not be created on demand: {failed}")
    return denied


def _described(node: Core, request: Request, topic: TopicImage) -> MetadataResponseTopic:
    reachable = Reachable(node, request.now, request.identity.address)
    reached = [(placed, reachable.of(placed, (topic.id, index))) for index, placed in enumerate(topic.partitions)]
    return MetadataResponseTopic(
        error_code=0,
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=_error_of(reach, request.version),
                partition_index=index,
                leader_id=reach.leader,
                leader_epoch=placed.leader_epoch,
                replica_nodes=list(placed.replicas),
                isr_nodes=list(placed.isr),
                offline_replicas=reach.offline,
            )
            for index, (placed, reach) in enumerate(reached)
        ],
        topic_authorized_operations=_operations(node, request, topic.name),
    )


def _error_of(reach: Reach, version: int) -> ErrorCode:
    if reach.error_code is ErrorCode.LISTENER_NOT_FOUND and version < _LISTENER_NOT_FOUND_SINCE:
        return ErrorCode.LEADER_NOT_AVAILABLE
    return reach.error_code


def _operations(node: Core, request: Request, name: str) -> int:
    if not request.body.include_topic_authorized_operations:
        return NOT_ASKED
    return node.access.authorized_operations(request, ResourceType.TOPIC, name)
