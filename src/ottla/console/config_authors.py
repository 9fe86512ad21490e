"""Reads who changed configs, which only Ottla's nodes remember (docs/private-requests.md)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ottla.client.observations import ConfigHistory, config_history
from ottla.console.page import Context, View
from ottla.console.reading import SOURCES, Config, configs
from ottla.doctor.words import names
from ottla.protocol.config_resources import QUOTA, ConfigResourceType
from ottla.protocol.messages.describe_observations import ConfigChange

SHOWN_MAX: Final = 50
OWN: Final = (SOURCES[1], SOURCES[8])
"""Sources of configs that are set on the resource itself."""
NOBODY: Final = "Only Ottla's nodes remember who changed configs: this cluster does not say it."


def history_of(context: Context, kind: int = 0, name: str | None = None) -> tuple[ConfigHistory, str]:
    """The changes of a resource's configs, or of all, and a sentence about what is missing, "" if nothing is. Raises
    BrokerError if the user may not see them."""
    context.client.metadata([])
    nodes = sorted(context.client.broker_ids())
    found = config_history(context.client, nodes, kind, name)
    if len(found.silent) == len(nodes):
        return found, NOBODY
    missing = sorted((*found.silent, *(node_id for node_id, _ in found.failed)))
    return found, f"Changes that {_nodes(missing)} made are missing." if missing else ""


def _nodes(ids: list[int]) -> str:
    return f"node {ids[0]}" if len(ids) == 1 else f"nodes {names(ids)}"


def client_of(change: ConfigChange) -> str:
    """The client of a change: "kafka-configs, 10.0.0.7"."""
    return ", ".join(filter(None, (change.client_id, change.client_host)))


# ---- configs of a resource -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Configs(View):
    """The configs of a resource, those that differ from the default first. `missing`: why authors are not shown."""

    differing: tuple[Config, ...]
    defaults: tuple[Config, ...]
    missing: str


def configs_view(context: Context, kind: int, word: str, prefixes: tuple[str, ...] = ("",)) -> Configs:
    """The configs, with these prefixes, of the resource that the address names; `word` is its kind in commands."""
    name = context.need("name")
    found = [each for each in configs(context, kind, name) if each.name.startswith(prefixes)]
    history, missing = history_of(context, kind, name)
    return Configs(
        title="Configs",
        command=context.command("configs", "describe", word, name, "--all"),
        differing=tuple(_with_author(each, history) for each in found if not each.is_default),
        defaults=tuple(each for each in found if each.is_default),
        missing=missing,
    )


def _with_author(config: Config, history: ConfigHistory) -> Config:
    change = history.author(config.name, config.value) if config.source in OWN else None
    if change is None:
        return config
    return replace(config, set_by=f"{change.principal} ({client_of(change)})", set_ms=change.at_ms)


# ---- the cluster page ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A change of a config of nodes, or of a quota. `old` and `new` are None where it was not set."""

    at_ms: int
    of: str
    name: str
    old: str | None
    new: str | None
    principal: str
    client: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChanges(View):
    """The last changes, newest first. `missing`: a sentence about changes that are not shown."""

    changes: tuple[ChangeRow, ...]
    missing: str


def load_changes(context: Context) -> ConfigChanges:
    """The last changes of nodes' configs and of quotas."""
    found, missing = history_of(context)
    rows = [row_of(each) for each in found.changes if each.resource_type in (ConfigResourceType.BROKER, QUOTA)]
    return ConfigChanges(
        title="Changes of nodes' configs and of quotas",
        command=context.command("configs", "history"),
        changes=tuple(rows[:SHOWN_MAX]),
        missing=missing,
    )


def row_of(change: ConfigChange) -> ChangeRow:
    """The row of a change of a broker config or a quota."""
    node = f"node {change.resource_name}" if change.resource_name else "all nodes"
    return ChangeRow(
        change.at_ms,
        f"quota of {change.resource_name}" if change.resource_type == QUOTA else node,
        change.name,
        change.old_value,
        change.new_value,
        change.principal,
        client_of(change),
    )
