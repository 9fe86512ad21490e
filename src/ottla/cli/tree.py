"""The tree of commands, put together from one file per noun."""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any

import typer

from ottla import __version__
from ottla.cli import (
    configs,
    consume,
    demo,
    groups,
    kmq,
    log,
    pipeline,
    produce,
    records,
    serve,
    share_groups,
    ship,
    topics,
)

app = typer.Typer(
    name="ottla",
    help="Ottla: an event log and queue that speaks the Apache Kafka protocol.",
    epilog="Start with: ottla demo. A node: ottla serve --data ./data. Then: ottla topics create clicks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(
    "serve", add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def run_node(context: typer.Context) -> int:
    """Run a node. See: ottla serve --help."""
    return serve.main(context.args)


for noun in (topics, groups, share_groups, kmq, pipeline, records, configs, log):
    app.add_typer(noun.app, name=noun.__name__.rsplit(".", 1)[-1].replace("_", "-"))
for verb in (produce, consume, ship, demo):
    app.command(epilog=verb.EPILOG)(getattr(verb, verb.__name__.rsplit(".", 1)[-1]))


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"ottla {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """Ottla: an event log and queue that speaks the Apache Kafka protocol."""


@cache
def command() -> Any:
    """The tree as it is run."""
    return typer.main.get_command(app)


def not_understood(error: Exception) -> str | None:
    """What was wrong with the arguments, as one sentence; None where the error is none of the parser's."""
    if isinstance(error, typer.Abort):
        return "Aborted."
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        return f"Say what to do: `{context.command_path} --help` lists it."
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    text = re.sub(r"\s*\n\s*", " ", message())  # choices come one a line
    return f"{text.rstrip('.')}.{hint}"
