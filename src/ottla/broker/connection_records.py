"""Counts what each connection does: its requests, their bytes, its throttling, and the pace of its fetches.

Every connection has a record, in its `Channel`. `observations` lists them.
"""

from __future__ import annotations

from ottla.machine import Millis


class ConnectionRecord:
    """What one connection has done since it was opened. The counters only grow.

    - `client_id`: that of its first request, empty if none has been decoded.
    - `requests`, `received_bytes`: the requests that were received, and their bytes.
    - `throttled_ms`: for how long it was muted because of quotas.
    - `fetches`, `gaps_ms`: the fetches of a consumer, and the sum of the times between an answer and the next fetch.
    - `min_bytes`, `max_wait_ms`: those of its last fetch.
    - `held_back`: fetches that were answered after `max_wait_ms` with fewer bytes than `min_bytes`, but some.
    - `answered_at`: when the last fetch was answered; None before the first answer, and while one waits.
    """

    __slots__ = (
        "answered_at",
        "client_id",
        "fetches",
        "gaps_ms",
        "held_back",
        "max_wait_ms",
        "min_bytes",
        "received_bytes",
        "requests",
        "throttled_ms",
    )

    def __init__(self) -> None:
        self.client_id = ""
        self.requests = 0
        self.received_bytes = 0
        self.throttled_ms = 0
        self.fetches = 0
        self.gaps_ms = 0
        self.min_bytes = 0
        self.max_wait_ms = 0
        self.held_back = 0
        self.answered_at: Millis | None = None

    def fetched(self, now: Millis, min_bytes: int, max_wait_ms: int) -> None:
        """A consumer's fetch has arrived."""
        self.fetches += 1
        self.min_bytes, self.max_wait_ms = min_bytes, max_wait_ms
        if self.answered_at is not None:
            self.gaps_ms += now - self.answered_at
            self.answered_at = None
