"""The configuration in force: who hears of a change, in which order, and what a change leaves alone."""

import random
from pathlib import Path

import pytest

from ottla.broker.cluster.metadata import Metadata, Planned
from ottla.broker.completions import Completions
from ottla.broker.config.live import EVERY_BROKER, LiveSettings, Subscriber
from ottla.broker.config.values import BrokerSettings, ConfigRefusedError
from ottla.broker.coordination import InUse
from ottla.broker.effects import Outbox
from ottla.broker.schedule import Schedule
from ottla.machine import Millis, WallClock
from ottla.metadata.image import MetadataDelta
from ottla.metadata.memory import MemoryStore
from tests.harness.node_stage import NodeStage

from test_admin_configs import GROUP, SET, change  # isort: skip


class Hearer(Subscriber):
    """Writes down what it is told, and what holds then."""

    def __init__(self, name: str, told: list[tuple[str, object]], settings: LiveSettings) -> None:
        self.name = name
        self.told = told
        self.settings = settings

    def settings_changed(self, now: Millis) -> None:
        self.told.append((self.name, self.settings["log.retention.ms"]))

    def group_configured(self, group_id: str) -> None:
        self.told.append((self.name, self.settings.of_group(group_id)))


def make(settings: LiveSettings, planned: Planned) -> None:
    """Commit what the plan wants."""
    settings._metadata.at_once(0, planned)


def unexpected(what: str, error: Exception) -> None:
    raise error


@pytest.fixture
def settings() -> LiveSettings:
    def tell(now: Millis, delta: MetadataDelta) -> None:
        metadata.move(delta)
        live.follow(now, delta)

    schedule = Schedule(unexpected)
    completions = Completions(schedule, unexpected)
    metadata = Metadata(MemoryStore(), Outbox(), schedule, completions, tell, node_id=4, entropy=random.Random(1))
    live = LiveSettings(BrokerSettings.load({"node.id": "4"}), metadata, WallClock(), print)
    return live


def test_all_are_told_in_the_order_of_their_names_when_the_change_holds(settings: LiveSettings) -> None:
    told: list[tuple[str, object]] = []
    for name in ("b", "c", "a"):
        settings.subscribe(name, Hearer(name, told, settings))
    make(settings, settings.altering_broker(EVERY_BROKER, {"log.retention.ms": "7"}))
    assert told == [("a", 7), ("b", 7), ("c", 7)]
    told.clear()
    make(settings, settings.altering_group(0, "g", {"share.auto.offset.reset": "earliest"}, "a test"))
    assert told == [(name, {"share.auto.offset.reset": "earliest"}) for name in "abc"]


def test_nobody_hears_of_a_change_that_is_refused(settings: LiveSettings) -> None:
    told: list[tuple[str, object]] = []
    settings.subscribe("a", Hearer("a", told, settings))
    before = settings.current
    with pytest.raises(ConfigRefusedError):
        make(settings, settings.altering_broker("4", {"log.retention.ms": "soon"}))
    with pytest.raises(ConfigRefusedError):
        make(settings, settings.altering_group(0, "g", {"share.auto.offset.reset": "soon"}, "a test"))
    assert not told
    assert settings.current is before


def test_this_brokers_own_properties_stand_over_those_of_all(settings: LiveSettings) -> None:
    make(settings, settings.altering_broker(EVERY_BROKER, {"log.retention.ms": "7"}))
    make(settings, settings.altering_broker("4", {"log.retention.ms": "8"}))
    assert settings["log.retention.ms"] == 8
    make(settings, settings.altering_broker("4", {}))
    assert settings["log.retention.ms"] == 7


def test_configuring_a_group_begins_no_coordinator(tmp_path: Path) -> None:
    stage = NodeStage(tmp_path)
    assert change(stage, GROUP, "g", ("share.auto.offset.reset", SET, "earliest")) == (0, None)
    assert stage.node.coordinators.in_use == InUse()
