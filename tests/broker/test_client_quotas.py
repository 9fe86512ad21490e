"""Quotas of users and clients: which one counts, how they are measured, and that every node keeps to them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla.broker import client_quotas
from ottla.broker.channel import Channel
from ottla.broker.client_identity import Address, Identity, Principal
from ottla.broker.client_quotas import ClientQuotas
from ottla.broker.rates import Bucket, Rate
from ottla.metadata.quotas import PREFIX, Entity, key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.records import Record, build_batch
from tests.harness.node_pair import NodePair
from tests.harness.node_stage import NodeStage

SAMPLES, WINDOW_MS, BURST_MS = 11, 1000, 11_000
PRODUCED, FETCHED, PERCENT = "producer_byte_rate", "consumer_byte_rate", "request_percentage"
MUTATING, CONNECTING = "controller_mutation_rate", "connection_creation_rate"
ANONYMOUS: Entity = {"user": "ANONYMOUS"}


def alter(*changes: tuple[Entity, Mapping[str, float | None]], dry: bool = False) -> AlterClientQuotasRequest:
    """Entities, and their new limits by key; None removes one."""
    entries = [
        RequestEntryData(
            [RequestEntityData(kind, name) for kind, name in entity.items()],
            [OpData(key, limit or 0.0, limit is None) for key, limit in limits.items()],
        )
        for entity, limits in changes
    ]
    return AlterClientQuotasRequest(entries, dry)


def described(stage: NodeStage) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    entries = stage.ask(DescribeClientQuotasRequest()).entries
    return [
        ({each.entity_type: each.entity_name for each in entry.entity}, {each.key: each.value for each in entry.values})
        for entry in entries
    ]


def codes(answer: Any) -> list[int]:
    return [each.error_code for each in answer.entries]


def produce(size: int) -> ProduceRequest:
    batch = build_batch([Record(-1, 1, None, b"v" * size)])
    return ProduceRequest(None, 1, 1000, [TopicProduceData("t", partition_data=[PartitionProduceData(0, batch)])])


def fetch(offset: int) -> FetchRequest:
    asked = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)]
    return FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic("t", partitions=asked)])


# ---- a rate --------------------------------------------------------------------------------------------------------


def test_who_stays_below_the_limit_never_waits() -> None:
    rate = Rate(SAMPLES, WINDOW_MS)
    for now in range(0, 60_000, 100):
        rate.record(now, 100)
        assert rate.wait_ms(now, 1010) == 0


def test_a_burst_is_measured_over_all_windows_but_one() -> None:
    rate = Rate(SAMPLES, WINDOW_MS)
    rate.record(5, 10_000)
    assert rate.wait_ms(5, 1000) == 0
    rate.record(5, 10_000)
    assert rate.wait_ms(5, 1000) == 10_000
    assert rate.wait_ms(5 + SAMPLES * WINDOW_MS, 1000) == 0, "it is forgotten"


@pytest.mark.parametrize(("samples", "window_ms"), [(11, 1000), (2, 1000), (1, 500)])
@pytest.mark.parametrize("size", [10, 1_000, 50_000])
def test_who_waits_as_told_comes_near_the_limit(samples: int, window_ms: int, size: int) -> None:
    limit, now, used = 1000, 0, 0
    rate = Rate(samples, window_ms)
    while now < 1_000_000:
        rate.record(now, size)
        used += size
        now += max(1, rate.wait_ms(now, limit))
    assert 0.5 < used * 1000 / now / limit < 2.1


def test_no_wait_is_longer_than_an_answer_can_say() -> None:
    rate, bucket = Rate(SAMPLES, WINDOW_MS), Bucket(0.001, BURST_MS)
    rate.record(0, 100_000_000)
    bucket.record(0, 10_000_000)
    assert rate.wait_ms(0, 1) == bucket.wait_ms(0, 0.001) == 2**31 - 1


# ---- a bucket ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [0, -5_000, 10**9])
def test_a_bucket_begins_full_and_fills_at_the_limit(now: int) -> None:
    bucket = Bucket(2, BURST_MS)
    bucket.record(now, 22)
    assert bucket.wait_ms(now, 2) == 0, "nothing is owed yet"
    bucket.record(now, 3)
    assert bucket.wait_ms(now, 2) == 1500
    assert bucket.wait_ms(now + 1499, 2) == 1
    assert bucket.wait_ms(now + 1500, 2) == 0
    bucket.record(now + 1500, 1)
    assert bucket.wait_ms(now + 1500, 2) == 500
    bucket.record(now + 60_000, 23)
    assert bucket.wait_ms(now + 60_000, 2) == 500, "it holds no more than its burst, however long it rests"


def test_a_limit_without_end_is_none() -> None:
    bucket = Bucket(float("inf"), BURST_MS)
    bucket.record(0, 1_000)
    assert bucket.wait_ms(0, float("inf")) == 0


# ---- whose quota counts --------------------------------------------------------------------------------------------

MOST_SPECIAL_FIRST: list[Entity] = [
    {"user": "ada", "client-id": "app"},
    {"user": "ada", "client-id": None},
    {"user": "ada"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
]
OTHERS: list[Entity] = [{"user": "bob"}, {"client-id": "other"}, {"user": "bob", "client-id": "app"}]


def identity(user: str = "ada") -> Identity:
    return Identity(Address(1, "127.0.0.1"), Principal("User", user), "PLAIN")


def quotas(limits: dict[int, float] | list[tuple[Entity, float]], key: str = PRODUCED) -> ClientQuotas:
    given = limits if isinstance(limits, list) else [(MOST_SPECIAL_FIRST[at], limit) for at, limit in limits.items()]
    table = {key_of(entity).removeprefix(PREFIX): {key: str(limit)} for entity, limit in given}
    return ClientQuotas(table, SAMPLES, WINDOW_MS, BURST_MS, lambda identity, client_id: client_id == "a node")


def throttled(limited: ClientQuotas, produced: int, user: str = "ada", client_id: str = "app", now: int = 0) -> int:
    return limited.charge(now, Channel(identity(user)), client_id, produced=produced, fetched=0)


@pytest.mark.parametrize("at", range(len(MOST_SPECIAL_FIRST)))
def test_the_most_special_quota_counts(at: int) -> None:
    limits = [(MOST_SPECIAL_FIRST[at], 1000.0), *((each, 1.0) for each in [*MOST_SPECIAL_FIRST[at + 1 :], *OTHERS])]
    assert throttled(quotas(limits), 20_000) == 10_000


def test_each_kind_of_limit_is_looked_up_by_itself() -> None:
    table = {
        key_of(MOST_SPECIAL_FIRST[0]).removeprefix(PREFIX): {FETCHED: "1000"},
        key_of(MOST_SPECIAL_FIRST[2]).removeprefix(PREFIX): {PRODUCED: "2000"},
    }
    limited = ClientQuotas(table, SAMPLES, WINDOW_MS, BURST_MS, lambda identity, client_id: False)
    assert throttled(limited, 40_000) == 10_000
    assert limited.charge(0, Channel(identity()), "app", produced=0, fetched=20_000) == 10_000


@pytest.mark.parametrize(
    ("entity", "shared_with"),
    [
        ({"user": None}, {("ada", "other")}),
        ({"client-id": None}, {("bob", "app")}),
        ({"user": None, "client-id": None}, set[tuple[str, str]]()),
    ],
)
def test_who_is_not_told_apart_shares_a_rate(entity: Entity, shared_with: set[tuple[str, str]]) -> None:
    limited = quotas([(entity, 1000.0)])
    assert throttled(limited, 10_000) == 0
    everybody = {("ada", "other"), ("bob", "app"), ("bob", "other")}
    waits = {who for who in sorted(everybody) if throttled(limited, 1, *who)}
    assert waits == shared_with


def test_a_client_without_an_id_is_not_a_user_without_a_client() -> None:
    limited = quotas([({"user": "ada", "client-id": None}, 1000.0), ({"user": "ada"}, 1.0)])
    assert throttled(limited, 20_000, client_id="") == 10_000


def test_nodes_of_the_cluster_are_never_throttled() -> None:
    limited = quotas({7: 1.0})
    assert throttled(limited, 1 << 30, client_id="a node") == 0


def test_who_was_away_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "CLIENTS_MAX", 3)
    limited = quotas({7: 1000.0})
    for name in ("a", "b", "c", "a", "d"):
        throttled(limited, 10_000, client_id=name)
    assert [name for name in "acdb" if throttled(limited, 1, client_id=name)] == ["a", "c", "d"]


def test_rates_of_users_outlive_their_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who takes a new client id for each request is the same user."""
    monkeypatch.setattr(client_quotas, "CLIENTS_MAX", 3)
    limited = quotas({2: 1000.0})
    waits = [throttled(limited, 1_000, client_id=str(n)) for n in range(20)]
    assert waits == [0] * 10 + [n * 1000 for n in range(1, 11)]


def test_time_on_the_loop_is_a_limit_too() -> None:
    limited = quotas({2: 10.0}, PERCENT)
    speaks = Channel(identity())
    assert limited.charge(0, speaks, "app", produced=0, fetched=0) == 0
    limited.spent(0, speaks, 1_000_000)
    assert limited.charge(0, speaks, "app", produced=0, fetched=0) == 0
    limited.spent(0, speaks, 50_000)
    assert limited.charge(0, speaks, "app", produced=0, fetched=0) == 500
    limited.spent(0, speaks, 5_000_000)
    assert limited.charge(0, speaks, "app", produced=0, fetched=0) == WINDOW_MS, "never for longer than a window"


def test_who_owes_changes_none_or_pays_for_what_cannot_be_refused() -> None:
    limited = quotas({2: 2.0}, MUTATING)
    assert limited.mutated(0, identity(), "app", 30, strict=True) == 0, "the first one may be as large as it likes"
    assert limited.mutated(0, identity(), "app", 1, strict=True) == 4_000
    assert limited.mutated(0, identity(), "other", 2, strict=False) == 5_000, "it is the user's"
    assert limited.mutated(0, identity("bob"), "app", 30, strict=True) == 0
    assert limited.mutated(4_999, identity(), "app", 1, strict=True) == 1
    assert limited.mutated(5_000, identity(), "app", 1, strict=True) == 0
    assert limited.mutated(5_000, identity(), "a node", 1_000, strict=True) == 0
    assert limited.mutated(5_000, identity(), "app", 1, strict=True) == 500


# ---- on a node -----------------------------------------------------------------------------------------------------


def test_quotas_are_set_told_of_and_removed(stage: NodeStage) -> None:
    app: Entity = {"user": "ada", "client-id": "app/ö"}
    assert codes(stage.ask(alter((app, {PRODUCED: 1024.0}), ({"user": None}, {PERCENT: 12.5})))) == [0, 0]
    assert codes(stage.ask(alter((app, {PRODUCED: 1.0}), dry=True))) == [0]
    assert codes(stage.ask(alter((app, {FETCHED: 2048.0})))) == [0]
    both = [(app, {PRODUCED: 1024.0, FETCHED: 2048.0}), ({"user": None}, {PERCENT: 12.5})]
    assert sorted(described(stage), key=lambda each: len(each[0]), reverse=True) == both
    stage.restart(clean=False)
    assert sorted(described(stage), key=lambda each: len(each[0]), reverse=True) == both
    assert stage.node.throttle.quotas is not None
    assert codes(stage.ask(alter((app, {PRODUCED: None, FETCHED: None}), ({"user": None}, {PERCENT: None})))) == [0, 0]
    assert described(stage) == []
    assert stage.node.throttle.quotas is None


@pytest.mark.parametrize(
    ("entity", "limits", "why"),
    [
        ({}, {PRODUCED: 1.0}, "Invalid empty client quota entity"),
        ({"thing": "x"}, {PRODUCED: 1.0}, "Unhandled client quota entity type: thing"),
        ({"user": ""}, {PRODUCED: 1.0}, "Empty user not supported"),
        ({"user": "a", "ip": "::1"}, {PRODUCED: 1.0}, "IP entity should not be combined"),
        ({"ip": "::1"}, {PRODUCED: 1.0}, "Invalid configuration key producer_byte_rate"),
        ({"ip": "::1"}, {CONNECTING: 1.5}, "cannot be a fractional value"),
        ({"ip": "::1"}, {CONNECTING: 3e9}, "too large for an INT"),
        ({"ip": "::1"}, {MUTATING: 1.0}, "Invalid configuration key controller_mutation_rate"),
        ({"ip": "broker.example"}, {CONNECTING: 1.0}, "broker.example is not a valid IP or resolvable host"),
        ({"ip": "broker.example"}, {CONNECTING: None}, "broker.example is not a valid IP or resolvable host"),
        ({"user": "a"}, {CONNECTING: 1.0}, "Invalid configuration key connection_creation_rate"),
        ({"user": "a"}, {"nonsense": 1.0}, "Invalid configuration key nonsense"),
        ({"user": "a"}, {PRODUCED: -1.0}, "must be greater than 0"),
        ({"user": "a"}, {PERCENT: float("nan")}, "must be greater than 0"),
        ({"user": "a"}, {PRODUCED: 1.5}, "cannot be a fractional value"),
        ({"user": "a"}, {PRODUCED: float("inf")}, "cannot be a fractional value"),
    ],
)
def test_what_cannot_be_is_refused_alone(stage: NodeStage, entity: Entity, limits: dict[str, Any], why: str) -> None:
    answer = stage.ask(alter((entity, limits), ({"user": "b"}, {PRODUCED: 1.0})))
    assert codes(answer) == [E.INVALID_REQUEST, E.NONE]
    assert why in answer.entries[0].error_message
    assert described(stage) == [({"user": "b"}, {PRODUCED: 1.0})]


def test_an_entity_that_is_named_twice_is_left_alone(stage: NodeStage) -> None:
    assert (
        codes(stage.ask(alter(({"user": "a"}, {PRODUCED: 1.0}), ({"user": "a"}, {FETCHED: 1.0}))))
        == [E.INVALID_REQUEST] * 2
    )
    assert described(stage) == []


def test_many_are_set_some_at_a_time(stage: NodeStage) -> None:
    users = [f"u{n:03}" for n in range(450)]
    asked = alter(*(({"user": name}, {PRODUCED: 1.0 if name != "u300" else -1.0}) for name in users))
    assert codes(stage.ask(asked)) == [E.INVALID_REQUEST if name == "u300" else E.NONE for name in users]
    assert [entity["user"] for entity, _ in described(stage)] == [name for name in users if name != "u300"]


def test_a_producer_waits_until_it_is_within_its_quota(stage: NodeStage) -> None:
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    stage.ask(alter((ANONYMOUS, {PRODUCED: 1000.0})))
    connection = stage.connect()
    first = stage.send(produce(20_000), 9, connection)
    assert 9_900 < first.answer.throttle_time_ms < 10_500
    behind = stage.send(ListGroupsRequest(), 4, connection)
    stage.run(first.answer.throttle_time_ms - 1)
    assert not behind.answered
    stage.run(1)
    assert behind.answered
    assert behind.answer.throttle_time_ms == 0, "bytes are no matter of other requests"


def test_a_consumer_gets_everything_at_its_pace(stage: NodeStage) -> None:
    """However large the first answer would be: a fetch is given what can ever be within the quota."""
    forever = [CreatableTopicConfig("retention.ms", "-1")]
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1, configs=forever)]))
    for _ in range(20):
        stage.ask(produce(4_000), 9)
    stage.ask(alter((ANONYMOUS, {FETCHED: 1000.0})))
    connection = stage.connect()
    offset, came = 0, [stage.now]
    while offset < 20:
        asked = stage.send(fetch(offset), 12, connection)
        if asked.answer.responses:
            (part,) = asked.answer.responses[0].partitions
            assert (part.error_code, len(part.records) > 4_000) == (E.NONE, True)
            offset += len(part.records) // 4_000
            came.append(stage.now)
        else:
            assert asked.answer.throttle_time_ms > 0
            stage.run(asked.answer.throttle_time_ms)
            assert stage.now - came[-1] < 25_000, "it is stuck"
    assert came[-1] - came[0] > 60_000


def create(*names: str, partitions: int = 1) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, partitions, 1) for name in names])


def test_a_client_that_is_told_of_a_longer_wait_than_an_answer_can_name_is_answered(stage: NodeStage) -> None:
    stage.ask(create("t"))
    stage.ask(alter((ANONYMOUS, {PRODUCED: 1.0})))
    assert stage.ask(produce(3_000_000), 9).throttle_time_ms == 2**31 - 1


def test_a_client_that_made_too_many_partitions_waits_and_makes_no_more(stage: NodeStage) -> None:
    stage.ask(alter((ANONYMOUS, {MUTATING: 1.0})))
    connection = stage.connect()
    made = stage.ask(create("a", "b", partitions=12), 7, connection)
    assert [(each.name, each.error_code) for each in made.topics] == [("a", E.NONE), ("b", E.THROTTLING_QUOTA_EXCEEDED)]
    assert made.throttle_time_ms == 1_000
    behind = stage.send(ListGroupsRequest(), 4, connection)
    stage.run(999)
    assert not behind.answered
    stage.run(1)
    assert behind.answered
    assert stage.ask(create("b"), 7).throttle_time_ms == 0
    old = stage.ask(create("c", partitions=3), 5)
    assert (old.topics[0].error_code, old.throttle_time_ms) == (E.NONE, 4_000), "versions before 6 know no such error"


def test_what_is_planned_again_is_counted_once(stage: NodeStage) -> None:
    stage.create("t", 1)
    stage.ask(alter((ANONYMOUS, {MUTATING: 1.0})))
    stage.hold_commits = True
    grown = stage.send(CreatePartitionsRequest([CreatePartitionsTopic("t", 13, None)], 30_000))
    stage.lose_commit(done=False)
    stage.hold_commits = False
    stage.run()
    assert (grown.answer.results[0].error_code, grown.answer.throttle_time_ms) == (E.NONE, 0)
    deleted = stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState("t")], timeout_ms=30_000))
    assert (deleted.responses[0].error_code, deleted.throttle_time_ms) == (E.THROTTLING_QUOTA_EXCEEDED, 1_000)


def test_the_controller_charges_who_asked_another_node(tmp_path: Path) -> None:
    pair = NodePair(tmp_path)
    pair.ask(1, alter((ANONYMOUS, {MUTATING: 1.0})))
    pair.settle()
    assert pair.ask(2, create("a", partitions=12), 7).throttle_time_ms == 0
    refused = pair.ask(2, create("b"), 7)
    assert (refused.topics[0].error_code, refused.throttle_time_ms) == (E.THROTTLING_QUOTA_EXCEEDED, 1_000)
    assert [mute.until - pair.stages[2].now for mute in pair.stages[2].mutes] == [1_000]
    assert not pair.stages[1].mutes, "the other node is not made to wait"
    pair.stages[2].send(MetadataRequest([MetadataRequestTopic(name="c")], True), connection=pair.stages[2].connect())
    pair.settle()
    assert "c" not in pair.stages[1].node.image.topics


def test_every_node_keeps_to_a_quota_that_the_controller_wrote(tmp_path: Path) -> None:
    pair = NodePair(tmp_path)
    assert codes(pair.ask(2, alter((ANONYMOUS, {PRODUCED: 1000.0})))) == [E.NONE]
    pair.settle()
    for stage in pair.stages.values():
        assert described(stage) == [(dict(ANONYMOUS), {PRODUCED: 1000.0})]
        assert stage.node.throttle.quotas is not None
