"""DescribeObservations, key 10901, version 0: what this node remembers of its clients and groups.

One of Ottla's own requests (docs/private-requests.md). Every node answers for itself. The answer has why groups
changed, the errors of clients, the figures of connections, the slowest requests, the batches of topics, and the longest
turns of the event loop. With a group's id, it has only why this group changed, and needs Describe
on the group instead of the cluster.

Bounds: those of `observations`, and `TOPICS_MAX` topics, the ones with the most batches. Long answers are built in
slices; each list is of one moment.

Not supported: nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ottla.broker.api_spec import ApiSpec
from ottla.broker.channel import Channel
from ottla.broker.metrics import Traffic
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
    Connection,
    DescribeObservationsRequest,
    DescribeObservationsResponse,
    Group,
    LongTurn,
    SlowRequest,
    Topic,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


SPEC = ApiSpec(
    key=ApiKey.DESCRIBE_OBSERVATIONS,
    versions=(0, 0),
    acl=(
        (Operation.DESCRIBE, ResourceType.CLUSTER),
        (Operation.DESCRIBE, ResourceType.GROUP),
    ),
)


TOPICS_MAX: Final = 1_000
SOFTWARE_CHARS_MAX: Final = 128
T = TypeVar("T")


def handle(node: Core, request: Request) -> Any:
    body: DescribeObservationsRequest = request.body
    group_id = body.group_id
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


def _refused(error: ErrorCode) -> DescribeObservationsResponse:
    return DescribeObservationsResponse(error_code=error, error_message=error.message)


def _answer(node: Core, request: Request) -> DescribeObservationsResponse:
    return DescribeObservationsResponse(
        now_ms=node.wall.at(request.now), started_ms=node.observations.started_ms, groups=[], errors=[],
        connections=[], slow_requests=[], topics=[], long_turns=[],
    )  # fmt: skip


def _describe(node: Core, request: Request) -> Work:
    seen, version, answer = node.observations, request.version, _answer(node, request)
    answer.groups = yield from _in_slices(seen.groups.groups(), _group, version)
    answer.errors = yield from _in_slices(seen.errors.counts(), _error, version)
    answer.connections = yield from _in_slices(seen.connections(), _connection, version)
    answer.slow_requests = [_slow(each) for each in seen.slowest.largest(request.now)]
    answer.topics = [_topic(*each) for each in nlargest(TOPICS_MAX, node.metrics.topics.items(), key=_batches)]
    answer.long_turns = [_long(each) for each in seen.long_turns.largest(request.now)]
    return answer


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
    return LongTurn(turn.took_ms, turn.at_ms, turn.api_key, turn.client_id, turn.principal, turn.host)


def _batches(row: tuple[str, Traffic]) -> int:
    return row[1].produce_requests - row[1].failed_produce_requests


def _topic(name: str, traffic: Traffic) -> Topic:
    return Topic(name, _batches((name, traffic)), traffic.messages_in, traffic.bytes_in)
