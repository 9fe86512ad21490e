"""Shows a resource's configuration in an answer: entries with value, source, synonyms, type and sentence.

Shared by DescribeConfigs and CreateTopics (KIP-525). Source: Kafka's ConfigHelper.scala.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.config.key import ConfigKey, Update, Value
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.broker.config.values import (
    BrokerSettings,
    Layer,
    Source,
    group_layers,
    group_value,
    shown,
    topic_layers,
    topic_value,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One property of one resource; `layers` has the one in force first."""

    key: ConfigKey
    value: Value
    layers: list[Layer]
    read_only: bool = False

    @property
    def text(self) -> str | None:
        return shown(self.key, self.value)

    @property
    def source(self) -> Source:
        return self.layers[0].source if self.layers else Source.DEFAULT


def topic_entries(settings: BrokerSettings, overrides: Mapping[str, str]) -> dict[str, Callable[[], Entry]]:
    """Every property of a topic, each made on demand."""

    def entry(name: str) -> Entry:
        key = TOPIC_CONFIGS[name]
        return Entry(key, topic_value(settings, overrides, name), topic_layers(settings, overrides, name))

    return {name: lambda name=name: entry(name) for name in TOPIC_CONFIGS}


def group_entries(settings: BrokerSettings, overrides: Mapping[str, str]) -> dict[str, Callable[[], Entry]]:
    """Every property of a group."""

    def entry(name: str) -> Entry:
        key = GROUP_CONFIGS[name]
        return Entry(key, group_value(settings, overrides, name), group_layers(settings, overrides, name))

    return {name: lambda name=name: entry(name) for name in GROUP_CONFIGS}


def broker_entries(settings: BrokerSettings, given: Mapping[str, Value]) -> dict[str, Callable[[], Entry]]:
    """Every property of this broker. A property that is not set shows null, even if a fallback applies.

    `given`: values that the I/O host chose without setting a property, such as the port that the system assigned.
    """

    def entry(name: str) -> Entry:
        key = BROKER_CONFIGS[name]
        layers = settings.layers(name)
        if name in given:
            return Entry(key, given[name], [Layer(name, given[name], Source.STATIC_BROKER)], read_only=True)
        set_here = next((layer for layer in layers if layer.name == name), None)
        value = settings[name] if not key.fallbacks else None if set_here is None else set_here.value
        return Entry(key, value, layers if value is not None else [], read_only=key.update is Update.READ_ONLY)

    return {name: lambda name=name: entry(name) for name in BROKER_CONFIGS}


def cluster_entries(settings: BrokerSettings) -> dict[str, Callable[[], Entry]]:
    """The properties set for every broker: the '' entity."""

    def entry(name: str, value: Value) -> Entry:
        layer = Layer(name, value, Source.DYNAMIC_DEFAULT_BROKER)
        return Entry(BROKER_CONFIGS[name], value, [layer])

    return {name: lambda name=name, value=value: entry(name, value) for name, value in settings.cluster_layer.items()}
