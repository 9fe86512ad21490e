"""Decides when a node of a cluster may stop: other nodes lead its partitions, and every serving node knows it.

It checks what is left here that another node could lead, and how far each other node has followed the metadata. A node
reports the latter when it is asked for its features, whose epoch is that of the image. A node that lags behind would
send clients to a node that is gone, or refuse what it is to lead. The I/O host decides how long to wait.

Source: BrokerHeartbeatManager.java (the controlled shutdown offset).
"""

from __future__ import annotations

from typing import Final

from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.duties import turnover
from ottla.broker.cluster.members import Members
from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.cluster.trust import CLIENT_ID
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.machine import Millis
from ottla.metadata.nodes import TopicIdPartition
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

LOOK_MS: Final = 10
"""How often a leaving node checks again, and asks the nodes that lag behind again, in milliseconds."""


class Leaving:
    """See the module's docstring. Begins with the first `look`, which its timer repeats."""

    def __init__(
        self, metadata: Metadata, members: Members, controller: Controller, peers: Peers, schedule: Schedule
    ) -> None:
        self._metadata = metadata
        self._members = members
        self._controller = controller
        self._peers = peers
        self._since: int | None = None
        """The metadata generation since which others lead all that they could; None while they do not."""
        self._led: set[TopicIdPartition] = set()
        """The partitions that this node led at the last check."""
        self._heard: dict[int, int] = {}
        """The generation that each other node last reported."""
        self._asked: set[int] = set()
        self._timer = Timer(schedule, Timed.MEMBERSHIP, self.look)

    def look(self, now: Millis) -> None:
        """Check what is left here; once nothing is, ask the nodes that may not know it yet."""
        self._timer.set(now + LOOK_MS)
        before, self._led = self._led, self._still_led()
        if self._has_to_give():
            self._since = None
            return
        if self._since is None or self._led != before:
            self._since = self._metadata.image.generation
        for node_id in self._unaware(self._since):
            if node_id not in self._asked:
                self._asked.add(node_id)
                self._peers.ask(now, node_id, ApiVersionsRequest(CLIENT_ID, "1"), _Question(self, node_id))

    def is_done(self) -> bool:
        """Whether this node may stop, as of the last check."""
        return self._since is not None and not self._unaware(self._since)

    def told(self, node_id: int, answer: object) -> None:
        """This node has reported its generation, or has not answered: it is asked again at the next check."""
        self._asked.discard(node_id)
        if isinstance(answer, ApiVersionsResponse):
            self._heard[node_id] = answer.finalized_features_epoch

    def _has_to_give(self) -> bool:
        """Whether the controller has still to learn that this node leaves, or another node could lead something in its
        place."""
        if self._members.node_id in self._members.active():
            return True
        image = self._metadata.image
        turn = turnover(image, self._controller.present or {})
        return any(
            self._controller.moves_away(place, turn.at(place, image.topics_by_id[place[0]].partitions[place[1]])[0])
            for place in self._led
        )

    def _still_led(self) -> set[TopicIdPartition]:
        return {
            (topic.id, index)
            for topic in self._metadata.image.topics.values()
            for index, placed in enumerate(topic.partitions)
            if placed.leader == self._members.node_id
        }

    def _unaware(self, generation: int) -> list[int]:
        """The serving nodes that have not reported this generation."""
        present = self._controller.present or {}
        return [
            node_id
            for node_id, record in self._members.active().items()
            if present.get(node_id) == record.incarnation and self._heard.get(node_id, -1) < generation
        ]


class _Question:
    """How far is this node?"""

    def __init__(self, leaving: Leaving, node_id: int) -> None:
        self._leaving = leaving
        self._node_id = node_id

    def answered(self, now: Millis, answer: object) -> None:
        self._leaving.told(self._node_id, answer)
