"""CreateTopics, key 19, versions 2 to 7: create topics.

The handler checks each topic separately. Then it creates the valid ones, some twenty with each commit of the metadata
store, or none if the request only validates. A name that occurs twice in a request fails, with one result. If two
clients create the same name at once, one of them gets TOPIC_ALREADY_EXISTS, whichever nodes they ask. If the store has
not answered by the request's timeout, the result is REQUEST_TIMED_OUT: the topic may still be created. A forwarded
request whose earlier attempt got no answer finds the topic of that attempt by its id, and reports it as created.

Versions: 4 -1 asks for the default number of partitions and replicas, 5 flexible, the answer has the topic's
configuration, 6 quota errors, 7 the topic's id.

Not supported: nothing. From version 6 on, a topic beyond the client's quota on topic changes is refused; before, the
client is throttled. Validation counts too, as in Kafka.

Source: ControllerApis.createTopics, ReplicationControlManager.java; KIP-525, KIP-599.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from ottla.broker.api.config_resources import ConfigResourceType
from ottla.broker.api.topic_creation import (
    NewTopic,
    TopicRefusedError,
    check_name,
    check_request_size,
    check_room,
    plan_topic,
)
from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.cluster.members import error_of
from ottla.broker.cluster.metadata import Planned
from ottla.broker.config.answers import topic_entries
from ottla.broker.effects import Parked
from ottla.broker.observations.config_changes import Resource
from ottla.broker.requests import Request
from ottla.broker.slices import Work, encoded, encoded_in_slices
from ottla.broker.topics.topics import id_made_by
from ottla.machine import Millis
from ottla.metadata.store import StoreError
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.CREATE_TOPICS,
    versions=(2, 7),
    acl=(
        (Operation.CREATE, ResourceType.CLUSTER),
        (Operation.CREATE, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
    ),
    forwarding=Forwarding.WHOLE,
)


STRICT_SINCE = 6
TOPICS_AT_ONCE = 20
"""How many topics are checked, or created, before other requests have their turn."""


def handle(node: Core, request: Request) -> CreateTopicsResponse | Parked:
    is_long = len(request.body.topics) > TOPICS_AT_ONCE
    return node.slices.begin(request, _answer(node, request), is_long=is_long)


def refused(request: Request, error: ErrorCode, sentence: str) -> CreateTopicsResponse:
    """The answer if nothing of the request was done, as far as this node knows."""
    return CreateTopicsResponse(topics=[_failed(topic.name, error, sentence) for topic in request.body.topics])


def _answer(node: Core, request: Request) -> Work:
    body: CreateTopicsRequest = request.body
    times = Counter(topic.name for topic in body.topics)
    results: dict[str, Any] = {}
    planned: dict[str, NewTopic] = {}
    everywhere = node.access.quiet.on_cluster(request, Operation.CREATE)
    for position, topic in enumerate(body.topics):
        if position and position % TOPICS_AT_ONCE == 0:
            yield
        try:
            if times[topic.name] > 1:
                raise TopicRefusedError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
            if not everywhere and not node.access.on_topic(request, Operation.CREATE, topic.name):
                raise TopicRefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Authorization failed.")
            made_before = _made_before(node, request, topic.name)
            if made_before is None:
                planned[topic.name] = _plan(node, request, topic)
            else:
                results[topic.name] = _made(node, request, made_before)
        except TopicRefusedError as refused:
            results[topic.name] = _failed(topic.name, refused.error_code, refused.sentence)
    _refuse_too_many(node, planned, results)
    mutations = node.throttle.mutations(request, STRICT_SINCE)
    for new in list(planned.values()):
        if not mutations.allows(request.now, new.name, new.partitions):
            results[new.name] = CreatableTopicResult(
                new.name, error_code=ErrorCode.THROTTLING_QUOTA_EXCEEDED, error_message=None
            )
            del planned[new.name]
    wanted = list(planned.values())
    for first in range(0, len(wanted), TOPICS_AT_ONCE):
        if len(wanted) > TOPICS_AT_ONCE:
            yield
        made = yield from _make(node, request, wanted[first : first + TOPICS_AT_ONCE])
        results.update(zip(made, encoded(made.values(), request.version), strict=True))
    answers = [results[name] for name in times]
    if len(answers) > TOPICS_AT_ONCE:
        answers = yield from encoded_in_slices(answers, request.version)
    return CreateTopicsResponse(topics=answers, throttle_time_ms=mutations.throttle_ms)


def _plan(node: Core, request: Request, topic: CreatableTopic) -> NewTopic:
    new = plan_topic(
        node,
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        [(assignment.partition_index, assignment.broker_ids) for assignment in topic.assignments],
        [(config.name, config.value) for config in topic.configs],
    )
    tries = request.tries
    return new._replace(topic_id=id_made_by(tries[-1], new.name)) if tries else new


def _made_before(node: Core, request: Request, name: str) -> NewTopic | None:
    """The topic that an earlier attempt of this request has created; None if none has."""
    known, tries = node.image.topics.get(name), request.tries
    if known is None or known.id not in [id_made_by(attempt, name) for attempt in tries]:
        return None
    return NewTopic(name, len(known.partitions), dict(known.configs), known.id, len(known.partitions[0].replicas))


def _refuse_too_many(node: Core, planned: dict[str, NewTopic], results: dict[str, Any]) -> None:
    """Refuse all topics if they do not fit together."""
    total = sum(new.partitions for new in planned.values())
    try:
        check_request_size(total)
        check_room(node, total)
    except TopicRefusedError as refused:
        for name in planned:
            results[name] = _failed(name, refused.error_code, refused.sentence)
        planned.clear()


def _make(node: Core, request: Request, wanted: list[NewTopic]) -> Work:
    """Create these, in one commit, and report it."""
    if request.body.validate_only:
        return {new.name: _made(node, request, new) for new in wanted}
    return (yield lambda now: _making(node, request, now, wanted))


def _making(node: Core, request: Request, now: Millis, wanted: list[NewTopic]) -> Planned:
    """The plan to create these. They are checked again, as other requests may have been served since."""
    results: dict[str, CreatableTopicResult] = {}
    good: list[NewTopic] = []
    for new in wanted:
        made_before = _made_before(node, request, new.name)
        if made_before is not None:
            results[new.name] = _made(node, request, made_before)
            continue
        try:
            check_name(node, new.name)
            check_room(node, sum(other.partitions for other in good) + new.partitions)
        except TopicRefusedError as refused:
            results[new.name] = _failed(new.name, refused.error_code, refused.sentence)
        else:
            good.append(new)
    try:
        yield from node.topics.creating(now, good)
    except StoreError as failed:
        node.notes(f"topics could not be created: {failed}")
        return results | {new.name: _failed(new.name, error_of(failed), str(failed)) for new in good}
    for new in good:
        node.observations.configured(now, request, Resource(ConfigResourceType.TOPIC, new.name), {}, new.overrides)
    return results | {new.name: _made(node, request, new) for new in good}


def _failed(name: str, error: ErrorCode, sentence: str | None) -> CreatableTopicResult:
    return CreatableTopicResult(name, error_code=error, error_message=sentence or error.message)


def _made(node: Core, request: Request, new: NewTopic) -> CreatableTopicResult:
    topic = node.image.topics.get(new.name)
    topic_id = node.topics.new_topic_id() if topic is None else topic.id
    result = CreatableTopicResult(new.name, topic_id, error_message=None)
    if not node.access.quiet.on_topic(request, Operation.DESCRIBE_CONFIGS, new.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result
    result.num_partitions = new.partitions
    result.replication_factor = new.replication_factor
    entries = topic_entries(node.settings.current, new.overrides)
    result.configs = [
        # Requested values are returned as written, including spaces, as in Kafka.
        CreatableTopicConfigs(
            name, new.overrides.get(name, entry.text), entry.read_only, int(entry.source), entry.key.sensitive
        )
        for name, entry in ((name, make()) for name, make in sorted(entries.items()))
    ]
    return result
