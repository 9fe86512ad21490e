"""Asks about a share group's offsets, for several APIs: its shard, and the share coordinator.

Knows how a question becomes a call, and how states of share partitions are read and deleted. Does not know the APIs.

Source: Kafka's GroupCoordinatorService.java (describeShareGroupOffsets, deleteShareGroups ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.coordinators.rounds import Round, Work
from ottla.broker.requests import Request
from ottla.groups.share.admin import ShareQuestion
from ottla.groups.share.group import SharesKnown
from ottla.machine import Call
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest

if TYPE_CHECKING:
    from ottla.broker.node import Node


def question(node: Node, asked: ShareQuestion) -> tuple[int, Call]:
    """A question to the shard of its group."""
    return node.groups.partition_for(asked.group_id), Call(-1, 0, "", "", asked)


def shares_of(node: Node, shares: SharesKnown, topic_ids: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """(topic id, partition) of all that the share coordinator may know of these topics."""
    found: list[tuple[bytes, int]] = []
    being_deleted = {topic_id for topic_id, _ in shares.deleting}
    for topic_id in topic_ids:
        topic = node.image.topics_by_id.get(topic_id)
        partitions = set(shares.known(topic_id))
        if topic is not None and topic_id in being_deleted:
            partitions.update(range(len(topic.partitions)))
        found += [(topic_id, index) for index in sorted(partitions)]
    return found


def deletions(node: Node, request: Request, group_id: str, places: Sequence[tuple[bytes, int]]) -> Work:
    """The step that makes the share coordinator forget these share partitions; returns its replies."""
    calls = (
        node.share.state_call(request.now, DeleteShareGroupStateRequest, group_id, topic_id, index)
        for topic_id, index in places
    )
    return ask_states(node, calls, needed=bool(places))


def ask_states(node: Node, calls: Iterable[tuple[int, Call]], *, needed: bool) -> Work:
    """Ask the share coordinator; returns its replies. Its topic is made before where there is none, if any call is
    `needed`: which shard answers depends on it."""
    if needed and node.share.lacks_state_topic:
        yield from node.share.making_state_topic()
    return (yield Round(node.share_state, calls))


def error_of(reply: Any) -> ErrorCode:
    """The error in the share coordinator's reply about one share partition."""
    return ErrorCode(reply.results[0].partitions[0].error_code)
