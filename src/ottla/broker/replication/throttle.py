"""Throttles replication to so many bytes a second, so that moving replicas leaves bandwidth for clients (KIP-73).

It handles one side of a node: what it sends to followers as a leader, or what it fetches as a follower. A topic's
config names the throttled replicas: `partition:node` pairs, or `*` for all; an entry names this node. All bytes of
these replicas count, but only those that are not in sync are held back. So a throttle below the producers' write rate
shows as a move that does not end, and not as a loss of in-sync replicas.

Bytes that were transferred are a debt that is paid off at the rate; nothing more is transferred before it is paid.
There are no bursts such as Kafka's windows of eleven seconds allow.

Sources: KIP-73; Kafka's ReplicationQuotaManager.java, ReplicaManager.shouldLeaderThrottle.
"""

from __future__ import annotations

from typing import Final

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.config.key import LONG_MAX
from ottla.broker.config.live import LiveSettings
from ottla.machine import Millis

LEADER: Final = "leader"
FOLLOWER: Final = "follower"
EVERY_REPLICA: Final = "*"
LOOK_AGAIN_MS: Final = 1_000
"""The rate may be another one by then."""
LISTS_MAX: Final = 10_000
"""Lists of topics that are remembered as they were read."""


class Throttle:
    """One side of one node; `side` is LEADER or FOLLOWER."""

    def __init__(self, side: str, node_id: int, settings: LiveSettings, metadata: Metadata) -> None:
        self._rate_key = f"{side}.replication.throttled.rate"
        self._list_key = f"{side}.replication.throttled.replicas"
        self._node_id = node_id
        self._settings = settings
        self._metadata = metadata
        self._lists: dict[str, frozenset[str]] = {}
        self._debt = 0
        """In thousandths of bytes."""
        self._at: Millis = 0

    @property
    def is_on(self) -> bool:
        """Whether there is a limit."""
        return self._settings[self._rate_key] != LONG_MAX

    def lists(self, topic_name: str, index: int) -> bool:
        """Whether this node's replica of the partition is meant."""
        topic = self._metadata.image.topics.get(topic_name)
        text = None if topic is None else topic.configs.get(self._list_key)
        if not text:
            return False
        entries = self._lists.get(text)
        if entries is None:
            if len(self._lists) >= LISTS_MAX:
                self._lists.clear()
            entries = self._lists[text] = frozenset(entry.strip() for entry in text.split(","))
        return EVERY_REPLICA in entries or f"{index}:{self._node_id}" in entries

    def waits_ms(self, now: Millis) -> int:
        """How long throttled replicas must wait before the next transfer, in milliseconds; 0 if they need not wait."""
        rate = self._settings[self._rate_key]
        if rate == LONG_MAX:
            self._debt = 0
            return 0
        self._debt = max(0, self._debt - rate * (now - self._at))
        self._at = now
        if not self._debt:
            return 0
        return min(LOOK_AGAIN_MS, -(-self._debt // rate)) if rate else LOOK_AGAIN_MS

    def took(self, size: int) -> None:
        """So many bytes of those replicas went over the wire, after `waits_ms` was asked."""
        if self.is_on:
            self._debt += size * 1000
