"""CreateTopics, DeleteTopics, CreatePartitions, Metadata, DescribeTopicPartitions: what is made, refused and shown."""

from pathlib import Path

import pytest

from ottla.metadata.memory import MemoryStore
from ottla.metadata.store import StoreError
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from ottla.protocol.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    RequestCursor,
    TopicRequest,
)
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.wire import ZERO_UUID
from tests.harness.node_stage import NodeStage

NOBODY = b"\1" * 16


def create(stage: NodeStage, *topics: CreatableTopic, validate_only: bool = False) -> list[CreatableTopicResult]:
    return stage.ask(CreateTopicsRequest(list(topics), validate_only=validate_only)).topics


def made(stage: NodeStage, name: str, partitions: int = 1) -> bytes:
    (result,) = create(stage, CreatableTopic(name, partitions, 1))
    assert result.error_code == 0
    return result.topic_id


def assigned(*brokers: tuple[int, list[int]]) -> CreatableTopic:
    return CreatableTopic("t", -1, -1, [CreatableReplicaAssignment(index, ids) for index, ids in brokers])


REFUSED = [
    (CreatableTopic("t", 0, 1), E.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."),
    (CreatableTopic("t", 1, 0), E.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0"),
    (CreatableTopic("t", 1, 2), E.INVALID_REPLICATION_FACTOR, "only 1 broker(s) are registered."),
    (CreatableTopic("", 1, 1), E.INVALID_TOPIC_EXCEPTION, "the empty string is not allowed"),
    (CreatableTopic("..", 1, 1), E.INVALID_TOPIC_EXCEPTION, "'..' is not allowed"),
    (CreatableTopic("a/b", 1, 1), E.INVALID_TOPIC_EXCEPTION, "contains one or more characters other than"),
    (CreatableTopic("ü", 1, 1), E.INVALID_TOPIC_EXCEPTION, "contains one or more characters other than"),
    (CreatableTopic("x" * 250, 1, 1), E.INVALID_TOPIC_EXCEPTION, "longer than the max allowed length 249"),
    (CreatableTopic("taken", 1, 1), E.TOPIC_ALREADY_EXISTS, "Topic 'taken' already exists."),
    (CreatableTopic("da_sh", 1, 1), E.INVALID_TOPIC_EXCEPTION, "collides with existing topic: da.sh"),
    (CreatableTopic("__cluster_metadata", 1, 1), E.INVALID_REQUEST, "is prohibited"),
    (CreatableTopic("t", 1, 1, [CreatableReplicaAssignment(0, [1])]), E.INVALID_REQUEST, "replication factor was not"),
    (CreatableTopic("t", 1, -1, [CreatableReplicaAssignment(0, [1])]), E.INVALID_REQUEST, "numPartitions was not"),
    (assigned((0, [2])), E.INVALID_REPLICA_ASSIGNMENT, "includes broker 2, but no such broker is registered."),
    (assigned((0, [1, 1])), E.INVALID_REPLICA_ASSIGNMENT, "includes the broker 1 more than once."),
    (assigned((0, [])), E.INVALID_REPLICA_ASSIGNMENT, "includes an empty replica list."),
    (assigned((0, [1]), (2, [1])), E.INVALID_REPLICA_ASSIGNMENT, "consecutive 0-based integer sequence"),
    (assigned((0, [1]), (0, [1])), E.INVALID_REPLICA_ASSIGNMENT, "Found multiple manual partition assignments"),
    (CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("nope", "1")]), E.INVALID_CONFIG, "Unknown topic config name"),
    (CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("flush.ms", None)]), E.INVALID_CONFIG, "Null value"),
    (CreatableTopic("t", 1, 1, [], [CreatableTopicConfig("flush.ms", "x")]), E.INVALID_CONFIG, "Not a number"),
    (CreatableTopic("t", 10_001, 1), E.POLICY_VIOLATION, "Excessively large number of partitions per request."),
]


@pytest.mark.parametrize(("topic", "error", "sentence"), REFUSED)
def test_a_topic_that_cannot_be_is_refused(stage: NodeStage, topic: CreatableTopic, error: E, sentence: str) -> None:
    made(stage, "taken")
    made(stage, "da.sh")
    generation = stage.store.generation
    (result,) = create(stage, topic)
    assert result.error_code == error
    assert result.error_message is not None
    assert sentence in result.error_message
    assert stage.store.generation == generation


def test_good_topics_of_a_request_are_made_in_one_commit_beside_bad_ones(stage: NodeStage) -> None:
    generation = stage.store.generation
    results = create(
        stage, *(CreatableTopic(name, partitions, 1) for name, partitions in (("a", 2), ("b", 0), ("c", -1), ("c", 1)))
    )
    assert [(result.name, result.error_code) for result in results] == [
        ("a", E.NONE),
        ("b", E.INVALID_PARTITIONS),
        ("c", E.INVALID_REQUEST),
    ]
    assert results[2].error_message == "Duplicate topic name."
    assert stage.store.generation == generation + 1
    assert sorted(stage.node.replicas.by_name) == ["a"]


def test_validate_only_makes_nothing_and_says_everything(stage: NodeStage) -> None:
    config = [CreatableTopicConfig("retention.ms", "7"), CreatableTopicConfig("retention.ms", "8")]
    (result,) = create(stage, CreatableTopic("t", 3, -1, [], config), validate_only=True)
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    assert result.configs is not None
    assert {c.name: (c.value, c.config_source) for c in result.configs}["retention.ms"] == ("8", 1)
    assert result.topic_id != ZERO_UUID
    assert stage.node.replicas.by_name == {}
    assert stage.store.list("topic/") == []


def test_a_manual_assignment_of_one_node_is_taken(stage: NodeStage) -> None:
    (result,) = create(stage, assigned((1, [1]), (0, [1])))
    assert (result.error_code, result.num_partitions) == (0, 2)


def test_the_node_holds_so_many_partitions_and_no_more(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", ottla_partitions_max="5")
    made(stage, "a", 3)
    results = create(stage, CreatableTopic("b", 2, 1), CreatableTopic("c", 1, 1))
    assert {result.error_code for result in results} == {E.POLICY_VIOLATION}
    assert results[0].error_message is not None
    assert "ottla.partitions.max" in results[0].error_message
    grown = stage.ask(CreatePartitionsRequest([CreatePartitionsTopic("a", 6, None)])).results[0]
    assert grown.error_code == E.POLICY_VIOLATION
    stage.ask(MetadataRequest([MetadataRequestTopic(name=name) for name in "xyz"]))
    assert sorted(stage.node.replicas.by_name) == ["a", "x", "y"]
    assert create(stage, CreatableTopic("d", 1, 1))[0].error_code == E.POLICY_VIOLATION


def test_a_store_that_fails_is_told_and_nothing_changes(stage: NodeStage, monkeypatch: pytest.MonkeyPatch) -> None:
    made(stage, "a")

    def full(*_: object) -> int:
        raise StoreError("the disk is full")

    monkeypatch.setattr(MemoryStore, "commit", full)
    assert create(stage, CreatableTopic("b", 1, 1))[0].error_code == E.KAFKA_STORAGE_ERROR
    deleted = stage.ask(DeleteTopicsRequest(topics=[DeleteTopicState("a")])).responses[0]
    assert (deleted.error_code, deleted.error_message) == (E.KAFKA_STORAGE_ERROR, "the disk is full")
    grown = stage.ask(CreatePartitionsRequest([CreatePartitionsTopic("a", 3, None)])).results[0]
    assert grown.error_code == E.KAFKA_STORAGE_ERROR
    assert {name: len(topic.partitions) for name, topic in stage.node.replicas.by_name.items()} == {"a": 1}


# ---- CreatePartitions ----------------------------------------------------------------------------------------------


def grow(
    stage: NodeStage, total: int, assignments: list[list[int]] | None = None, *, validate_only: bool = False
) -> tuple[int, str | None]:
    asked = None if assignments is None else [CreatePartitionsAssignment(ids) for ids in assignments]
    request = CreatePartitionsRequest([CreatePartitionsTopic("t", total, asked)], validate_only=validate_only)
    result = stage.ask(request).results[0]
    return result.error_code, result.error_message


def test_a_topic_grows_and_keeps_its_records(stage: NodeStage) -> None:
    made(stage, "t", 2)
    stage.append("t", 1)
    assert grow(stage, 4, validate_only=True) == (0, None)
    assert len(stage.node.replicas.by_name["t"].partitions) == 2
    assert grow(stage, 4) == (0, None)
    stage.append("t", 3)
    stage.restart()
    topic = stage.node.replicas.by_name["t"]
    assert [p.log.log_end_offset for p in topic.partitions.values()] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("total", "assignments", "error", "sentence"),
    [
        (2, None, E.INVALID_PARTITIONS, "Topic already has 2 partition(s)."),
        (1, None, E.INVALID_PARTITIONS, "currently has 2 partition(s); 1 would not be an increase."),
        (-1, None, E.INVALID_PARTITIONS, "-1 would not be an increase."),
        (4, [[1]], E.INVALID_REPLICA_ASSIGNMENT, "2 additional partition(s), but only 1 assignment(s)"),
        (4, [[1], [2]], E.INVALID_REPLICA_ASSIGNMENT, "broker 2, but no such broker is registered"),
        (20_000, None, E.POLICY_VIOLATION, "Excessively large"),
    ],
)
def test_growth_that_cannot_be_is_refused(
    stage: NodeStage, total: int, assignments: list[list[int]] | None, error: E, sentence: str
) -> None:
    made(stage, "t", 2)
    code, message = grow(stage, total, assignments)
    assert code == error
    assert message is not None
    assert sentence in message


def test_growth_of_what_is_not_there_or_not_ours_to_grow(stage: NodeStage) -> None:
    assert grow(stage, 3) == (E.UNKNOWN_TOPIC_OR_PARTITION, None)
    stage.change(stage.node.topics.creating_internal(stage.now, "__consumer_offsets"))
    asked = [CreatePartitionsTopic("__consumer_offsets", 60, None)]
    assert stage.ask(CreatePartitionsRequest(asked)).results[0].error_code == E.INVALID_REQUEST
    twice = [CreatePartitionsTopic("t", 3, None), CreatePartitionsTopic("t", 4, None)]
    results = stage.ask(CreatePartitionsRequest(twice)).results
    assert [(r.name, r.error_message) for r in results] == [("t", "Duplicate topic name.")]


# ---- DeleteTopics --------------------------------------------------------------------------------------------------


def delete(stage: NodeStage, *states: DeleteTopicState) -> list[DeletableTopicResult]:
    return stage.ask(DeleteTopicsRequest(topics=list(states))).responses


def test_topics_go_by_name_and_by_id(stage: NodeStage) -> None:
    first, second = made(stage, "a"), made(stage, "b")
    results = delete(stage, DeleteTopicState("a"), DeleteTopicState(None, second))
    assert sorted((r.name, r.topic_id, r.error_code, r.error_message) for r in results) == [
        ("a", first, 0, None),
        ("b", second, 0, None),
    ]
    assert stage.node.replicas.by_name == {}
    assert stage.node.image.topics_by_id == {}
    assert stage.node.topics.colliding_with("a") is None


def test_topics_named_badly_stay(stage: NodeStage) -> None:
    topic_id = made(stage, "a")
    cases: list[tuple[list[DeleteTopicState], E]] = [
        ([DeleteTopicState("none")], E.UNKNOWN_TOPIC_OR_PARTITION),
        ([DeleteTopicState(None, NOBODY)], E.UNKNOWN_TOPIC_ID),
        ([DeleteTopicState(None)], E.INVALID_REQUEST),
        ([DeleteTopicState("a", topic_id)], E.INVALID_REQUEST),
        ([DeleteTopicState("a"), DeleteTopicState("a")], E.INVALID_REQUEST),
        ([DeleteTopicState("a"), DeleteTopicState(None, topic_id)], E.INVALID_REQUEST),
        ([DeleteTopicState(None, topic_id), DeleteTopicState(None, topic_id)], E.INVALID_REQUEST),
    ]
    for states, error in cases:
        results = delete(stage, *states)
        assert [result.error_code for result in results] == [error], states
    assert "a" in stage.node.replicas.by_name


@pytest.mark.parametrize(("version", "error"), [(1, E.INVALID_REQUEST), (3, E.TOPIC_DELETION_DISABLED)])
def test_deletion_can_be_forbidden(tmp_path: Path, version: int, error: E) -> None:
    stage = NodeStage(tmp_path / "node", delete_topic_enable="false")
    made(stage, "a")
    assert stage.ask(DeleteTopicsRequest(["a"]), version).responses[0].error_code == error
    assert "a" in stage.node.replicas.by_name


# ---- Metadata ------------------------------------------------------------------------------------------------------


def metadata(stage: NodeStage, *topics: MetadataRequestTopic, version: int = 13, auto: bool = True) -> MetadataResponse:
    return stage.ask(MetadataRequest(list(topics), allow_auto_topic_creation=auto), version)


def test_an_unknown_topic_is_made_and_there_the_second_time(stage: NodeStage) -> None:
    asked = MetadataRequestTopic(name="fresh")
    assert metadata(stage, asked, auto=False).topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata(stage, asked, auto=False).topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert metadata(stage, asked).topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    (topic,) = metadata(stage, asked, auto=False).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)


def test_internal_topics_are_made_as_the_broker_makes_them(stage: NodeStage) -> None:
    metadata(stage, MetadataRequestTopic(name="__consumer_offsets"))
    assert metadata(stage, MetadataRequestTopic(name="__consumer_offsets")).topics[0].is_internal
    topic = stage.node.replicas.by_name["__consumer_offsets"]
    assert len(topic.partitions) == 50
    assert topic.log_config.cleanup_policy == frozenset({"compact"})
    assert topic.log_config.segment_bytes == 104_857_600


def test_auto_creation_can_be_off(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", auto_create_topics_enable="false")
    metadata(stage, MetadataRequestTopic(name="fresh"))
    assert stage.node.replicas.by_name == {}


def test_names_that_cannot_be_topics_are_never_made(stage: NodeStage) -> None:
    made(stage, "da.sh")
    answer = metadata(stage, *(MetadataRequestTopic(name=name) for name in ("a b", "", "..", "da_sh")))
    assert [topic.error_code for topic in answer.topics] == [E.INVALID_TOPIC_EXCEPTION] * 3 + [
        E.UNKNOWN_TOPIC_OR_PARTITION
    ]
    assert sorted(stage.node.replicas.by_name) == ["da.sh"]


def test_ids_rule_over_names(stage: NodeStage) -> None:
    topic_id = made(stage, "a")
    made(stage, "b")
    answer = metadata(
        stage,
        MetadataRequestTopic(topic_id, None),
        MetadataRequestTopic(NOBODY, None),
        MetadataRequestTopic(ZERO_UUID, "b"),
    )
    assert [(t.error_code, t.name, t.topic_id) for t in answer.topics] == [
        (0, "a", topic_id),
        (E.UNKNOWN_TOPIC_ID, None, NOBODY),
    ]


def test_a_topic_without_name_and_id_is_refused(stage: NodeStage) -> None:
    answer = metadata(stage, MetadataRequestTopic(ZERO_UUID, None))
    assert (answer.error_code, answer.brokers) == (E.INVALID_REQUEST, [])


def test_all_topics_are_asked_for_differently_in_version_0(stage: NodeStage) -> None:
    made(stage, "a")
    assert [t.name for t in stage.ask(MetadataRequest([]), 0).topics] == ["a"]
    assert stage.ask(MetadataRequest([]), 1).topics == []
    assert [t.name for t in stage.ask(MetadataRequest(None), 1).topics] == ["a"]


def test_authorized_operations_are_bits_or_not_asked_for(stage: NodeStage) -> None:
    made(stage, "a")
    topics = [MetadataRequestTopic(name="a"), MetadataRequestTopic(name="none")]
    request = MetadataRequest(topics, False, True, True)
    answer = stage.ask(request, 9)
    assert {topic.topic_authorized_operations for topic in answer.topics} == {3576}
    assert answer.cluster_authorized_operations == 8096
    plain = stage.ask(MetadataRequest(topics, False), 9)
    assert {t.topic_authorized_operations for t in plain.topics} == {-(1 << 31)}
    assert plain.cluster_authorized_operations == -(1 << 31)


# ---- DescribeTopicPartitions ---------------------------------------------------------------------------------------


def page(
    stage: NodeStage, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    at = None if cursor is None else RequestCursor(*cursor)
    return stage.ask(DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, at))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 100])
@pytest.mark.parametrize("names", [[], ["c", "a", "b", "c"]])
def test_pages_together_are_everything_once(stage: NodeStage, limit: int, names: list[str]) -> None:
    for name, partitions in (("a", 3), ("b", 1), ("c", 3)):
        made(stage, name, partitions)
    seen: list[tuple[str | None, int]] = []
    cursor: tuple[str, int] | None = None
    for _ in range(20):
        answer = page(stage, names, limit, cursor)
        found = [(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions]
        assert len(found) <= limit
        seen += found
        if answer.next_cursor is None:
            break
        cursor = answer.next_cursor.topic_name, answer.next_cursor.partition_index
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2)]


def test_unknown_topics_are_answered_and_a_full_page_stops_before_them(stage: NodeStage) -> None:
    made(stage, "full", 3)
    answer = page(stage, ["none", "full"])
    assert [(t.name, t.error_code) for t in answer.topics] == [("full", 0), ("none", E.UNKNOWN_TOPIC_OR_PARTITION)]
    assert {t.topic_authorized_operations for t in answer.topics} == {3576}
    answer = page(stage, ["none", "full"], 3)
    assert answer.next_cursor is not None
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("none", 0)


@pytest.mark.parametrize("cursor", [("full", -1), ("b", 0)])
def test_a_cursor_must_fit_the_request(stage: NodeStage, cursor: tuple[str, int]) -> None:
    made(stage, "full")
    assert [topic.error_code for topic in page(stage, ["full"], 5, cursor).topics] == [E.INVALID_REQUEST]
