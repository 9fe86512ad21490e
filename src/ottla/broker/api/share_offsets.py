"""Asks about a share group's offsets, for several APIs: its shard, and the share coordinator.

It turns a question into calls, and reads and deletes the states of share partitions.

Source: Kafka's GroupCoordinatorService.java (describeShareGroupOffsets, deleteShareGroups ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.cluster.members import NOBODY
from ottla.broker.coordinators.rounds import Round, Work
from ottla.broker.effects import Parked
from ottla.broker.parking import ParkedWork
from ottla.broker.requests import NODE_REQUEST, Request
from ottla.broker.slices import SubRequest
from ottla.groups.share.admin import ShareQuestion
from ottla.groups.share.group import SharesKnown
from ottla.machine import Call, Millis, Ticket
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_share_group_state import DeleteShareGroupStateRequest
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

if TYPE_CHECKING:
    from ottla.broker.core import Core


LATEST: Final = -1


def question(node: Core, asked: ShareQuestion) -> tuple[int, Call]:
    """A question to the shard of its group."""
    return node.coordinators.groups.partition_for(asked.group_id), Call(-1, 0, "", "", asked)


def shares_of(node: Core, shares: SharesKnown, topic_ids: Iterable[bytes]) -> list[tuple[bytes, int]]:
    """(topic id, partition) of all partitions of these topics that the share coordinator may know."""
    found: list[tuple[bytes, int]] = []
    being_deleted = {topic_id for topic_id, _ in shares.deleting}
    for topic_id in topic_ids:
        topic = node.image.topics_by_id.get(topic_id)
        partitions = set(shares.known(topic_id))
        if topic is not None and topic_id in being_deleted:
            partitions.update(range(len(topic.partitions)))
        found += [(topic_id, index) for index in sorted(partitions)]
    return found


def deletions(node: Core, request: Request, group_id: str, places: Sequence[tuple[bytes, int]]) -> Work:
    """The step that has the share coordinator delete these share partitions; returns its replies."""
    calls = (
        node.coordinators.share.states.call(request.now, DeleteShareGroupStateRequest, group_id, topic_id, index)
        for topic_id, index in places
    )
    return ask_states(node, calls, needed=bool(places))


def ask_states(node: Core, calls: Iterable[tuple[int, Call]], *, needed: bool) -> Work:
    """Ask the share coordinator; returns its replies. If any call is `needed`, its topic is created first if it does
    not exist: the shard that answers depends on it."""
    if needed and node.coordinators.share.states.lacks_topic:
        yield from node.coordinators.share.states.making_topic()
    return (yield Round(node.coordinators.share_state, calls))


class _AskedElsewhere(ParkedWork):
    """A question to another node that a piece of work waits for; a `cluster.peers.Asker`."""

    __slots__ = ("_node", "_ticket")

    def __init__(self, node: Core) -> None:
        self._node = node
        self._ticket: Ticket = 0

    def begin(self, node_id: int, message: Any, piece: Request) -> Parked:
        """Send the request; the piece is answered with the response, or `Unanswered`."""
        self._ticket = self._node.parking.park(piece, None, self)
        self._node.peers.ask(piece.now, node_id, message, self)
        return Parked(self._ticket)

    def answered(self, now: Millis, answer: object) -> None:
        self._node.parking.answer(now, self._ticket, answer)


def ends_elsewhere(node: Core, places: Iterable[tuple[str, int]]) -> Work:
    """The end offsets of partitions that other nodes lead, by (topic, partition), as far as these nodes report them."""
    by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    for name, index in places:
        leader = node.leadership.leader_of(name, index)
        if leader is not None and leader[0] not in (NOBODY, node.node_id):
            asked = ListOffsetsPartition(index, timestamp=LATEST)
            by_leader.setdefault(leader[0], {}).setdefault(name, []).append(asked)
    ends: dict[tuple[str, int], int] = {}
    for node_id, topics in by_leader.items():
        message = ListOffsetsRequest(-1, topics=[ListOffsetsTopic(name, parts) for name, parts in topics.items()])
        answer = yield SubRequest(NODE_REQUEST, None, partial(_AskedElsewhere(node).begin, node_id, message))
        for topic in answer.topics if isinstance(answer, ListOffsetsResponse) else ():
            ends.update({(topic.name, part.partition_index): part.offset for part in topic.partitions})
    return {place: offset for place, offset in ends.items() if offset >= 0}


def error_of(reply: Any) -> ErrorCode:
    """The error in the share coordinator's reply about one share partition."""
    return ErrorCode(reply.results[0].partitions[0].error_code)
