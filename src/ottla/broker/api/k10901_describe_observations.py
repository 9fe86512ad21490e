"""DescribeObservations, key 10901, versions 0 to 1: what this node remembers of its clients and groups.

One of Ottla's own requests (docs/private-requests.md). Every node answers for itself. The answer has why groups
changed, the errors of clients, the figures of connections, the slowest requests, the batches of topics, the longest
turns of the event loop, who changed configs, which replicas left the in-sync replicas of partitions that this node led,
and which followers are behind now. It needs Describe on the cluster. Changes of a config need
DescribeConfigs on its resource as well, as its value does; others are left out.

With a group's id, the answer has only why this group changed, and needs Describe on the group. With a resource, it has
only the changes of that resource's configs, and needs DescribeConfigs on the resource.

Versions: 1 changes of configs and of in-sync replicas, followers, and the timers of long turns.

Bounds: those of `observations`, and `TOPICS_MAX` topics, the ones with the most batches, and `FOLLOWERS_MAX` followers,
the ones that are furthest behind. Long answers are built in
slices; each list is of one moment.

Not supported: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.broker.api.config_resources import denial
from ottla.broker.api_spec import ApiSpec
from ottla.broker.channel import Channel
from ottla.broker.metrics import Traffic
from ottla.broker.observations.config_changes import ConfigChange as ConfigChanged
from ottla.broker.observations.config_changes import Resource
from ottla.broker.observations.errors import ErrorCount, Key
from ottla.broker.observations.long_turns import LongTurn as Turn
from ottla.broker.observations.slowest import Slow
from ottla.broker.requests import Request
from ottla.broker.slices import SLICE_STEPS, EncodedStructs, Work
from ottla.groups.history import Change as GroupChange
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_observations import (
    Change,
    ClientError,
    ConfigChange,
    Connection,
    DescribeObservationsRequest,
    DescribeObservationsResponse,
    Follower,
    Group,
    IsrChange,
    LongTurn,
    SlowRequest,
    Topic,
)
from ottla.protocol.private_requests import ALL_LISTS, Lists
from ottla.replica.isr_history import IsrChange as IsrHistoryChange

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_OBSERVATIONS,
    versions=(0, 1),
    acl=(
        (Operation.DESCRIBE, ResourceType.CLUSTER),
        (Operation.DESCRIBE, ResourceType.GROUP),
        (Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC),
        (Operation.DESCRIBE_CONFIGS, ResourceType.GROUP),
        (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),
    ),
)


TOPICS_MAX: Final = 1_000
FOLLOWERS_MAX: Final = 1_000
BEHIND_MS: Final = 1_000
"""A follower in sync that has lacked records for a shorter time is not listed."""
SOFTWARE_CHARS_MAX: Final = 128
T = TypeVar("T")


def handle(node: Core, request: Request) -> Any:
    body: DescribeObservationsRequest = request.body
    group_id = body.group_id
    if body.resource_name is not None:
        return _of_resource(node, request, Resource(body.resource_type, body.resource_name))
    if group_id is None and not node.access.on_cluster(request, Operation.DESCRIBE):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if group_id is None:
        return node.slices.begin(request, _describe(node, request), is_long=True)
    if not node.access.on_group(request, Operation.DESCRIBE, group_id):
        return _refused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    answer = _answer(node, request)
    changes = node.observations.groups.of(group_id)
    answer.groups = [_group((group_id, changes))] if changes else []
    return answer


def _of_resource(node: Core, request: Request, resource: Resource) -> Any:
    denied = denial(node, request, Operation.DESCRIBE_CONFIGS, *resource)
    if denied is not None:
        return _refused(denied)
    answer = _answer(node, request)
    answer.config_changes = [_config(each) for each in node.observations.configs.changes() if each[0] == resource]
    return answer


def _refused(error: ErrorCode) -> DescribeObservationsResponse:
    return DescribeObservationsResponse(error_code=error, error_message=error.message)


def _answer(node: Core, request: Request) -> DescribeObservationsResponse:
    return DescribeObservationsResponse(
        now_ms=node.wall.at(request.now), started_ms=node.observations.started_ms, groups=[], errors=[],
        connections=[], slow_requests=[], topics=[], long_turns=[], config_changes=[],
        isr_changes=[], followers=[],
    )  # fmt: skip


def _describe(node: Core, request: Request) -> Work:
    seen, version, answer = node.observations, request.version, _answer(node, request)
    lists = Lists(request.body.lists & ALL_LISTS)
    if Lists.GROUPS in lists:
        answer.groups = yield from _in_slices(seen.groups.groups(), _group, version)
    if Lists.ERRORS in lists:
        answer.errors = yield from _in_slices(seen.errors.counts(), _error, version)
    if Lists.CONNECTIONS in lists:
        answer.connections = yield from _in_slices(seen.connections(), _connection, version)
    if Lists.SLOW_REQUESTS in lists:
        answer.slow_requests = [_slow(each) for each in seen.slowest.largest(request.now)]
    if Lists.TOPICS in lists:
        answer.topics = [_topic(*each) for each in nlargest(TOPICS_MAX, node.metrics.topics.items(), key=_batches)]
    if Lists.LONG_TURNS in lists:
        answer.long_turns = [_long(each) for each in seen.long_turns.largest(request.now)]
    if Lists.CONFIG_CHANGES in lists:
        answer.config_changes = yield from _in_slices((yield from _visible(node, request)), _config, version)
    if Lists.ISR_CHANGES in lists:
        answer.isr_changes = [_isr(node, each) for each in seen.isr.changes()]
    if Lists.FOLLOWERS in lists:
        answer.followers = yield from _behind(node, request)
    return answer


def _visible(node: Core, request: Request) -> Work:
    """The changes of configs whose values the client may see."""
    may_see: dict[Resource, bool] = {}
    found: list[tuple[Resource, str, ConfigChanged]] = []
    for position, each in enumerate(list(node.observations.configs.changes())):
        if position and position % SLICE_STEPS == 0:
            yield
        resource = each[0]
        if resource not in may_see:
            may_see[resource] = denial(node, request, Operation.DESCRIBE_CONFIGS, *resource, quietly=True) is None
        if may_see[resource]:
            found.append(each)
    return found


def _in_slices(rows: Iterable[T], make: Callable[[T], Any], version: int) -> Work:
    """The structs of these rows, encoded a slice at a time."""
    made: Any = EncodedStructs(version)
    all_rows = list(rows)
    for first in range(0, len(all_rows), SLICE_STEPS):
        made.add(map(make, all_rows[first : first + SLICE_STEPS]))
        yield
    return made


def _group(row: tuple[str, tuple[GroupChange, ...]]) -> Group:
    group_id, changes = row
    return Group(group_id, [Change(*each) for each in changes])


def _error(row: tuple[Key, ErrorCount]) -> ClientError:
    (client_id, principal, api_key, code), counted = row
    return ClientError(
        client_id,
        principal,
        api_key,
        code,
        counted.count,
        counted.first_ms,
        counted.last_ms,
        counted.subject,
        counted.message,
    )


def _connection(channel: Channel) -> Connection:
    address, record = channel.identity.address, channel.record
    return Connection(
        address.connection_id,
        record.client_id,
        str(channel.identity.principal),
        address.client_host,
        address.listener,
        channel.software[:SOFTWARE_CHARS_MAX],
        record.requests,
        record.received_bytes,
        record.throttled_ms,
        record.fetches,
        record.waits,
        record.held_back,
        record.min_bytes,
        record.max_wait_ms,
    )


def _slow(slow: Slow) -> SlowRequest:
    return SlowRequest(slow.took_ms, slow.at_ms, slow.api_key, slow.client_id, slow.principal, slow.host, slow.awaited)


def _long(turn: Turn) -> LongTurn:
    return LongTurn(turn.took_ms, turn.at_ms, turn.api_key, turn.client_id, turn.principal, turn.host, turn.timer)


def _config(row: tuple[Resource, str, ConfigChanged]) -> ConfigChange:
    resource, name, change = row
    return ConfigChange(*resource, name, *change)


def _isr(node: Core, change: IsrHistoryChange) -> IsrChange:
    topic = node.image.topics_by_id.get(change.place[0])
    name = "" if topic is None else topic.name
    at_ms = node.wall.at(change.at)
    return IsrChange(at_ms, change.node_id, change.cause, name, change.place[1], change.partitions, *change.distance)


def _behind(node: Core, request: Request) -> Work:
    """The followers of this node that are not in sync, or lack records that the leader has had for a second."""
    found: list[Follower] = []
    for position, partition in enumerate(list(node.replicas)):
        if position and position % SLICE_STEPS == 0:
            yield
        followers = partition.followers
        if followers is None:
            continue
        end = partition.log.log_end_offset
        for node_id in followers.followers:
            is_in_sync, distance = node_id in followers.isr, followers.distance(request.now, node_id, end)
            if not is_in_sync or (distance.records and distance.behind_ms >= BEHIND_MS):
                row = partition.topic_name, partition.index, node_id, is_in_sync
                found.append(Follower(*row, *distance))
        if len(found) > 2 * FOLLOWERS_MAX:
            found = _furthest(found)
    return _furthest(found)


def _furthest(found: list[Follower]) -> list[Follower]:
    return nlargest(FOLLOWERS_MAX, found, key=lambda each: (not each.is_in_sync, each.records_behind, each.behind_ms))


def _batches(row: tuple[str, Traffic]) -> int:
    return row[1].produce_requests - row[1].failed_produce_requests


def _topic(name: str, traffic: Traffic) -> Topic:
    return Topic(name, _batches((name, traffic)), traffic.messages_in, traffic.bytes_in)
