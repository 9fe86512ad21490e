"""Every setting is read by the code of a node, or its documentation says that it has no effect."""

from functools import cache

from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.broker.config.unserved import is_protective
from ottla.broker.config.values import BrokerSettings
from tests.harness.settings_in_use import is_named, read_settings

TABLES = (TOPIC_CONFIGS, GROUP_CONFIGS, BROKER_CONFIGS)
KEYS = [key for table in TABLES for key in table.values()]
NO_EFFECT, NOT_YET = "No effect: ", "Not served yet: "
UNITS = {".ms": "milliseconds", ".seconds": "seconds", ".minutes": "minutes", ".hours": "hours"}


@cache
def read() -> set[str]:
    """The settings that the code reads. Not found on import, as every process of a test run imports this."""
    return read_settings(*TABLES) | {"listener.security.protocol.map"}  # by unserved.py, which names others in vain


def test_a_setting_is_read_or_says_that_it_has_no_effect() -> None:
    assert [key.name for key in KEYS if key.has_effect and key.name not in read()] == [], "read by no code"
    assert [key.name for key in KEYS if not key.has_effect and key.name in read()] == [], "read, although inert"
    for key in KEYS:
        assert key.doc.startswith((NO_EFFECT, NOT_YET)) != key.has_effect, key
        assert key.doc.startswith(NOT_YET) == (is_protective(key.name) and not key.has_effect), key


def test_a_setting_without_effect_is_named_at_the_start() -> None:
    given = {"num.io.threads": "8", "num.partitions": "3", "num.network.threads": "3", "metric.reporters": ""}
    assert BrokerSettings.load(given).ignored == ("num.io.threads", "num.network.threads", "metric.reporters")


def test_the_search_finds_what_is_read_and_nothing_else() -> None:
    assert is_named("num.partitions")
    assert is_named("transaction.state.log.min.isr")  # f"{prefix}.min.isr"
    assert is_named("group.share.max.session.timeout.ms")  # f"group.{kind}.max.{rest}"
    assert not is_named("group.streams.max.session.timeout.ms")
    assert not is_named("broker.heartbeat.interval.ms")
    assert {"log.retention.hours", "log.cleaner.min.cleanable.ratio", "log.roll.jitter.ms"} <= read()


def test_a_sentence_stands_alone_and_has_its_unit() -> None:
    """The documentation is in the order of the alphabet: no sentence can refer to the one before it."""
    for key in KEYS:
        assert key.doc[0].isupper(), key
        assert key.doc.endswith("."), key
        assert not key.doc.startswith(("Such", "That", "It ", "How often that")), key
        assert " set for it" not in key.doc, key
        missing = [unit for end, unit in UNITS.items() if key.name.endswith(end) and unit not in key.doc]
        assert not missing or not key.has_effect, key
