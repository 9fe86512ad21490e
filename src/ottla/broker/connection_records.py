"""Counts what each connection does: its requests, their bytes, its throttling, and its fetches.

Every connection has a record, in its `Channel`. `observations` lists them.
"""

from __future__ import annotations


class ConnectionRecord:
    """The figures of one connection since it was opened. The counters only grow.

    - `client_id`: that of its first request, empty if none has been decoded.
    - `requests`, `received_bytes`: the requests that were received, and their bytes.
    - `throttled_ms`: for how long it was muted because of quotas.
    - `fetches`: the fetches that were received, and `waits` those that had to wait for records.
    - `min_bytes`, `max_wait_ms`: those of the last fetch that had to wait.
    - `held_back`: fetches that waited for `max_wait_ms` although there were records, but fewer bytes than `min_bytes`.
    """

    __slots__ = (
        "client_id",
        "fetches",
        "held_back",
        "max_wait_ms",
        "min_bytes",
        "received_bytes",
        "requests",
        "throttled_ms",
        "waits",
    )

    def __init__(self) -> None:
        self.client_id = ""
        self.requests = 0
        self.received_bytes = 0
        self.throttled_ms = 0
        self.fetches = 0
        self.waits = 0
        self.min_bytes = 0
        self.max_wait_ms = 0
        self.held_back = 0

    def waits_for(self, min_bytes: int, max_wait_ms: int) -> None:
        """A fetch has to wait for records."""
        self.waits += 1
        self.min_bytes, self.max_wait_ms = min_bytes, max_wait_ms
