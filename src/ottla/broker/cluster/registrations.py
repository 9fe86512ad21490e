"""Shows leaders the registrations of nodes, before a replica joins the ISR.

They come from the rows of the nodes in the metadata image. Sources: KIP-841, KIP-903.
"""

from __future__ import annotations

from ottla.broker.cluster.metadata import Metadata
from ottla.metadata.nodes import NodeState, TopicIdPartition


class Registrations:
    """Asks the newest image; a `replica.followers.Registrations`. `incarnation`: the name of this one; None if
    the node does not register itself."""

    __slots__ = ("_incarnation", "_metadata")

    def __init__(self, metadata: Metadata, incarnation: str | None) -> None:
        self._metadata = metadata
        self._incarnation = incarnation

    def broker_epoch_of(self, node_id: int) -> int | None:
        """The epoch of the node's registration; None if it may not join: unknown, fenced, starting or leaving."""
        record = self._metadata.image.nodes.get(str(node_id))
        return None if record is None or record.state is not NodeState.ACTIVE else record.broker_epoch

    def may_count(self, node_id: int, place: TopicIdPartition) -> bool:
        """Whether the node has not reported that its log of this partition is offline, or may lack records."""
        record = self._metadata.image.nodes.get(str(node_id))
        return record is None or record.may_count(place)

    @property
    def controller_id(self) -> int | None:
        """The controller, which changes the ISR; None if there is none now."""
        controller = self._metadata.image.controller
        return None if controller is None else controller.node_id

    def epoch_of(self, node_id: int) -> int:
        """The epoch of a registration, whatever its state; -1 if there is none."""
        record = self._metadata.image.nodes.get(str(node_id))
        return -1 if record is None else record.broker_epoch

    def epoch_here(self, node_id: int) -> int:
        """The epoch in which this incarnation of this node has registered; -1 if the row is that of another one, such
        as a copy of the data directory that has taken its place."""
        record = self._metadata.image.nodes.get(str(node_id))
        is_here = record is not None and self._incarnation in (None, record.incarnation)
        return record.broker_epoch if record is not None and is_here else -1
