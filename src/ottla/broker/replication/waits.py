"""Has followers' fetches wait no longer than it takes them to name what this node begins to lead.

A follower names a partition to its new leader with its next fetch. That comes late while its last one waits here for
records of other partitions, and until then nothing in the new one is committed. So every fetch that waits is answered
when this node begins to lead something: once for all of it. The follower may hear of its new leader after this node
has, and name nothing new with the fetch that comes then. Therefore a fetch waits no longer than this node has been
leading: who hears of it some time later names the partition within twice that time, and the fetches before are few.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.parking import Parking
from ottla.broker.partitions.partition import LOOK_AGAIN
from ottla.machine import Millis, Ticket

SHORTEST_MS: Final = 5
"""The wait of a fetch that comes at once."""


class FetchWaits:
    """The fetches of followers that wait on one node: at most one of each other node."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._tickets: dict[int, Ticket] = {}
        """Each node's newest, which may be answered already."""
        self._began_at: Millis | None = None
        """When this node last began to lead something."""

    def begins_to_lead(self, now: Millis) -> None:
        """This node leads something from now on that others have to fetch."""
        self._began_at = now
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            self._parking.grew(ticket, LOOK_AGAIN)

    def waits(self, now: Millis, node_id: int, ticket: Ticket, deadline: Millis) -> None:
        """A fetch of that node waits from now on; it is answered at `deadline` if nothing comes before."""
        self._tickets[node_id] = ticket
        if self._began_at is not None:
            earlier = now + max(now - self._began_at, SHORTEST_MS)
            if earlier < deadline:
                self._parking.limit(ticket, earlier)
