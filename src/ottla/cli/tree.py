"""Builds the tree of commands, from one file per noun."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from ottla import __version__
from ottla.cli import console, consume, demo, doctor, produce, serve, ship
from ottla.cli.completing import complete_broker_settings, starting
from ottla.cli.nouns import HELP, NOUNS
from ottla.cli.runnable import runnable

app = typer.Typer(
    name="ottla",
    help="Ottla: an event log and queue that speaks the Apache Kafka protocol.",
    epilog="Start with: ottla demo. A node: ottla serve --data ./data. Then: ottla topics create clicks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=HELP,
)


def run_node(**given: Any) -> int:
    """Run a node. See: ottla serve --help."""
    raise AssertionError("main.py hands serve to its own parser")


def serve_options() -> list[Parameter]:
    """The options of `serve` in typer's form, for completion."""
    made: list[Parameter] = []
    for action in serve.parser()._actions:
        shown = typer.Option(
            *action.option_strings,
            help=action.help,
            metavar=str(action.metavar) if action.metavar else None,
            autocompletion=completion_of(action.dest, action.choices),
        )
        kind = bool if action.nargs == 0 else list[str] | None if action.default == [] else str | None
        default = False if kind is bool else None
        made.append(Parameter(action.dest, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, shown]))
    return made


def completion_of(name: str, choices: Iterable[str] | None) -> Callable[[str], list[str]] | None:
    if name == "set":
        return complete_broker_settings
    return (lambda incomplete: starting(choices, incomplete)) if choices is not None else None


run_node.__signature__ = Signature(serve_options())  # type: ignore[attr-defined]
START, DATA, ADMINISTER, PIPELINES = "Start", "Read and write", "Administer", "Queues and pipelines"
PANELS = {"cluster": START, "kmq": PIPELINES, "pipeline": PIPELINES, "share-groups": PIPELINES}
"""The panel of `ottla --help` that shows a noun; the others are in ADMINISTER."""

app.command("serve", add_help_option=False, rich_help_panel=START)(run_node)
for noun in NOUNS:
    module = import_module(f"ottla.cli.{noun.replace('-', '_')}")
    app.add_typer(module.app, name=noun, rich_help_panel=PANELS.get(noun, ADMINISTER))
for verb, panel in (
    (demo, START),
    (produce, DATA),
    (consume, DATA),
    (ship, DATA),
    (doctor, ADMINISTER),
    (console, ADMINISTER),
):
    command_of = getattr(verb, verb.__name__.rsplit(".", 1)[-1])
    app.command(epilog=verb.EPILOG, rich_help_panel=panel)(command_of)


@app.command("help", rich_help_panel=START)
def show_help(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="Words of the command (default: all commands).")
    ] = None,
) -> int:
    """Show the help of a command, like --help after it."""
    if words and words[0] == "serve":
        return serve.main(["--help"])
    command()(args=[*(words or ()), "--help"], prog_name="ottla", standalone_mode=False)
    return 0


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"ottla {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Ottla: an event log and queue that speaks the Apache Kafka protocol."""


@cache
def command() -> Any:
    """The tree of commands, ready to run."""
    return runnable(app)


def not_understood(error: Exception) -> str | None:
    """A sentence about invalid arguments; None if the error does not come from the parser."""
    if isinstance(error, typer.Abort):
        return "Aborted."
    message = getattr(error, "format_message", None)
    if message is None:
        return None
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        return f"Say what to do: `{context.command_path} --help` lists it."
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    text = re.sub(r"\s*\n\s*", " ", message())  # choices are printed one a line
    return f"{text.rstrip('.')}.{hint}"
