"""Describes one configuration property: its type, default, legal values; parses and prints it as Kafka does.

It follows the rules of Kafka's ConfigDef (ConfigDef.java): values are trimmed, lists split at commas, numbers are
Java's.
"""

from __future__ import annotations

import re
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from ottla.broker.config.addresses import limits_by_address
from ottla.broker.config.durations import duration_ms

Value: TypeAlias = int | float | bool | str | tuple[str, ...] | None

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


class ConfigRefusedError(Exception):
    """A configuration value or name that is refused; the text is one sentence for the operator who set it."""


class UnknownConfigError(ConfigRefusedError):
    """There is no property of this name."""


class Kind(IntEnum):
    """A property's type; the numbers are DescribeConfigs' (DescribeConfigsResponse.ConfigType)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Update(Enum):
    """When a broker property may change: never, for one broker, or for one and for all (the '' entity)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


_LIMITS = {Kind.INT: INT_MAX, Kind.SHORT: (1 << 15) - 1, Kind.LONG: LONG_MAX}
_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_COMMA = re.compile(r"\s*,\s*")
_THROTTLED: Final = r"[0-9]+:[0-9]+"


class ConfigKey(NamedTuple):
    """One property. `low` and `high` bound numbers; `choices` bounds strings and the entries of lists.

    `fallbacks`: broker properties that apply if this one is not set, most specific first. `has_effect`: whether any
    code reads it. `tests/test_settings.py` checks that, and that the sentence says so if none does.
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    update: Update = Update.READ_ONLY
    fallbacks: tuple[str, ...] = ()
    has_effect: bool = True

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Value:
        """The typed value. Raises ConfigRefusedError with Kafka's sentence."""
        text = text.strip()
        value = self._convert(text)
        self._check(text, value)
        return value

    def _convert(self, text: str) -> Value:
        match self.kind:
            case Kind.BOOLEAN:
                lowered = text.lower()
                if lowered not in ("true", "false"):
                    raise self._refuse(text, "Expected value to be either true or false")
                return lowered == "true"
            case Kind.INT | Kind.SHORT | Kind.LONG:
                limit = _LIMITS[self.kind]
                if not _INTEGER.fullmatch(text) or len(text) > 20 or not -limit - 1 <= int(text) <= limit:
                    raise self._refuse(text, f"Not a number of type {self.kind.name}")
                return int(text)
            case Kind.DOUBLE:
                try:
                    return float(text)
                except ValueError:
                    raise self._refuse(text, "Not a number of type DOUBLE") from None
            case Kind.LIST:
                return tuple(_COMMA.split(text)) if text else ()
            case Kind.STRING | Kind.CLASS | Kind.PASSWORD:
                return text

    def _check(self, text: str, value: Value) -> None:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_number(text, value)
        if self.choices:
            for entry in value if isinstance(value, tuple) else (value,):
                if entry not in self.choices:
                    raise self._refuse(str(entry), f"String must be one of: {', '.join(self.choices)}")
        if self.name == "share.auto.offset.reset" and not _is_reset(text):
            raise self._refuse(
                text, "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
            )
        if self.name == "max.connections.per.ip.overrides":
            try:
                limits_by_address(text)
            except ValueError as why:
                raise self._refuse(text, str(why)) from None
        if self.name.endswith("replication.throttled.replicas"):
            assert isinstance(value, tuple)
            if value != ("*",) and not all(re.fullmatch(_THROTTLED, entry, re.ASCII) for entry in value):
                raise self._refuse(
                    f"[{text}]",
                    f"{self.name} must be the literal '*' or a list of replicas in the following format: "
                    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
                )

    def _check_number(self, text: str, value: float) -> None:
        if self.name == "compression.gzip.level":
            if not (value == -1 or 1 <= value <= 9):
                raise self._refuse(text, "Value must be between 1 and 9 or equal to -1")
        elif value != value or (self.low is not None and value < self.low):
            raise self._refuse(text, f"Value must be at least {self.low}")
        elif self.high is not None and value > self.high:
            raise self._refuse(text, f"Value must be no more than {self.high}")

    def _refuse(self, text: str, why: str) -> ConfigRefusedError:
        shown = "[hidden]" if self.sensitive else text
        return ConfigRefusedError(f"Invalid value {shown} for configuration {self.name}: {why}")


def printed(value: Value) -> str | None:
    """The value as Kafka's answers print it."""
    match value:
        case None | str():
            return value
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(value)
        case float():
            return repr(value).upper().replace("E+", "E")
        case int():
            return str(value)


def _is_reset(text: str) -> bool:
    if text in ("earliest", "latest"):
        return True
    prefix, colon, duration = text.partition(":")
    return prefix == "by_duration" and bool(colon) and duration_ms(duration) is not None
