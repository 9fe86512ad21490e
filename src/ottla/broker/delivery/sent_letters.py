"""Sends dead letters to the node that leads their partition, if that is another node.

Batches are sent one after the other; each is answered once it is committed. A dead letter that the topic refuses may
have another form. If a send fails, its dead letters may have arrived, and are written once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ottla.broker.cluster.peers import STATE_LINE, TIMEOUT_MS, Peers
from ottla.broker.completions import Completions
from ottla.machine import Millis
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.record import Record, build_batch

ACKS_ALL: Final = -1
BY_NAME: Final = 12
"""The newest version of Produce that names topics."""

Mend = Callable[[Millis, Record, ErrorCode], list[Record]]
"""A dead letter in a form that may suit a topic that refused it with this error; empty if there is no such form."""


class Destination(NamedTuple):
    """The partition of another node."""

    node_id: int
    topic: str
    partition: int


class SentLetters:
    """Dead letters in flight; a `cluster.peers.Asker`. A completion calls `done` once: with None, or with why they did
    not arrive."""

    def __init__(
        self,
        peers: Peers,
        completions: Completions,
        destination: Destination,
        batches: Iterable[list[Record]],
        mend: Mend,
        done: Callable[[Millis, str | None], None],
    ) -> None:
        self._peers = peers
        self._completions = completions
        self._destination = destination
        self._batches = deque(batches)
        self._mend = mend
        self._done = done

    def send(self, now: Millis) -> None:
        """Send the next batch; there is one."""
        node_id, topic, partition = self._destination
        part = PartitionProduceData(partition, build_batch(self._batches[0]))
        request = ProduceRequest(None, ACKS_ALL, TIMEOUT_MS, [TopicProduceData(topic, partition_data=[part])])
        self._peers.ask(now, node_id, request, self, BY_NAME, line=STATE_LINE)

    def answered(self, now: Millis, answer: object) -> None:
        """Handle the outcome of the batch."""
        error = ErrorCode.NETWORK_EXCEPTION
        if isinstance(answer, ProduceResponse):
            error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if error is ErrorCode.NONE:
            self._batches.popleft()
        elif not self._change(now, error):
            self._completions.add(self._done, error.message)
            return
        if self._batches:
            self.send(now)
        else:
            self._completions.add(self._done, None)

    def _change(self, now: Millis, error: ErrorCode) -> bool:
        """Whether there is another form of the refused batch: one record at a time, or a dead letter in another
        form."""
        batch = self._batches[0]
        instead = [[each] for each in (batch if len(batch) > 1 else self._mend(now, batch[0], error))]
        if error not in MENDABLE or not instead:
            return False
        self._batches.popleft()
        self._batches.extendleft(reversed(instead))
        return True


MENDABLE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP)
"""A dead letter that is refused with one of these errors has another form that the topic may accept."""
