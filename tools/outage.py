"""Asks a cluster for things while no majority of its ZooKeepers is there, and tells what it should have said.

Knows when the majority went. A node may go on with what it knows for as long as its lease; from then on it answers
nothing that another could have changed meanwhile. What has to be committed is answered by its own timeout, done or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection

from ottla.client import Client, ClientError, TimedOutError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

ASKED_PREFIX = "asked-for-"
"""Topics of this name may be there afterwards: who is told REQUEST_TIMED_OUT does not know."""
TIMEOUT_MS = 1_500
GRACE_S = 8.0
"""How much later than asked an answer may come on a machine that is busy."""
TOLD = (
    ErrorCode.NONE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.INVALID_REPLICATION_FACTOR,
)
"""The last one: another node is down."""


class Outage(threading.Thread):
    """Begins when the majority is gone; `end` before it comes back. `well`: the nodes that have no other trouble now.
    `failures`: what was wrong; `told`: how often which error was answered."""

    def __init__(self, address_of: Callable[[int], str], well: Callable[[], Collection[int]], lease_s: float) -> None:
        super().__init__(daemon=True)
        self.failures: list[str] = []
        self.told: dict[str, int] = {}
        self._address_of = address_of
        self._well = well
        self._lease_s = lease_s
        self._began = time.monotonic()
        self._over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._over.wait(0.3):
            for node in sorted(self._well()):
                number += 1
                self._ask_for_topic(node, f"{ASKED_PREFIX}{id(self)}-{number}")

    def end(self, topic: str) -> None:
        """The majority is about to come back. Nobody leads this topic by now, where the lease is over."""
        self._over.set()
        if time.monotonic() > self._began + self._lease_s:
            for node in sorted(self._well()):
                self._ask_for_end(node, topic)

    def _ask_for_topic(self, node: int, name: str) -> None:
        asked = CreateTopicsRequest(topics=[CreatableTopic(name, 1, 3)], timeout_ms=TIMEOUT_MS)
        began = time.monotonic()
        try:
            with Client(self._address_of(node), timeout_s=TIMEOUT_MS / 1000 + GRACE_S) as client:
                error = ErrorCode(client.send(asked).topics[0].error_code)
        except TimedOutError:
            if node in self._well():
                took_s = time.monotonic() - began
                self.failures.append(
                    f"node {node} left a CreateTopics of {TIMEOUT_MS} ms unanswered for {took_s:.1f} s"
                )
        except ClientError:
            pass  # it was struck meanwhile
        else:
            self.told[error.name] = self.told.get(error.name, 0) + 1
            if error not in TOLD:
                self.failures.append(f"node {node} answered {error.name} to CreateTopics without a majority")

    def _ask_for_end(self, node: int, topic: str) -> None:
        asked = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, -1)])])
        try:
            with Client(self._address_of(node), timeout_s=GRACE_S) as client:
                error = client.send(asked).topics[0].partitions[0].error_code
        except ClientError:
            return
        if error == ErrorCode.NONE:
            away_s = time.monotonic() - self._began
            self.failures.append(f"node {node} leads {topic}-0 still, {away_s:.1f} s after the majority went")
