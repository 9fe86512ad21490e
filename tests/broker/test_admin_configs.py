"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: seen, changed, in force, kept."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api.k32_describe_configs import PRIVATE_KEY
from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.log.answers import AppendRefusedError
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from ottla.protocol.messages.incremental_alter_configs import AlterableConfig as Change
from ottla.protocol.messages.incremental_alter_configs import AlterConfigsResource as Changes
from ottla.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from ottla.protocol.messages.list_config_resources import ListConfigResourcesRequest
from tests.harness.node_stage import NodeStage

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def stage(tmp_path: Path) -> NodeStage:
    stage = NodeStage(tmp_path / "node", num_partitions="3")
    stage.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)]))
    return stage


def change(
    stage: NodeStage, kind: int, name: str, *changes: tuple[str, int, str | None], validate_only: bool = False
) -> tuple[int, str | None]:
    asked = Changes(kind, name, [Change(key, operation, value) for key, operation, value in changes])
    (answer,) = stage.ask(IncrementalAlterConfigsRequest([asked], validate_only)).responses
    return answer.error_code, answer.error_message


def replace(stage: NodeStage, kind: int, name: str, **values: str | None) -> tuple[int, str | None]:
    asked = [AlterableConfig(key.replace("_", "."), value) for key, value in values.items()]
    (answer,) = stage.ask(AlterConfigsRequest([AlterConfigsResource(kind, name, asked)])).responses
    return answer.error_code, answer.error_message


def describe(stage: NodeStage, kind: int, name: str, *keys: str) -> DescribeConfigsResult:
    asked = DescribeConfigsResource(kind, name, list(keys) if keys else None)
    (result,) = stage.ask(DescribeConfigsRequest([asked], True, True)).results
    return result


def seen(stage: NodeStage, kind: int, name: str, key: str) -> tuple[str | None, int, list[tuple[str, str | None, int]]]:
    (config,) = describe(stage, kind, name, key).configs
    return config.value, config.config_source, [(s.name, s.value, s.source) for s in config.synonyms]


# ---- describing ----------------------------------------------------------------------------------------------------


def test_every_property_is_described_with_type_and_sentence(stage: NodeStage) -> None:
    own = {**BROKER_CONFIGS, PRIVATE_KEY.name: PRIVATE_KEY}
    for kind, name, table in ((TOPIC, "t", TOPIC_CONFIGS), (BROKER, "1", own), (GROUP, "g", GROUP_CONFIGS)):
        result = describe(stage, kind, name)
        assert (result.error_code, result.resource_type, result.resource_name) == (0, kind, name)
        assert [config.name for config in result.configs] == list(table)
        for config in result.configs:
            assert config.documentation
            assert config.config_type == table[config.name].kind
            assert config.is_sensitive == (config.config_type == 9)
            assert not (config.is_sensitive and config.value is not None)


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path / "node", ottla_cluster_secret="hush")
    (config,) = describe(stage, BROKER, "1", "ottla.cluster.secret").configs
    assert (config.value, config.is_sensitive, config.config_source) == (None, True, 4)
    assert [synonym.value for synonym in config.synonyms] == [None]


def test_the_places_in_use_are_shown(stage: NodeStage) -> None:
    assert seen(stage, BROKER, "1", "advertised.listeners")[:2] == ("PLAINTEXT://broker.example:9092", 4)
    assert seen(stage, BROKER, "1", "log.dirs")[:2] == (str(stage.directory), 4)


def test_only_what_was_asked_for_is_described(stage: NodeStage) -> None:
    assert [c.name for c in describe(stage, TOPIC, "t", "retention.ms", "nope", "retention.ms").configs] == [
        "retention.ms"
    ]
    assert describe(stage, TOPIC, "t", "nope").configs == []
    (plain,) = stage.ask(DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "t", [])])).results
    assert len(plain.configs) == len(TOPIC_CONFIGS)
    assert all(config.synonyms == [] and config.documentation is None for config in plain.configs)


def test_layers_are_shown_as_synonyms(stage: NodeStage) -> None:
    assert seen(stage, BROKER, "1", "num.partitions") == (
        "3",
        4,
        [("num.partitions", "3", 4), ("num.partitions", "1", 5)],
    )
    assert seen(stage, BROKER, "1", "log.retention.ms") == (None, 5, [])
    assert seen(stage, TOPIC, "t", "retention.ms") == ("604800000", 5, [])
    assert change(stage, BROKER, "", ("log.retention.ms", SET, "9200000")) == (0, None)
    assert change(stage, BROKER, "1", ("log.retention.ms", SET, "7200000")) == (0, None)
    assert change(stage, TOPIC, "t", ("retention.ms", SET, "5000")) == (0, None)
    below = [("log.retention.ms", "7200000", 2), ("log.retention.ms", "9200000", 3), ("log.retention.hours", "168", 5)]
    assert seen(stage, BROKER, "1", "log.retention.ms") == ("7200000", 2, below)
    assert seen(stage, TOPIC, "t", "retention.ms") == ("5000", 1, [("retention.ms", "5000", 1), *below])
    assert [(c.name, c.value, c.config_source) for c in describe(stage, BROKER, "").configs] == [
        ("log.retention.ms", "9200000", 3)
    ]


def test_groups_show_what_the_broker_sets_for_them(stage: NodeStage) -> None:
    key = "consumer.session.timeout.ms"
    assert seen(stage, GROUP, "g", key) == ("45000", 5, [(f"group.{key}", "45000", 5)])
    assert change(stage, GROUP, "g", (key, SET, "46000")) == (0, None)
    assert seen(stage, GROUP, "g", key) == ("46000", 8, [(key, "46000", 8), (f"group.{key}", "45000", 5)])


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "none", E.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", E.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", E.INVALID_REQUEST),
        (BROKER, "x", E.INVALID_REQUEST),
        (LOGGER, "1", E.NONE),
        (LOGGER, "", E.INVALID_REQUEST),
        (GROUP, "", E.INVALID_REQUEST),
        (METRICS, "m", E.INVALID_REQUEST),
        (77, "x", E.INVALID_REQUEST),
    ],
)
def test_resources_that_are_not_there(stage: NodeStage, kind: int, name: str, error: E) -> None:
    result = describe(stage, kind, name)
    assert (result.error_code, result.configs) == (error, [])
    assert bool(result.error_message) == (error != E.NONE)


# ---- changing ------------------------------------------------------------------------------------------------------

UNCHANGED: list[tuple[int, str, list[tuple[str, int, str | None]], E, str]] = [
    (TOPIC, "t", [("nope", SET, "1")], E.INVALID_CONFIG, "Unknown topic config name: nope"),
    (TOPIC, "t", [("retention.ms", SET, "1"), ("flush.ms", SET, "x")], E.INVALID_CONFIG, "Not a number of type LONG"),
    (TOPIC, "t", [("flush.ms", SET, None)], E.INVALID_REQUEST, "Null value not supported for : flush.ms"),
    (TOPIC, "t", [("flush.ms", SET, "1"), ("flush.ms", DELETE, None)], E.INVALID_REQUEST, "duplicate config keys"),
    (TOPIC, "t", [("flush.ms", APPEND, "1")], E.INVALID_CONFIG, "Can't APPEND to key flush.ms because its type is not"),
    (TOPIC, "t", [("flush.ms", SUBTRACT, "1")], E.INVALID_CONFIG, "Can't SUBTRACT to key flush.ms"),
    (TOPIC, "t", [("flush.ms", 9, "1")], E.INVALID_REQUEST, "Unknown operation 9"),
    (TOPIC, "none", [("flush.ms", SET, "1")], E.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'none' does not exist."),
    (TOPIC, "a b", [("flush.ms", SET, "1")], E.INVALID_TOPIC_EXCEPTION, "Topic name is invalid"),
    (TOPIC, "", [("flush.ms", SET, "1")], E.INVALID_REQUEST, "Default topic resources are not allowed."),
    (BROKER, "1", [("num.partitions", SET, "1")], E.INVALID_REQUEST, "Cannot update these configs dynamically"),
    (BROKER, "", [("log.retention.ms", SET, "x")], E.INVALID_REQUEST, "Not a number of type LONG"),
    (BROKER, "1", [("nope", SET, "1")], E.INVALID_CONFIG, "Unknown broker config name: nope"),
    (BROKER, "2", [("log.retention.ms", SET, "1")], E.INVALID_REQUEST, "expected 1, but received 2"),
    (BROKER, "x", [("log.retention.ms", SET, "1")], E.INVALID_REQUEST, "Node id must be an integer, but it is: x"),
    (GROUP, "", [("share.isolation.level", SET, "read_committed")], E.INVALID_REQUEST, "Default group resources"),
    (GROUP, "g", [("nope", SET, "1")], E.INVALID_CONFIG, "Unknown group config name: nope"),
    (GROUP, "g", [("consumer.session.timeout.ms", SET, "1")], E.INVALID_CONFIG, "must be greater than or equal to"),
    (LOGGER, "1", [("kafka", SET, "DEBUG")], E.INVALID_CONFIG, "Logger kafka does not exist!"),
    (METRICS, "m", [("interval.ms", SET, "100")], E.INVALID_REQUEST, "client metrics"),
    (77, "x", [("flush.ms", SET, "1")], E.INVALID_REQUEST, "Unknown resource type 77"),
]


@pytest.mark.parametrize(("kind", "name", "changes", "error", "sentence"), UNCHANGED)
def test_a_change_that_cannot_be_changes_nothing(
    stage: NodeStage, kind: int, name: str, changes: list[Any], error: E, sentence: str
) -> None:
    generation = stage.store.generation
    code, message = change(stage, kind, name, *changes)
    assert (code, stage.store.generation) == (error, generation)
    assert message is not None
    assert sentence in message


def test_a_resource_named_twice_is_refused_twice_and_others_change(stage: NodeStage) -> None:
    twice = [Changes(TOPIC, "t", [Change("flush.ms", SET, value)]) for value in "12"]
    other = Changes(GROUP, "g", [Change("share.isolation.level", SET, "read_committed")])
    answers = stage.ask(IncrementalAlterConfigsRequest([*twice, other])).responses
    assert [answer.error_code for answer in answers] == [E.INVALID_REQUEST, E.INVALID_REQUEST, 0]
    assert answers[0].error_message == "Each resource must appear at most once."
    assert seen(stage, TOPIC, "t", "flush.ms")[1] == 5


def test_validating_changes_nothing(stage: NodeStage) -> None:
    generation = stage.store.generation
    assert change(stage, TOPIC, "t", ("flush.ms", SET, "5"), validate_only=True) == (0, None)
    assert change(stage, BROKER, "", ("message.max.bytes", SET, "5"), validate_only=True) == (0, None)
    assert stage.store.generation == generation
    assert stage.node.settings["message.max.bytes"] == 1048588


def test_lists_are_extended_and_cut(stage: NodeStage) -> None:
    policy = "cleanup.policy"
    assert change(stage, TOPIC, "t", (policy, APPEND, "compact")) == (0, None)
    assert seen(stage, TOPIC, "t", policy)[0] == "delete,compact"
    assert stage.node.replicas.by_name["t"].log_config.compacted
    assert change(stage, TOPIC, "t", (policy, SUBTRACT, "delete")) == (0, None)
    assert seen(stage, TOPIC, "t", policy)[0] == "compact"
    assert change(stage, TOPIC, "t", (policy, DELETE, None)) == (0, None)
    assert seen(stage, TOPIC, "t", policy)[0] == "delete"


def test_the_old_way_replaces_everything(stage: NodeStage) -> None:
    assert change(stage, TOPIC, "t", ("flush.ms", SET, "5"), ("retention.ms", SET, "7")) == (0, None)
    assert replace(stage, TOPIC, "t", retention_ms="9") == (0, None)
    assert stage.node.image.topics["t"].configs == {"retention.ms": "9"}
    assert replace(stage, TOPIC, "t", nope="9")[0] == E.INVALID_CONFIG
    assert replace(stage, TOPIC, "t", flush_ms=None)[0] == E.INVALID_REQUEST
    assert replace(stage, LOGGER, "1", kafka="DEBUG") == (E.INVALID_REQUEST, "Unknown resource type 8")
    assert replace(stage, TOPIC, "t") == (0, None)
    assert stage.node.image.topics["t"].configs == {}


def test_a_change_holds_at_once_and_after_a_restart(stage: NodeStage) -> None:
    for life in range(2):
        if life == 0:
            stage.append("t", value=b"x" * 2000)
            assert change(stage, BROKER, "", ("message.max.bytes", SET, "1000")) == (0, None)
            assert change(stage, GROUP, "g", ("share.delivery.count.limit", SET, "3")) == (0, None)
        else:
            stage.restart(clean=False)
        with pytest.raises(AppendRefusedError) as refused:
            stage.append("t", value=b"x" * 2000)
        assert refused.value.error_code == E.MESSAGE_TOO_LARGE
        assert seen(stage, GROUP, "g", "share.delivery.count.limit")[0] == "3"
    assert change(stage, TOPIC, "t", ("max.message.bytes", SET, "5000")) == (0, None)
    stage.append("t", value=b"x" * 2000)
    assert change(stage, BROKER, "", ("message.max.bytes", DELETE, None)) == (0, None)
    assert change(stage, TOPIC, "t", ("max.message.bytes", DELETE, None)) == (0, None)
    stage.append("t", value=b"x" * 6000)
    assert stage.store.list("config/broker/") == []


def test_a_shorter_retention_removes_old_records_soon(stage: NodeStage) -> None:
    for _ in range(3):
        stage.append("t", timestamp=stage.now - 60_000)
    stage.run(1000)
    partition = stage.node.replicas.by_name["t"].partitions[0]
    assert partition.log.log_start_offset == 0
    assert change(stage, TOPIC, "t", ("retention.ms", SET, "1000")) == (0, None)
    stage.run(400_000)
    assert partition.log.log_start_offset == 3


# ---- listing -------------------------------------------------------------------------------------------------------


def test_resources_are_listed_by_type(stage: NodeStage) -> None:
    assert change(stage, GROUP, "g", ("share.isolation.level", SET, "read_committed")) == (0, None)

    def listed(*kinds: int) -> set[tuple[int, str]]:
        answer = stage.ask(ListConfigResourcesRequest(list(kinds)))
        assert answer.error_code == 0
        return {(r.resource_type, r.resource_name) for r in answer.config_resources}

    assert listed() == {(TOPIC, "t"), (BROKER, "1"), (LOGGER, "1"), (GROUP, "g")}
    assert listed(GROUP, TOPIC) == {(TOPIC, "t"), (GROUP, "g")}
    assert listed(METRICS) == set()
    assert stage.ask(ListConfigResourcesRequest([77])).error_code == E.UNSUPPORTED_VERSION
