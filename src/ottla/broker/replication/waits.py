"""Limits the wait of followers' fetches, so that followers soon name the partitions that this node begins to lead.

A follower names a partition to its new leader with its next fetch. That is late if its last fetch waits here for
records of other partitions, and until then nothing in the new partition is committed. So every waiting fetch is
answered when this node begins to lead: once for all new partitions. But the follower may learn of its new leader after
this node has, so its next fetch may still not name the partition. Therefore a fetch waits no longer than this node has
been leading. A follower that learns of it after some time names the partition within twice that time, and sends few
fetches before.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.parking import Parking
from ottla.broker.partitions.partition import LOOK_AGAIN
from ottla.machine import Millis, Ticket

SHORTEST_MS: Final = 5
"""The wait of a fetch that arrives at once."""


class FetchWaits:
    """The fetches of followers that wait on one node: at most one of each other node."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._tickets: dict[int, Ticket] = {}
        """Each node's newest, which may be answered already."""
        self._began_at: Millis | None = None
        """When this node last began to lead something."""

    def begins_to_lead(self, now: Millis) -> None:
        """This node now leads a partition that others have to fetch."""
        self._began_at = now
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            self._parking.grew(ticket, LOOK_AGAIN)

    def waits(self, now: Millis, node_id: int, ticket: Ticket, deadline: Millis) -> None:
        """A fetch of that node starts to wait; it is answered at `deadline` at the latest."""
        self._tickets[node_id] = ticket
        if self._began_at is not None:
            earlier = now + max(now - self._began_at, SHORTEST_MS)
            if earlier < deadline:
                self._parking.limit(ticket, earlier)
