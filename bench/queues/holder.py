"""A member of a share group by hand: version 2 of the share APIs over one connection, so that it can hold any number.

Invariants: the session's epoch goes up by one with each request; a heartbeat is sent before the member's time is over.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from bench.brokers import Broker
from ottla.client import Connection
from ottla.client.connection import Posted
from ottla.client.errors import check
from ottla.protocol.messages.share_acknowledge import (
    AcknowledgementBatch,
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from ottla.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

ACCEPT, RELEASE = 1, 2
BATCH_OPTIMIZED, EXACTLY = 0, 1
"""share_acquire_mode (KIP-1206)."""
HEARTBEAT_S = 5.0
FETCH_BYTES = 50 << 20


class Holder:
    """Joins at once. Every method raises ClientError."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.group = group
        self._topic = topic
        self._member = str(uuid.uuid4())
        self._connection = Connection(broker.host, broker.port, client_id="bench", timeout_s=60)
        with broker.client() as client:
            self._topic_id = client.topic(topic).topic_id
            client.coordinator(group)  # which also makes the coordinator of a fresh node
        self._epoch = 0
        self._member_epoch = 0
        self._beaten = 0.0
        self._beat()

    def close(self) -> None:
        self._connection.close()

    def _beat(self) -> None:
        if time.monotonic() - self._beaten > HEARTBEAT_S:
            beat = ShareGroupHeartbeatRequest(self.group, self._member, self._member_epoch, None, [self._topic])
            answer = self._connection.send(beat)
            check(answer.error_code, f"the heartbeat of {self.group}", answer.error_message)
            self._member_epoch, self._beaten = answer.member_epoch, time.monotonic()

    def fetch(self, records: int, mode: int, wait_ms: int = 500) -> list[tuple[int, int, int]]:
        """(first, last, delivery count) of what was acquired."""
        self._beat()
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self._member,
            share_session_epoch=self._epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES,
            max_records=records,
            batch_size=records,
            share_acquire_mode=mode,
            topics=[] if self._epoch else [FetchTopic(self._topic_id, [FetchPartition(0, [])])],
        )
        answer = self._connection.send(request, 2)
        check(answer.error_code, "a share fetch", answer.error_message)
        self._epoch += 1
        got: list[tuple[int, int, int]] = []
        for place in answer.responses:
            for part in place.partitions:
                check(part.error_code, "a share fetch", part.error_message)
                got += [(each.first_offset, each.last_offset, each.delivery_count) for each in part.acquired_records]
        return got

    def post(self, ranges: Sequence[tuple[int, int]], kind: int) -> Posted:
        """Acknowledge (first, last) ranges, without waiting."""
        self._beat()
        batches = [AcknowledgementBatch(first, last, [kind]) for first, last in ranges]
        topic = AcknowledgeTopic(self._topic_id, [AcknowledgePartition(0, batches)])
        request = ShareAcknowledgeRequest(self.group, self._member, self._epoch, False, [topic])
        self._epoch += 1
        return self._connection.post(request, 2)

    def take(self, posted: Posted) -> None:
        """The answer: everything was acknowledged, or BrokerError."""
        answer: Any = self._connection.take(posted)
        check(answer.error_code, "a share acknowledgement", answer.error_message)
        for place in answer.responses:
            for part in place.partitions:
                check(part.error_code, "a share acknowledgement", part.error_message)

    def acknowledge(self, first: int, last: int, kind: int) -> None:
        self.take(self.post([(first, last)], kind))
