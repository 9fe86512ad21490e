"""Keeps a cluster node informed of the other nodes: it polls which nodes are alive and what was committed.

Polls run one at a time, and the store's thread reads the store. The poll after a kill finds that the killed node is
gone. If the presence can report events, polls are rare without an event. If it cannot, there is a poll every few
milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from ottla.broker.node import Node
from ottla.machine import Millis
from ottla.metadata.history import HISTORY, HISTORY_KEY, HistoryRecord, is_continued
from ottla.metadata.image import MetadataDelta
from ottla.metadata.store import StoreError
from ottla.server.store import StoreThread, Told

AGAIN: Final = "Start the node again: it finds out what is missing, and reports that to the cluster"
"""The remedy after the store was restored while the node ran."""
LOOK_S: Final = 0.01
REST_S: Final = 0.1
"""Seconds between two polls where events are reported; the node still has to renew its lease."""
AGAIN_S: Final = 0.2
"""Seconds before the next poll of a store that could not be read."""
BLIND_S: Final = 0.5
"""Seconds for which polls may trust the mark beside the store that nothing was committed."""

log = logging.getLogger("ottla.cluster")


class Presence(Protocol):
    """Which incarnations of which nodes are alive. `renewed_at`: when this node last renewed its own lease.
    `generation`: the newest commit that it has read since; 0 if the store can be read directly."""

    renewed_at: Millis
    generation: int

    def look(self) -> dict[int, str]: ...

    def listen(self, heard: Callable[[], None]) -> int:
        """Call `heard` on the running loop from now on when a poll may find something. Returns how many polls then
        follow each other quickly, or 0 if events cannot be reported."""
        ...

    def leave(self) -> None: ...


class Following:
    """Polls until it is stopped. It calls `settle` when the node has received news. It calls `end` with a sentence when
    the store is no longer the one that the node knows."""

    def __init__(
        self,
        node: Node,
        store: StoreThread,
        presence: Presence,
        marked: Callable[[], int],
        now: Callable[[], Millis],
        settle: Callable[[], None],
        end: Callable[[str], None],
    ) -> None:
        self._node = node
        self._store = store
        self._presence = presence
        self._marked = marked
        self._now = now
        self._settle = settle
        self._end = end
        self._present: dict[int, str] = {}
        self._renewed_at: Millis = 0
        self._committed = 0
        self._is_silent = False
        self._timer: asyncio.TimerHandle | None = None
        """The timer of the next poll; None during a poll."""
        self._stopped = False
        self._loop = asyncio.get_running_loop()
        self._looked_at = self._read_at = 0.0
        """When the last poll began, and when the last one began that did not trust the mark."""
        self._quick_looks = 0
        self._after_news = presence.listen(self._news)

    def look(self) -> None:
        """Poll now, and then repeatedly."""
        membership = self._node.membership
        assert membership is not None
        self._timer, self._looked_at = None, self._loop.time()
        # A process may have committed before it was killed, or before this node was stopped, without leaving a mark.
        trusts_mark = membership.is_fresh(self._now()) and self._looked_at < self._read_at + BLIND_S
        try:
            present, self._present = self._present, self._presence.look()
            trusts_mark = trusts_mark and present == self._present
        except OSError as error:
            log.warning("the other nodes could not be looked for: %s", error)
        self._renewed_at = self._presence.renewed_at  # before the generation, which is the newer one then
        self._committed = self._presence.generation
        if trusts_mark and self._marked() == self._node.image.generation:
            self._heard(None)
        else:
            self._read_at = self._looked_at
            self._store.look(self._node.image, self._heard)

    def _news(self) -> None:
        """Poll soon: an event was reported."""
        self._quick_looks = self._after_news
        if self._timer is not None and not self._is_silent:
            self._timer.cancel()
            self._timer = self._loop.call_at(max(self._looked_at + LOOK_S, self._loop.time()), self.look)

    def stop(self) -> None:
        """Stop polling, and leave: the other nodes see from now on that this one is gone."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._presence.leave()

    def _is_of_another_history(self, told: MetadataDelta) -> bool:
        """Whether nodes have started on a restored store, which by now has more commits than this node has seen."""
        row, image = told.rows.get(HISTORY_KEY), self._node.image
        if row is None or not isinstance(row.record, HistoryRecord):
            return False
        later = row.record._replace(version=row.version)
        return not is_continued(image[HISTORY], image.generation, later, told.generation)

    def _heard(self, told: Told) -> None:
        """Apply the result of reading the store."""
        if self._stopped:
            return
        node, membership = self._node, self._node.membership
        assert membership is not None
        if isinstance(told, StoreError):
            if not self._is_silent:
                log.warning("the metadata store can't be read; will retry: %s", told)
            self._is_silent = True
            self._timer = self._loop.call_later(AGAIN_S, self.look)
            return
        self._is_silent = False
        if told is not None and told.generation > node.image.generation:
            if self._is_of_another_history(told):
                self._end(f"the metadata store {node.store.place} was restored while this node ran. {AGAIN}")
                return
            try:
                node.changed(self._now(), told)
            except Exception:
                log.exception("an update of the cluster's metadata could not be applied completely; the node continues")
            self._settle()
        if node.image.generation >= self._committed:
            membership.confirmed(self._renewed_at)
        if self._present != membership.present:
            membership.seen(self._now(), self._present)
            self._settle()
        is_quick = self._quick_looks > 0 or not self._after_news
        self._quick_looks = max(0, self._quick_looks - 1)
        self._timer = self._loop.call_later(LOOK_S if is_quick else REST_S, self.look)
