"""Completes names of configs on the command line.

It uses the tables of configs in this version, so it asks no broker. Names of topics and groups, which only a cluster
knows, are completed by connection.py.
"""

from collections.abc import Iterable
from typing import Annotated

import typer


def starting(names: Iterable[str], incomplete: str, after: str = "") -> list[str]:
    return sorted(name + after for name in names if name.startswith(incomplete))


def config_names(kind: str) -> Iterable[str]:
    """Names of configs of a topic, a broker or a group."""
    from ottla.broker.config.broker_table import BROKER_CONFIGS
    from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS

    return {"topic": TOPIC_CONFIGS, "broker": BROKER_CONFIGS, "group": GROUP_CONFIGS}.get(kind, {})


def kind_of(ctx: typer.Context) -> str:
    """The kind of resource earlier on the command line; a topic if the command has no such argument."""
    if "kind" not in ctx.params:
        return "topic"
    return str(ctx.params["kind"] or next(iter(ctx.args), ""))  # an unfinished line leaves its arguments there


def complete_settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """NAME= of the configs for the kind of resource on the command line."""
    return starting(config_names(kind_of(ctx)), incomplete, "=")


def complete_configs(ctx: typer.Context, incomplete: str) -> list[str]:
    """NAME of the configs for the kind of resource on the command line."""
    return starting(config_names(kind_of(ctx)), incomplete)


def complete_broker_settings(incomplete: str) -> list[str]:
    """NAME= of a broker's config."""
    return starting(config_names("broker"), incomplete, "=")


SetConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        autocompletion=complete_settings,
        help="Config to set; may be repeated (default: none).",
    ),
]
DeleteConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--delete",
        "-d",
        metavar="KEY",
        autocompletion=complete_configs,
        help="Config to reset to its default; may be repeated (default: none).",
    ),
]
AppendConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--append",
        metavar="KEY=VALUE",
        autocompletion=complete_settings,
        help="Value to append to a list config; may be repeated (default: none).",
    ),
]
SubtractConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--subtract",
        metavar="KEY=VALUE",
        autocompletion=complete_settings,
        help="Value to remove from a list config; may be repeated (default: none).",
    ),
]
TopicConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="KEY=VALUE",
        autocompletion=complete_settings,
        help="Config of the new topics; may be repeated (default: none).",
    ),
]
