"""Sends dead letters to the node that leads their partition, where that is another one.

Knows how batches of letters go one after the other, each answered when it is committed, and that a letter which the
topic does not take may have another form. Does not know why records were given up, nor what is done when it fails:
letters that may be there already are then written once more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from ottla.broker.cluster.peers import STATE_LINE, TIMEOUT_MS, Peers
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
"""A letter as the topic may take it that refused it with this error; empty: there is no such form."""


class Destination(NamedTuple):
    """The partition of another node."""

    node_id: int
    topic: str
    partition: int


class SentLetters:
    """Letters on their way; a `cluster.peers.Asker`. `done` is told once: None, or why they did not arrive."""

    def __init__(
        self,
        peers: Peers,
        destination: Destination,
        batches: Iterable[list[Record]],
        mend: Mend,
        done: Callable[[Millis, str | None], None],
    ) -> None:
        self._peers = peers
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
        """What became of the batch."""
        error = ErrorCode.NETWORK_EXCEPTION
        if isinstance(answer, ProduceResponse):
            error = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if error is ErrorCode.NONE:
            self._batches.popleft()
        elif not self._change(now, error):
            self._done(now, error.message)
            return
        if self._batches:
            self.send(now)
        else:
            self._done(now, None)

    def _change(self, now: Millis, error: ErrorCode) -> bool:
        """Whether there is another form of the batch that was refused: one by one, or a letter as it may be taken."""
        batch = self._batches[0]
        instead = [[each] for each in (batch if len(batch) > 1 else self._mend(now, batch[0], error))]
        if error not in MENDABLE or not instead:
            return False
        self._batches.popleft()
        self._batches.extendleft(reversed(instead))
        return True


MENDABLE: Final = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_TIMESTAMP)
"""A letter that is refused for one of these has another form in which the topic may take it."""
