"""Simulates clients that change the same metadata at the same time, and records the answers.

They create and delete the same topic, and after a while the next one. Each also raises a number in the configs of a
group of its own. `Races` counts successful requests and requests with an unknown outcome; the audit compares that with
the final metadata.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from ottla.broker.forwarding import RETRY_MS
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.sim.clients.admins import REPLICAS, TOPICS_AS_LIST_SINCE
from ottla.sim.clients.kafka import KafkaClient
from ottla.sim.clients.workload_view import WorkloadView
from ottla.sim.kernel.clock import MS, Micros
from ottla.sim.kernel.trace import InvariantError

GROUP_RESOURCE = 32
NUMBER = "share.session.timeout.ms"
NUMBER_MIN = 45_000
ROUND_US = 4_000 * MS
"""All clients race for one topic during this time. The more unknown outcomes a topic has, the less can be checked."""
NOT_DONE = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.INVALID_REPLICATION_FACTOR,  # too few nodes are present now
    }
)
"""Errors that promise that the request had and will have no effect."""
QUICK_US = (RETRY_MS - 1) * MS
"""A node waits for `RETRY_MS` before it forwards a request again. So no node has forwarded a request twice that is
answered in less than this time."""


class Flight(NamedTuple):
    """When a request for a topic was sent, and until when it may have had an effect."""

    name: str
    sent_us: Micros
    until_us: float

    def meets(self, other: Flight) -> bool:
        """Whether both were in flight at the same time."""
        return self.name == other.name and self.sent_us < other.until_us and other.sent_us < self.until_us


class Tally:
    """The results of all creations, or of all deletions.

    `perhaps`: how many have an unknown outcome, by topic. `repeated`: those that a node may have forwarded twice.
    """

    def __init__(self) -> None:
        self.done: list[Flight] = []
        self.perhaps: Counter[str] = Counter()
        self.repeated: list[Flight] = []

    def count(self, name: str) -> int:
        """Return how many have succeeded."""
        return sum(flight.name == name for flight in self.done)

    def met(self, name: str, others: Tally) -> int:
        """Return how many of the successful requests a repeated request of the `others` may have undone that had
        succeeded before, so that it succeeded twice."""
        return sum(flight.name == name and any(map(flight.meets, others.repeated)) for flight in self.done)


class Races:
    """The results of all racers.

    A request that a node forwards twice may succeed twice, if a request of the other kind succeeds in between. As with
    Kafka's nodes, the client hears of one success.
    """

    def __init__(self) -> None:
        self.made = Tally()
        self.deleted = Tally()
        self.deleting: Counter[str] = Counter()
        """Number of deletions of the topic in flight."""
        self.deletions: Counter[str] = Counter()
        """Number of finished deletions, whether they succeeded, failed or have an unknown outcome."""

    def check(self, there: Mapping[str, Any], made_by_others: Mapping[str, int]) -> None:
        """Raise InvariantError unless the existing topics are consistent with all results."""
        made, deleted = self.made, self.deleted
        names = {flight.name for flight in (*made.done, *deleted.done)}
        for name in sorted(names | made.perhaps.keys() | deleted.perhaps.keys()):
            others = made_by_others.get(name, 0)
            surely = made.count(name) + others - deleted.count(name)
            perhaps_made = made.perhaps[name] + deleted.met(name, made)
            perhaps_deleted = deleted.perhaps[name] + made.met(name, deleted)
            if any(flight.name == name for flight in deleted.repeated):
                perhaps_deleted += others
            count = int(name in there)
            if not surely - perhaps_deleted <= count <= surely + perhaps_made:
                raise InvariantError(
                    f"topic {name} is there {count} times: made {made.count(name)} times, perhaps {perhaps_made} more, "
                    f"by other writers {others}; deleted {deleted.count(name)} times, perhaps {perhaps_deleted} more"
                )


class Racer(KafkaClient):
    """One of them; one request at a time."""

    def __init__(self, workload: WorkloadView, name: str, races: Races) -> None:
        super().__init__(workload, name)
        self.races = races
        self.works = True
        self.told = 0
        """The acknowledged number, which its group has at least."""
        self.unheard: set[int] = set()
        """Numbers with an unknown outcome; another node may still forward them."""
        self.is_waiting = False
        """Whether a request is in flight."""
        self._tried = 0
        self.after(self.rng.randrange(1_000 * MS), self.connect)
        self.after(1_000 * MS, self._work)

    def gone(self) -> None:
        self.is_waiting = False

    def _work(self) -> None:
        if not self.works:
            return
        self.after(self.rng.randrange(50 * MS, 800 * MS), self._work)
        if self.connection is None or self.is_waiting:
            return
        self.is_waiting = True
        self.rng.choice((self._make, self._make, self._delete, self._raise_number))()

    def _make(self) -> None:
        name = f"race-{self.world.clock.now_us // ROUND_US}"
        topic = CreatableTopic(name, self.rng.randrange(1, 3), min(REPLICAS, len(self.workload.bootstraps)))
        races = self.races
        before = races.deletions[name] if not races.deleting[name] else None
        sent_us = self.world.clock.now_us
        self.request(ApiKey.CREATE_TOPICS, CreateTopicsRequest([topic], 3_000), self._made, name, sent_us, before)

    def _made(self, message: Any, name: str, sent_us: Micros, deletions: int | None) -> None:
        """Count the answer to a creation.

        `deletions`: the number of deletions before the request was sent; None if one was in flight. A node that
        forwards a request twice may create the topic with the first. If that topic is deleted, the second may find a
        topic of another client.
        """
        races = self.races
        is_other = deletions != races.deletions[name] or races.deleting[name] > 0
        self._count(name, sent_us, message and message.topics, races.made, hides_first=is_other)

    def _delete(self) -> None:
        name = f"race-{self.world.clock.now_us // ROUND_US}"
        listed = self.versions[ApiKey.DELETE_TOPICS] >= TOPICS_AS_LIST_SINCE
        request = DeleteTopicsRequest(
            topic_names=[] if listed else [name],
            topics=[DeleteTopicState(name=name)] if listed else [],
            timeout_ms=3_000,
        )
        self.races.deleting[name] += 1
        self.request(ApiKey.DELETE_TOPICS, request, self._deleted, name, self.world.clock.now_us)

    def _deleted(self, message: Any, name: str, sent_us: Micros) -> None:
        races = self.races
        races.deleting[name] -= 1
        races.deletions[name] += 1
        self._count(name, sent_us, message and message.responses, races.deleted, hides_first=True)

    def _count(self, name: str, sent_us: Micros, results: Any, tally: Tally, *, hides_first: bool) -> None:
        """Count the result of a request. `hides_first`: if a node has forwarded the request twice, the second may have
        failed because the first, of which the client hears nothing, succeeded."""
        self.is_waiting = False
        now_us = self.world.clock.now_us
        code = ErrorCode.REQUEST_TIMED_OUT if results is None else results[0].error_code
        flight = Flight(name, sent_us, inf if code == ErrorCode.REQUEST_TIMED_OUT else now_us)
        if self.follows and flight.until_us - sent_us >= QUICK_US:
            tally.repeated.append(flight)
            if hides_first and code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS):
                code = ErrorCode.REQUEST_TIMED_OUT
        if code == ErrorCode.REQUEST_TIMED_OUT:
            tally.perhaps[name] += 1
        elif code == 0:
            tally.done.append(flight)
        elif code not in NOT_DONE:
            raise InvariantError(f"{self.name}: {name} answers {code}")

    # ---- a number of its own ---------------------------------------------------------------------------------------

    def _raise_number(self) -> None:
        self._tried += 1
        change = AlterableConfig(NUMBER, 0, str(NUMBER_MIN + self._tried))
        resource = AlterConfigsResource(GROUP_RESOURCE, self.name, [change])
        request = IncrementalAlterConfigsRequest([resource], False)
        self.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, self._raised, self._tried)

    def _raised(self, message: Any, number: int) -> None:
        self.is_waiting = False
        if message is not None and message.responses[0].error_code == 0:
            self.told = number
        elif self.follows:
            self.unheard.add(number)

    def check_number(self, configs: Mapping[str, str]) -> None:
        """Raise InvariantError if the group's number is older than the last acknowledged one."""
        found = int(configs.get(NUMBER, NUMBER_MIN)) - NUMBER_MIN
        if found < self.told and found not in self.unheard:
            raise InvariantError(f"{self.name} was told that its number is {self.told}, and it is {found}")
