"""Configuration: what is refused and how, which layer wins, and what a log is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.config.broker_table import BROKER_CONFIGS, IGNORED, IGNORED_PREFIXES
from ottla.broker.config.key import INT_MAX, LONG_MAX, ConfigRefusedError, Kind, UnknownConfigError, Update, printed
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.broker.config.values import (
    BrokerSettings,
    Source,
    appended,
    check_group,
    check_topic,
    subtracted,
    topic_layers,
    topic_log_config,
    topic_value,
)
from ottla.log.config import LogConfig

DEFAULTS = BrokerSettings.load({})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "1e5", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "٣", "Not a number of type LONG"),
        ("retention.ms", "1_000", "Not a number of type LONG"),
        ("retention.ms", "-2", "Value must be at least -1"),
        ("segment.bytes", "1.5", "Not a number of type INT"),
        ("segment.bytes", "10", "Value must be at least 1048576"),
        ("min.cleanable.dirty.ratio", "1.5", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "nan", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ("preallocate", "maybe", "Expected value to be either true or false"),
        ("cleanup.policy", "compact,foo", "String must be one of: compact, delete"),
        ("compression.type", "GZIP", "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("message.timestamp.type", "x", "String must be one of: CreateTime, LogAppendTime"),
        ("leader.replication.throttled.replicas", "1:x", "must be the literal"),
        ("share.auto.offset.reset", "by_duration:1h", "by_duration:<PnDTnHnMn.nS>"),
        ("share.auto.offset.reset", "by_duration:PT", "by_duration:<PnDTnHnMn.nS>"),
        ("share.auto.offset.reset", f"by_duration:PT{'9' * 400}S", "by_duration:<PnDTnHnMn.nS>"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_kafkas_words(name: str, value: str, sentence: str) -> None:
    key = (TOPIC_CONFIGS | GROUP_CONFIGS)[name]
    with pytest.raises(ConfigRefusedError) as refused:
        key.parse(value)
    assert str(refused.value).startswith("Invalid value ")
    assert f"for configuration {name}: " in str(refused.value)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "typed"),
    [
        ("retention.ms", " 5000 ", 5000),
        ("retention.ms", "+5", 5),
        ("retention.ms", str(LONG_MAX), LONG_MAX),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "compact , delete", ("compact", "delete")),
        ("min.cleanable.dirty.ratio", "1", 1.0),
        ("compression.gzip.level", "-1", -1),
        ("follower.replication.throttled.replicas", "*", ("*",)),
        ("follower.replication.throttled.replicas", "0:1,1:1", ("0:1", "1:1")),
        ("share.auto.offset.reset", "by_duration:P1DT2H3M4.5S", "by_duration:P1DT2H3M4.5S"),
    ],
)
def test_a_value_that_can_be_is_typed(name: str, value: str, typed: object) -> None:
    key = (TOPIC_CONFIGS | GROUP_CONFIGS)[name]
    assert key.parse(value) == typed


@pytest.mark.parametrize("table", [BROKER_CONFIGS, TOPIC_CONFIGS, GROUP_CONFIGS], ids=["broker", "topic", "group"])
def test_every_default_is_legal_and_every_row_has_a_sentence(table: dict) -> None:
    for key in table.values():
        assert key.doc.endswith(".")
        text = printed(key.default)
        if text is not None:
            assert key.parse(text) == key.default
        for name in key.fallbacks:
            assert name in BROKER_CONFIGS or name.startswith("group.streams.")


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    for key in TOPIC_CONFIGS.values():
        try:
            value = key.parse(text)
        except ConfigRefusedError:
            continue
        shown = printed(value)
        assert shown is not None
        assert key.parse(shown) == value


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-3, max_value=1e7))
def test_ordinary_doubles_print_as_java_does(value: float) -> None:
    shown = printed(value)
    assert shown is not None
    assert float(shown) == value
    if value < 1e7:
        assert "E" not in shown


def test_the_largest_double_prints_as_java_does() -> None:
    assert printed(BROKER_CONFIGS["log.cleaner.io.max.bytes.per.second"].default) == "1.7976931348623157E308"


def test_layers_stand_over_each_other() -> None:
    settings = BrokerSettings.load(
        {"log.retention.minutes": "5", "message.max.bytes": "1000"},
        {"message.max.bytes": "3000"},
        {"message.max.bytes": "2000", "log.retention.ms": "7"},
    )
    assert settings["message.max.bytes"] == 3000
    assert [(layer.value, layer.source) for layer in settings.layers("message.max.bytes")] == [
        (3000, Source.DYNAMIC_BROKER),
        (2000, Source.DYNAMIC_DEFAULT_BROKER),
        (1000, Source.STATIC_BROKER),
        (1048588, Source.DEFAULT),
    ]
    assert [(layer.name, layer.value) for layer in settings.layers("log.retention.ms")] == [
        ("log.retention.ms", 7),
        ("log.retention.minutes", 5),
        ("log.retention.hours", 168),
    ]


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.hours": "1", "log.retention.ms": "1"}, 1),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.minutes": "-1"}, -1),
    ],
)
def test_a_property_falls_back_in_its_own_unit(static: dict[str, str], retention_ms: int) -> None:
    settings = BrokerSettings.load(static)
    assert settings["log.retention.ms"] == retention_ms
    assert topic_log_config(settings, {}).retention_ms == retention_ms


def test_the_defaults_are_the_logs_own() -> None:
    assert topic_log_config(DEFAULTS, {}) == LogConfig()


def test_a_topic_follows_the_broker_until_it_says_otherwise() -> None:
    settings = DEFAULTS.with_dynamic({"log.cleanup.policy": "compact", "log.segment.bytes": "2000000"}, {})
    config = topic_log_config(settings, {"segment.bytes": "3000000"})
    assert config.cleanup_policy == frozenset({"compact"})
    assert config.segment_bytes == 3_000_000
    assert [layer.source for layer in topic_layers(settings, {"segment.bytes": "3000000"}, "segment.bytes")] == [
        Source.TOPIC,
        Source.DYNAMIC_BROKER,
        Source.DEFAULT,
    ]
    assert topic_value(settings, {}, "follower.replication.throttled.replicas") == ()


def test_unknown_names_are_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(UnknownConfigError, match=r"log\.retntion\.ms \(did you mean log\.retention\.ms\?\)"):
        BrokerSettings.load({"log.retntion.ms": "1"})
    with pytest.raises(UnknownConfigError, match="Unknown topic config name: zzz"):
        check_topic({"zzz": "1"}, DEFAULTS)
    with pytest.raises(UnknownConfigError, match="Unknown group config name: zzz"):
        check_group({"zzz": "1"}, DEFAULTS)


def test_kafkas_other_properties_are_ignored_and_said_so() -> None:
    settings = BrokerSettings.load(
        {"controller.quorum.voters": "1@a:1", "config.providers": "x", "num.partitions": "3"}
    )
    assert settings.ignored == ("controller.quorum.voters", "config.providers")
    assert settings["num.partitions"] == 3
    assert not any(name in BROKER_CONFIGS for name in IGNORED)
    assert all(prefix.strip() for prefix in IGNORED_PREFIXES)


def test_broker_id_and_node_id_are_one() -> None:
    assert BrokerSettings.load({"broker.id": "7"})["node.id"] == 7
    assert BrokerSettings.load({"node.id": "8"})["broker.id"] == 8
    assert BrokerSettings.load({"node.id": "8"}, {"message.max.bytes": "1"})["broker.id"] == 8


def test_what_needs_a_restart_cannot_be_dynamic() -> None:
    with pytest.raises(ConfigRefusedError, match=r"Cannot update these configs dynamically: \[num\.partitions\]"):
        DEFAULTS.with_dynamic({"num.partitions": "2"}, {})
    assert any(key.update is Update.CLUSTER_WIDE for key in BROKER_CONFIGS.values())


def test_limits_must_stand_in_order() -> None:
    with pytest.raises(
        ConfigRefusedError, match=r"group\.consumer\.min\.session\.timeout\.ms must be less than or equal"
    ):
        BrokerSettings.load({"group.consumer.session.timeout.ms": "1"})
    with pytest.raises(ConfigRefusedError, match="conflict topic config setting"):
        check_topic({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}, DEFAULTS)
    with pytest.raises(ConfigRefusedError, match="Tiered Storage"):
        check_topic({"remote.storage.enable": "true"}, DEFAULTS)
    with pytest.raises(ConfigRefusedError, match=r"greater than or equal to group\.share\.min\.session"):
        check_group({"share.session.timeout.ms": "1"}, DEFAULTS)
    with pytest.raises(ConfigRefusedError, match=r"less than or equal to group\.share\.max\.session"):
        check_group({"share.session.timeout.ms": str(INT_MAX)}, DEFAULTS)


def test_secrets_are_not_in_a_refusal() -> None:
    key = next(key for key in BROKER_CONFIGS.values() if key.kind is Kind.PASSWORD)
    assert "hush" not in str(key._refuse("hush", "no"))


def test_lists_grow_and_shrink() -> None:
    assert appended("delete", "compact") == "delete,compact"
    assert appended("delete,compact", " compact , delete") == "delete,compact"
    assert appended("", "compact") == "compact"
    assert subtracted("delete,compact", "delete") == "compact"
    assert subtracted("delete", "delete,other") == ""
