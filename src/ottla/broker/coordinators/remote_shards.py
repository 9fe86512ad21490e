"""Calls the share coordinator on other nodes, for shards of partitions that this node does not lead.

Each call goes to the node that leads its partition of `__share_group_state`. Calls of one kind become one request of
the wire API, and each result goes back to its `CoordinatorRequest`.

Calls to one partition are sent in order of arrival, one request at a time; calls that arrive meanwhile share the next
one. A request that was lost, or that met a node which is no coordinator, is sent again, perhaps to another node:
carrying it out twice is harmless. Calls that could not be sent for `share.coordinator.write.timeout.ms` are refused. A
request that was sent waits until its node has answered or was given up, as its outcome is unknown.

Invariants: a call is answered once. No request holds two calls about one share partition, so of two writes the later
one never overtakes the earlier.

Source: Kafka's PersisterStateManager.java.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple, Protocol

from ottla.broker.cluster.peers import STATE_LINE, Peers
from ottla.broker.config.live import LiveSettings
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.schedule import KeyedTimers, Schedule, Timed
from ottla.machine import Call, Millis, Unanswered
from ottla.protocol.errors import ErrorCode
from ottla.share.state import refuse

CALLS_MAX: Final = 500
"""So many share one request."""
RETRY_MS: Final = 50
TRY_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Coordinator errors that a client retries."""


class Asked(Protocol):
    """Has made calls; `replies` has None for each call that is not answered yet."""

    replies: list[Any]

    def put(self, at: int, reply: object) -> None: ...


class _Step(NamedTuple):
    asked: Asked
    at: int
    call: Call
    give_up_at: Millis

    @property
    def place(self) -> tuple[bytes, int]:
        """The share partition that it is about, in its group."""
        topic = self.body.topics[0]
        return bytes(topic.topic_id), topic.partitions[0].partition

    @property
    def body(self) -> Any:
        return self.call.body


class _Queue:
    """The calls to one partition. `under_way`: those that were asked and not answered."""

    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Step] = deque()
        self.under_way: list[_Step] = []


class _Request:
    """One request to another node; a `cluster.peers.Asker`."""

    __slots__ = ("_elsewhere", "_index")

    def __init__(self, elsewhere: Elsewhere, index: int) -> None:
        self._elsewhere = elsewhere
        self._index = index

    def answered(self, now: Millis, answer: object) -> None:
        self._elsewhere.answered(now, self._index, answer)


class Elsewhere:
    """The calls of one node to share coordinators on other nodes. `here` gets a call whose partition this node now
    leads."""

    def __init__(
        self,
        topic_name: str,
        node_id: int,
        leadership: Leadership,
        peers: Peers,
        settings: LiveSettings,
        schedule: Schedule,
    ) -> None:
        self._topic_name = topic_name
        self._node_id = node_id
        self._leadership = leadership
        self._peers = peers
        self._settings = settings
        self._queues: dict[int, _Queue] = {}
        self._again = KeyedTimers[int](schedule, Timed.SHARE_STATE, self._send_waiting)

    def takes(self, index: int) -> bool:
        """Whether a call to this partition is another node's to answer, or has to wait for one that is."""
        return index in self._queues or self._leader_of(index) not in (None, self._node_id)

    def ask(self, now: Millis, index: int, asked: Asked, at: int, call: Call) -> None:
        """Send this call; its reply is put into `asked`, never before this returns."""
        queue = self._queues.setdefault(index, _Queue())
        give_up_at = now + self._settings["share.coordinator.write.timeout.ms"]
        queue.waiting.append(_Step(asked, at, call, give_up_at))
        if not queue.under_way and index not in self._again:
            self._again.set(index, now)  # with the next tick, so that calls that are made together leave together

    def _leader_of(self, index: int) -> int | None:
        """None while there is none."""
        leader = self._leadership.leader_of(self._topic_name, index)
        return None if leader is None or leader[0] < 0 else leader[0]

    def _send(self, now: Millis, index: int) -> None:
        """Send as many calls as fit into one request."""
        queue = self._queues[index]
        leader = self._leader_of(index)
        if leader is None:
            self._again.set(index, now + RETRY_MS)
            return
        first = queue.waiting[0]
        places: set[tuple[bytes, int]] = set()
        while queue.waiting and len(queue.under_way) < CALLS_MAX:
            step = queue.waiting[0]
            alike = (step.call.api_key, step.body.group_id) == (first.call.api_key, first.body.group_id)
            if not alike or step.place in places:
                break
            places.add(step.place)
            queue.under_way.append(queue.waiting.popleft())
        request = _Request(self, index)
        self._peers.ask(now, leader, _joined([step.body for step in queue.under_way]), request, line=STATE_LINE)

    def answered(self, now: Millis, index: int, answer: object) -> None:
        """Handle the outcome of the request to this partition."""
        queue = self._queues[index]
        steps, queue.under_way = queue.under_way, []
        replies = {} if isinstance(answer, Unanswered) else _split(answer)
        again: list[_Step] = []
        done: list[tuple[_Step, object]] = []
        for step in steps:
            reply = replies.get(step.place)
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE if reply is None else error_of(reply)
            if error in TRY_AGAIN and now < step.give_up_at:
                again.append(step)
            else:
                done.append((step, refuse(step.body, error) if reply is None else reply))
        queue.waiting.extendleft(reversed(again))
        if queue.waiting:
            self._again.set(index, now + RETRY_MS if again else now)
        else:
            del self._queues[index]
        for step, reply in done:
            self._answer(step, reply)

    def _answer(self, step: _Step, reply: object) -> None:
        if step.asked.replies[step.at] is None:
            step.asked.put(step.at, reply)

    # ---- time ------------------------------------------------------------------------------------------------------

    def _send_waiting(self, now: Millis) -> None:
        """Send the waiting calls, and refuse those that have waited for too long."""
        while (index := self._again.pop(now)) is not None:
            queue = self._queues[index]
            while queue.waiting and queue.waiting[0].give_up_at <= now:
                step = queue.waiting.popleft()
                self._answer(step, refuse(step.body, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            if queue.waiting:
                self._send(now, index)
            else:
                del self._queues[index]

    def check(self) -> None:
        """Raises AssertionError."""
        self._again.check()
        for index, queue in self._queues.items():
            assert queue.waiting or queue.under_way, f"nobody waits for partition {index}"
            assert queue.under_way or index in self._again, f"partition {index} is asked no more"


def error_of(reply: Any) -> ErrorCode:
    """The error in a reply about one share partition."""
    return ErrorCode(reply.results[0].partitions[0].error_code)


def _joined(bodies: list[Any]) -> Any:
    """One request for all of these, which are of one kind and one group."""
    topics: dict[bytes, Any] = {}
    for body in bodies:
        (topic,) = body.topics
        known = topics.setdefault(bytes(topic.topic_id), type(topic)(topic.topic_id, []))
        known.partitions.append(topic.partitions[0])
    return type(bodies[0])(bodies[0].group_id, list(topics.values()))


def _split(answer: Any) -> dict[tuple[bytes, int], Any]:
    """A reply for each share partition, as a shard gives it."""
    return {
        (bytes(topic.topic_id), part.partition): type(answer)([type(topic)(topic.topic_id, [part])])
        for topic in answer.results
        for part in topic.partitions
    }
