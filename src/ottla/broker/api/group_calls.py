"""Passes the requests of the group APIs to the coordinator.

It turns a request into a call of its group's shard. Then it merges the partitions that the handler refused with those
that the shard answered.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.coordinators.shards import CoordinatorRequest
from ottla.broker.requests import Request
from ottla.broker.security.authorizer import Operation
from ottla.broker.slices import SLICE_STEPS
from ottla.groups.refusals import refuse
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.broker.core import Core

SUBSCRIBED_MAX: Final = 20_000
"""Topics that one member may name; reading and storing them costs a microsecond or two for each."""


def call_of(request: Request, body: Any = None) -> Call:
    """The request, or another body in its name, as a shard sees it. Kafka prints client addresses with a slash."""
    host = f"/{request.identity.address.client_host}"
    return Call(request.api_key, request.version, request.client_id, host, request.body if body is None else body)


def ask_group(node: Core, request: Request, group_id: str, operation: Operation) -> Any:
    """Submit the whole request to its group, if the client may do this to the group."""
    call = call_of(request)
    if not node.access.on_group(request, operation, group_id):
        return refuse(call, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    groups = node.coordinators.groups
    return groups.submit(request.now, request, CoordinatorRequest([(groups.partition_for(group_id), call)]))


def subscription_error(node: Core, request: Request, names: list[str] | None) -> tuple[ErrorCode, str] | None:
    """Why a member may not subscribe to these topics, if it may not."""
    if names is None:
        return None
    if len(names) > SUBSCRIBED_MAX:
        return ErrorCode.INVALID_REQUEST, f"SubscribedTopicNames names more than {SUBSCRIBED_MAX} topics."
    if not all(node.access.on_topic(request, Operation.DESCRIBE, name) for name in names):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED.message
    return None


def by_shard(node: Core, group_ids: Iterable[str]) -> dict[int, list[str]]:
    """The groups of each shard, in the order given."""
    shards: dict[int, list[str]] = {}
    for group_id in group_ids:
        shards.setdefault(node.coordinators.groups.partition_for(group_id), []).append(group_id)
    return shards


def joined_topics(refused: list[Any], answered: list[Any]) -> list[Any]:
    """The topics of two answers in one list, with the partitions of each topic together: refused ones come first."""
    if not refused:
        return answered
    topics: dict[Any, Any] = {}
    _join(topics, refused)
    _join(topics, answered)
    return list(topics.values())


def joined_in_slices(answered: list[Any]) -> Generator[None, Any, list[Any]]:
    """The same of the answers to pieces of a request, a slice at a time."""
    topics: dict[Any, Any] = {}
    for first in range(0, len(answered), SLICE_STEPS):
        _join(topics, answered[first : first + SLICE_STEPS])
        yield
    return list(topics.values())


def _join(topics: dict[Any, Any], more: list[Any]) -> None:
    for topic in more:
        known = topics.setdefault((topic.name, getattr(topic, "topic_id", b"")), topic)
        if known is not topic:
            known.partitions += topic.partitions
