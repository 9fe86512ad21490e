"""Computes the values of the configuration: the broker's (static, dynamic for one or all), topics' and groups'.

It defines the precedence of the layers, and which combinations are refused.

    settings["message.max.bytes"]                  the typed value in force
    settings.layers("log.retention.ms")            every layer with a value, as DescribeConfigs lists synonyms
    topic_value(settings, overrides, name)         a topic's value: its own, the broker's, the default
    topic_log_config(settings, overrides)          the same for all settings of a log

Invariant: a BrokerSettings never changes and has only values that passed their checks; a change makes a new one.

Sources: Kafka's DynamicBrokerConfig.scala, ConfigHelper.scala, LogConfig.validateValues, GroupConfig.validate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol

from ottla.broker.config.broker_table import BROKER_CONFIGS, IGNORED, IGNORED_PREFIXES, OF_A_LISTENER, UNITS_MS
from ottla.broker.config.key import ConfigKey, ConfigRefusedError, Kind, UnknownConfigError, Update, Value, printed
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.broker.config.unserved import why_unserved
from ottla.log.config import LogConfig
from ottla.metadata.topic_names import fault_of

__all__ = ["BrokerSettings", "ConfigRefusedError", "Layer", "Source", "topic_log_config"]


class Source(IntEnum):
    """The source of a value (DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Layer(NamedTuple):
    """One place that sets a property (or a property it falls back to)."""

    name: str
    value: Value
    source: Source


class Settings(Protocol):
    """Whatever answers `settings["message.max.bytes"]` with the broker's typed value: these, or `live.LiveSettings`."""

    def __getitem__(self, name: str, /) -> Any: ...


class BrokerSettings:
    """The broker's properties in force. Made by `load`; `with_dynamic` makes the next one."""

    __slots__ = ("_cluster", "_listeners", "_own", "_static", "ignored", "values")

    def __init__(self, static: dict[str, Value], own: dict[str, Value], cluster: dict[str, Value]) -> None:
        self._static = static
        self._own = own
        self._cluster = cluster
        self.values: dict[str, Value] = {name: key.default for name, key in BROKER_CONFIGS.items()}
        self.values |= static | cluster | own
        self._listeners: Mapping[tuple[str, str], Value] = {}
        self.ignored: tuple[str, ...] = ()
        """The properties in the static layer that have no effect."""
        for name in _FALLING_BACK:
            self.values[name] = self._fall_back(name)

    @classmethod
    def load(
        cls,
        static: Mapping[str, str],
        dynamic: Mapping[str, str] | None = None,
        cluster: Mapping[str, str] | None = None,
    ) -> BrokerSettings:
        """`static` is the file and command line, `dynamic` this broker's stored properties, `cluster` those of all.

        Raises ConfigRefusedError for an unknown name, an illegal value, and a setting that promises protection in vain.
        """
        _refuse_unserved(static)
        general, of_listeners = _by_listener(static)
        known, ignored = _known(general)
        if "broker.id" in known and "node.id" not in known:
            known["node.id"] = known["broker.id"]
        loaded = cls(_parse(BROKER_CONFIGS, known), {}, {})
        loaded.values["broker.id"] = loaded["node.id"]
        _check_broker(loaded)
        loaded.ignored, loaded._listeners = ignored, of_listeners
        return loaded.with_dynamic(dynamic or {}, cluster or {}) if dynamic or cluster else loaded

    def with_dynamic(self, dynamic: Mapping[str, str], cluster: Mapping[str, str]) -> BrokerSettings:
        """These settings with other dynamic layers. Raises ConfigRefusedError."""
        _refuse_unserved({**cluster, **dynamic})
        fixed = [name for name in (*dynamic, *cluster) if _update_of(name) is Update.READ_ONLY]
        if fixed:
            raise ConfigRefusedError(f"Cannot update these configs dynamically: [{', '.join(fixed)}]")
        own = [name for name in cluster if _update_of(name) is Update.PER_BROKER]
        if own:
            raise ConfigRefusedError(
                f"Cannot update these configs at default cluster level, broker id must be specified: [{', '.join(own)}]"
            )
        loaded = BrokerSettings(self._static, _parse(BROKER_CONFIGS, dynamic), _parse(BROKER_CONFIGS, cluster))
        loaded.values["broker.id"] = loaded["node.id"]
        loaded.ignored, loaded._listeners = self.ignored, self._listeners
        _check_broker(loaded)
        return loaded

    def __getitem__(self, name: str) -> Any:
        """The value in force: int, float, bool, str, a tuple of str, or None if it is not set."""
        return self.values[name]

    def of_listener(self, listener: str, name: str) -> Any:
        """The value in force for one listener: its own, or that of all."""
        own = (listener.lower(), name)
        return self._listeners[own] if own in self._listeners else self.values[name]

    def layers(self, name: str) -> list[Layer]:
        """Every layer that sets `name` or one of its fallbacks, the one in force first; a null default is no layer."""
        names = (name, *BROKER_CONFIGS[name].fallbacks)
        is_set = any(at in values for at in names for values, _ in self._stack())
        found: list[Layer] = []
        for at in names:
            found += [Layer(at, values[at], source) for values, source in self._stack() if at in values]
            default = BROKER_CONFIGS[at].default
            # As in Kafka, the default of a fallback is shown only beside a value that was set.
            if default is not None and (is_set or at == name):
                found.append(Layer(at, default, Source.DEFAULT))
        return found

    @property
    def cluster_layer(self) -> Mapping[str, Value]:
        """The properties that the '' entity sets for every broker."""
        return self._cluster

    def _stack(self) -> tuple[tuple[dict[str, Value], Source], ...]:
        return (
            (self._own, Source.DYNAMIC_BROKER),
            (self._cluster, Source.DYNAMIC_DEFAULT_BROKER),
            (self._static, Source.STATIC_BROKER),
        )

    def _fall_back(self, name: str) -> Value:
        for at in (name, *BROKER_CONFIGS[name].fallbacks):
            set_values = [values[at] for values, _ in self._stack() if at in values]
            value = set_values[0] if set_values else BROKER_CONFIGS[at].default
            if value is not None:
                assert isinstance(value, int)
                # Kafka takes -1 hours or minutes for "no limit", not for minus one hour.
                return value * UNITS_MS.get(at, 1) if value >= 0 else -1
        return None


LISTENER_PREFIX: Final = "listener.name."
_FALLING_BACK = tuple(name for name, key in BROKER_CONFIGS.items() if key.fallbacks)


def _by_listener(static: Mapping[str, str]) -> tuple[dict[str, str], dict[tuple[str, str], Value]]:
    """The properties of all listeners, and those of single ones by (name in lower case, property)."""
    general: dict[str, str] = {}
    of_listeners: dict[tuple[str, str], Value] = {}
    for name, text in static.items():
        listener, dot, key = name.removeprefix(LISTENER_PREFIX).partition(".")
        key = key.removeprefix("oauthbearer.")  # Kafka names the mechanism before its properties
        if name.startswith(LISTENER_PREFIX) and dot and key in OF_A_LISTENER:
            of_listeners[listener.lower(), key] = BROKER_CONFIGS[key].parse(text)
        else:
            general[name] = text
    return general, of_listeners


def _update_of(name: str) -> Update:
    key = BROKER_CONFIGS.get(name)
    if key is None:
        raise UnknownConfigError(_unknown("broker", name, BROKER_CONFIGS))
    return key.update


def _refuse_unserved(settings: Mapping[str, str]) -> None:
    why = why_unserved(settings)
    if why is not None:
        raise ConfigRefusedError(why)


def _known(static: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    known: dict[str, str] = {}
    ignored: list[str] = []
    for name, text in static.items():
        if name in BROKER_CONFIGS:
            known[name] = text
            if not BROKER_CONFIGS[name].has_effect:
                ignored.append(name)
        elif name in IGNORED or name.startswith(IGNORED_PREFIXES):
            ignored.append(name)
        else:
            raise UnknownConfigError(_unknown("broker", name, BROKER_CONFIGS))
    return known, tuple(ignored)


def _unknown(what: str, name: str, table: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, list(table), 1, 0.8)
    return f"Unknown {what} config name: {name}" + (f" (did you mean {close[0]}?)" if close else "")


def _parse(table: Mapping[str, ConfigKey], texts: Mapping[str, str]) -> dict[str, Value]:
    return {name: table[name].parse(text) for name, text in texts.items()}


def super_users_of(settings: BrokerSettings) -> list[str]:
    """The principals in super.users. They are separated by semicolons: the name in a certificate contains commas."""
    return [each.strip() for each in settings["super.users"].split(";") if each.strip()]


def _check_broker(settings: BrokerSettings) -> None:
    prefix: str = settings[DEAD_LETTERS_PREFIX]
    why = fault_of(prefix + "x")
    if why is not None:
        raise ConfigRefusedError(f"Invalid value {prefix} for configuration {DEAD_LETTERS_PREFIX}: {why}")
    if settings["max.connections.per.ip"] == 0 and not settings["max.connections.per.ip.overrides"]:
        raise ConfigRefusedError(
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set."
        )
    nameless = [each for each in super_users_of(settings) if ":" not in each]
    if nameless:
        raise ConfigRefusedError(f"expected a string in format principalType:principalName but got {nameless[0]}")
    for low, high in _ORDERED:
        if settings[low] > settings[high]:
            raise ConfigRefusedError(
                f"{low} must be less than or equal to {high}, but {settings[low]} > {settings[high]}"
            )


_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    *(
        pair
        for kind, names in (
            ("consumer", ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")),
            (
                "share",
                (
                    "session.timeout.ms",
                    "heartbeat.interval.ms",
                    "assignment.interval.ms",
                    "delivery.count.limit",
                    "partition.max.record.locks",
                    "record.lock.duration.ms",
                ),
            ),
        )
        for name in names
        for pair in (
            (f"group.{kind}.min.{name}", f"group.{kind}.{name}"),
            (f"group.{kind}.{name}", f"group.{kind}.max.{name}"),
        )
    ),
)


# ---- topics --------------------------------------------------------------------------------------------------------


def check_topic(overrides: Mapping[str, str], settings: Settings) -> None:
    """Raise ConfigRefusedError if these overrides can't be a topic's."""
    for name, text in overrides.items():
        key = TOPIC_CONFIGS.get(name)
        if key is None:
            raise UnknownConfigError(_unknown("topic", name, TOPIC_CONFIGS))
        key.parse(text)
    least = topic_value(settings, overrides, "min.compaction.lag.ms")
    most = topic_value(settings, overrides, "max.compaction.lag.ms")
    if least > most:
        raise ConfigRefusedError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    if topic_value(settings, overrides, "remote.storage.enable"):
        raise ConfigRefusedError(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )


def topic_value(settings: Settings, overrides: Mapping[str, str], name: str) -> Any:
    """The typed value a topic with these overrides has."""
    key = TOPIC_CONFIGS[name]
    text = overrides.get(name)
    if text is not None:
        return key.parse(text)
    value = settings[key.fallbacks[0]] if key.fallbacks else key.default
    return key.default if value is None else value


def topic_layers(settings: BrokerSettings, overrides: Mapping[str, str], name: str) -> list[Layer]:
    """Every layer that sets a topic's property, the one in force first."""
    key = TOPIC_CONFIGS[name]
    below = settings.layers(key.fallbacks[0]) if key.fallbacks else []
    text = overrides.get(name)
    return below if text is None else [Layer(name, key.parse(text), Source.TOPIC), *below]


HOLD: Final = "ottla.retention.hold"
CONFIRMING: Final = ("cleanup.policy", "retention.bytes", "retention.ms")
"""The configs that decide which records of a topic are deleted."""

_LOG_CONFIGS = {name: name.replace(".", "_") for name in TOPIC_CONFIGS if name.replace(".", "_") in LogConfig._fields}


def topic_log_config(settings: Settings, overrides: Mapping[str, str]) -> LogConfig:
    """The configuration of a log whose topic has these overrides."""
    values = {field: topic_value(settings, overrides, name) for name, field in _LOG_CONFIGS.items()}
    values["cleanup_policy"] = frozenset(values["cleanup_policy"])
    if topic_value(settings, overrides, HOLD):
        values |= {"cleanup_policy": frozenset(), "retention_bytes": -1, "retention_ms": -1}
    return LogConfig(**values)


def held(overrides: Mapping[str, str]) -> dict[str, str]:
    """These overrides, plus a hold: nothing of the topic is deleted before an operator confirms them."""
    return {**overrides, HOLD: "true"}


def is_held(settings: Settings, overrides: Mapping[str, str]) -> bool:
    """Whether retention and compaction leave a topic with these overrides alone."""
    return bool(topic_value(settings, overrides, HOLD))


def without_ended_hold(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """The overrides of a topic that had those of `before`: a change of a deletion config ends the hold."""
    confirmed = HOLD in before and any(before.get(name) != after.get(name) for name in CONFIRMING)
    return {name: text for name, text in after.items() if not (confirmed and name == HOLD)}


# ---- groups --------------------------------------------------------------------------------------------------------


def check_group(overrides: Mapping[str, str], settings: Settings, before: Mapping[str, str] | None = None) -> None:
    """Raise ConfigRefusedError if these overrides can't be a group's (GroupConfig.validate).

    `before`: its present overrides. A dead-letter topic that was legal when it was set must not prevent changes of
    other properties.
    """
    if overrides.get(DEAD_LETTERS) != (before or {}).get(DEAD_LETTERS):
        _check_dead_letters(overrides.get(DEAD_LETTERS, "").strip(), settings)
    for name, text in overrides.items():
        key = GROUP_CONFIGS.get(name)
        if key is None:
            raise UnknownConfigError(_unknown("group", name, GROUP_CONFIGS))
        value = key.parse(text)
        kind, _, rest = name.partition(".")
        low, high = f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"
        if low in BROKER_CONFIGS:
            if value < settings[low]:
                raise ConfigRefusedError(f"{name} must be greater than or equal to {low}")
            if value > settings[high]:
                raise ConfigRefusedError(f"{name} must be less than or equal to {high}")
    for kind in ("consumer", "share"):
        beat, silence = f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"
        if (beat in overrides or silence in overrides) and group_value(settings, overrides, beat) >= group_value(
            settings, overrides, silence
        ):
            raise ConfigRefusedError(f"{silence} must be greater than {beat}")


DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
DEAD_LETTERS_PREFIX: Final = DEAD_LETTERS + ".prefix"


def _check_dead_letters(name: str, settings: Settings) -> None:
    """Raise ConfigRefusedError if a group's dead letters could never be written to this topic; '' means none
    (KIP-1191)."""
    prefix: str = settings[DEAD_LETTERS_PREFIX]
    why = fault_of(name) if name else None
    if name and not name.startswith(prefix):
        why = f"the name must begin with {prefix} ({DEAD_LETTERS_PREFIX})"
    if why is not None:
        raise ConfigRefusedError(f"Invalid value {name} for configuration {DEAD_LETTERS}: {why}")


def group_value(settings: Settings, overrides: Mapping[str, str], name: str) -> Any:
    """The typed value a group with these overrides has."""
    key = GROUP_CONFIGS[name]
    text = overrides.get(name)
    if text is not None:
        return key.parse(text)
    return settings[key.fallbacks[0]] if key.fallbacks and key.fallbacks[0] in BROKER_CONFIGS else key.default


def group_layers(settings: BrokerSettings, overrides: Mapping[str, str], name: str) -> list[Layer]:
    """Every layer that sets a group's property, the one in force first."""
    key = GROUP_CONFIGS[name]
    broker = key.fallbacks[0] if key.fallbacks else name
    below = settings.layers(broker) if broker in BROKER_CONFIGS else [Layer(broker, key.default, Source.DEFAULT)]
    text = overrides.get(name)
    return below if text is None else [Layer(name, key.parse(text), Source.GROUP), *below]


# ---- shared by all three -------------------------------------------------------------------------------------------


def appended(current: str, addition: str) -> str:
    """IncrementalAlterConfigs APPEND: the list, plus the entries that it lacks."""
    have = _entries(current)
    return ",".join([*have, *(entry for entry in _entries(addition) if entry not in have)])


def subtracted(current: str, removal: str) -> str:
    """IncrementalAlterConfigs SUBTRACT."""
    gone = _entries(removal)
    return ",".join(entry for entry in _entries(current) if entry not in gone)


def _entries(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def shown(key: ConfigKey, value: Value) -> str | None:
    """The value as an answer may print it: secrets never."""
    return None if key.kind is Kind.PASSWORD else printed(value)
