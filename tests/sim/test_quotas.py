"""Clients under quotas in a simulated world whose node dies: nobody uses more than the limit, and nobody else waits.

Seeds are runs: users with limits and without send what they like, several requests behind each other; the power goes,
and the node comes back. Held is, for each life of the node and each user with a limit: whoever has used more in all
windows but one than the limit brings in all of them is told to wait for as long as the rest takes, and is not served
before; nobody is told to wait for longer than it takes to make up for what was used; and of changes, no more are made
in any time than the limit brings in it and the burst, and two requests, as one that uses the limit up is not made to
wait, and one of an old version behind it can't be refused. Who has no limit is answered at once and told of no wait.
After the power cut the limits are what they were.

A user with a limit has one connection here: of several each is muted by its own answer, as Kafka's are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from ottla.broker import client_quotas
from ottla.broker.client_identity import Principal
from ottla.broker.node import Node
from ottla.broker.quotas import Throttle
from ottla.broker.rates import Bucket, Rate
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records.record import Record, build_batch
from tests.harness.node_stage import Asked
from tests.harness.sim.stage import Stage

SAMPLES, WINDOW_MS, BURST_S = 11, 1_000, 11
LIFE = 1 << 20
"""More windows than a life of the node has."""
LIVES, STEPS = 3, 150
PRODUCED, FETCHED, CHANGED = "producer_byte_rate", "consumer_byte_rate", "controller_mutation_rate"
"""What is limited; a user of each name has that limit, and one called `nobody` has none."""
FREE = "nobody"
LIMITS: Mapping[str, float] = {PRODUCED: 20_000.0, FETCHED: 30_000.0, CHANGED: 2.0}


class Used(NamedTuple):
    """What one request used: at what time, and how long its client was told to wait."""

    at: int
    amount: float
    throttle_ms: int


class Sent(Asked):
    """A request that notes when it was answered."""

    def __init__(self, run: Run, message: Any, version: int, amount: Callable[[Any], float]) -> None:
        super().__init__(message, version)
        self._run = run
        self._amount = amount
        self.sent_at = run.stage.now
        self.used: Used | None = None

    def take(self, parts: Sequence[Any]) -> None:
        super().take(parts)
        self.used = Used(self._run.stage.now, self._amount(self.answer), self.answer.throttle_time_ms)


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.stage = Stage(seed)
        self.throttled: set[str] = set()
        """Whose limit was reached."""
        self._topics = 0
        self._ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]), 5)
        self._ask(
            AlterClientQuotasRequest(
                [
                    RequestEntryData([RequestEntityData("user", key)], [OpData(key, limit)])
                    for key, limit in LIMITS.items()
                ]
            ),
            1,
        )

    def play(self) -> None:
        for _ in range(LIVES):
            self._live()
            self.stage.restart(clean=False, power_cut=self.chance.random() < 0.5)
            kept = self._ask(DescribeClientQuotasRequest(), 1).entries
            found = {entry.entity[0].entity_name: {each.key: each.value for each in entry.values} for entry in kept}
            assert found == {key: {key: limit} for key, limit in LIMITS.items()}, "a quota did not outlive the node"
        assert self.throttled == set(LIMITS), "nobody came near a limit"

    def _ask(self, message: Any, version: int) -> Any:
        return self.stage.ask(message, version, self._connected("admin"))

    def _connected(self, user: str) -> int:
        connection = self.stage.connect()
        self.stage.clients[connection].channel.authenticate(Principal("User", user), "PLAIN")
        return connection

    def _live(self) -> None:
        """One life: everybody is connected, and sends."""
        speakers = [(user, self._connected(user)) for user in (*LIMITS, FREE, FREE)]
        sent: dict[str, list[Sent]] = {user: [] for user in (*LIMITS, FREE)}
        for _ in range(STEPS):
            user, connection = self.chance.choice(speakers)
            asked = self._request(self.chance.choice(list(LIMITS)) if user == FREE else user)
            sent[user].append(asked)
            self.stage.hand_in(asked, connection)
            self.stage.run(self.chance.choice([0, 0, 5, 100, 700]))
            assert user != FREE or (asked.answered and asked.sent_at == asked.used.at), "who has no limit waits"
        for asked in sent[FREE]:
            assert asked.used is not None
            assert asked.used.throttle_ms == 0, "who has no limit is told to wait"
        for key, limit in LIMITS.items():
            used = [asked.used for asked in sent[key] if asked.used is not None]
            must_be_within(used, limit, saved=key == CHANGED)
            self.throttled |= {key for each in used if each.throttle_ms}

    def _request(self, kind: str) -> Sent:
        if kind == PRODUCED:
            size = self.chance.choice([100, 5_000, 60_000])
            batch = build_batch([Record(-1, 1, None, bytes(size))])
            data = [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])]
            return Sent(self, ProduceRequest(None, 1, 1_000, data), 9, lambda answer: size)
        if kind == FETCHED:
            most = self.chance.choice([1_000, 100_000])
            asked = [FetchTopic("t", partitions=[FetchPartition(0, fetch_offset=0, partition_max_bytes=most)])]
            return Sent(self, FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=most, topics=asked), 12, fetched)
        self._topics += 1
        topic = CreatableTopic(f"t{self._topics}", self.chance.choice([1, 5, 30]), 1)
        return Sent(self, CreateTopicsRequest([topic]), self.chance.choice([5, 7]), made)


def fetched(answer: Any) -> int:
    return sum(len(part.records or b"") for topic in answer.responses for part in topic.partitions)


def made(answer: Any) -> int:
    (topic,) = answer.topics
    assert topic.error_code in (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
    assert not topic.error_code or answer.throttle_time_ms, "it is refused, and not told for how long"
    return 0 if topic.error_code else topic.num_partitions


def must_be_within(used: Sequence[Used], limit: float, *, saved: bool) -> None:
    """Hold what was used, in the order in which it was served, to its limit; `saved`: it came out of a bucket."""
    assert used, "nobody used anything"
    for before, after in pairwise(used):
        assert after.at >= before.at + before.throttle_ms, f"served {after}, though {before} came before it"
    for at, last in enumerate(used):
        so_far = used[: at + 1]
        least_ms = 0 if saved else within(so_far, SAMPLES - 1) * 1000 / limit - SAMPLES * WINDOW_MS
        most_ms = within(so_far, LIFE if saved else SAMPLES + 1) * 1000 / limit
        assert least_ms <= last.throttle_ms + 1, f"{last} is too short a wait, by {limit} a second: {least_ms} ms"
        assert last.throttle_ms <= most_ms + 100, f"{last} is too long a wait, by {limit} a second: {most_ms} ms"
        if saved:
            must_be_saved(so_far, limit)


def within(used: Sequence[Used], windows: int) -> float:
    """What was used in so many windows before the last one was, and by it."""
    return sum(each.amount for each in used if each.at > used[-1].at - windows * WINDOW_MS)


def must_be_saved(used: Sequence[Used], limit: float) -> None:
    """In no time that ends here was more used than the limit brings in it, the burst, and two requests."""
    most, rest = max(each.amount for each in used), sum(each.amount for each in used)
    for first in used:
        elapsed_s = (used[-1].at - first.at) / 1000
        assert rest <= limit * (elapsed_s + BURST_S) + 2 * most, f"{rest} used in {elapsed_s} s, by {limit} a second"
        rest -= first.amount


@pytest.mark.parametrize("seed", range(3))
def test_nobody_uses_more_than_a_quota_and_nobody_else_waits(seed: int) -> None:
    Run(seed).play()


# ---- planted -------------------------------------------------------------------------------------------------------


def plant_rates_that_forget(patch: pytest.MonkeyPatch) -> None:
    real = Rate.record
    patch.setattr(Rate, "record", lambda self, now, used: real(self, now, used / 10))


def plant_debts_that_are_let_off(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Bucket, "wait_ms", lambda self, now, limit: 0)


def plant_waits_that_are_too_long(patch: pytest.MonkeyPatch) -> None:
    real = Bucket.wait_ms
    patch.setattr(Bucket, "wait_ms", lambda self, now, limit: real(self, now, limit) * 10)


def plant_users_that_are_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(client_quotas, "_fitting", lambda user, client_id: [(PRODUCED, "")])


def plant_quotas_that_are_not_loaded(patch: pytest.MonkeyPatch) -> None:
    real = Node.start

    def start(node: Node, now: int) -> None:
        real(node, now)
        node.throttle.quotas = None

    patch.setattr(Node, "start", start)


def plant_requests_that_are_served_before_the_muting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Throttle, "charge_appended", lambda self, now, request: None)


def plant_connections_that_are_not_muted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Throttle, "_mute", lambda self, now, channel, throttle_ms: None)


@pytest.mark.parametrize(
    ("plant", "word"),
    [
        (plant_requests_that_are_served_before_the_muting, "came before it"),
        (plant_connections_that_are_not_muted, "came before it"),
        (plant_rates_that_forget, "too short a wait"),
        (plant_debts_that_are_let_off, "used in"),
        (plant_waits_that_are_too_long, "too long a wait"),
        (plant_users_that_are_one, "who has no limit"),
        (plant_quotas_that_are_not_loaded, "too short a wait"),
    ],
)
def test_what_is_wrong_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], word: str
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=word):
        Run(0).play()
