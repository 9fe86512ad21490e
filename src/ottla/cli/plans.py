"""Shows a plan before a command changes much at once: the options --execute and --dry-run.

A command whose target is named acts at once (delete, alter, pause). A command that may disturb a running client asks
first, unless --yes is given (`transactions abort`). A command that selects its targets by a rule (reset-offsets,
redrive, vacuum) shows the plan, and acts only with --execute.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ottla.cli.output import CommandError, Format, UsageError, say

Execute = Annotated[bool, typer.Option("--execute", help="Make the changes.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing; this is the default.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
MaxRecords = Annotated[
    int | None,
    typer.Option("--max-records", "-n", min=1, help="Number of records after which to stop (default: unlimited)."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, hidden=True, help="Old name of --max-records (default: unlimited).")
]


def choose_one(execute: bool, dry_run: bool) -> None:
    """Raise UsageError if both were given."""
    if execute and dry_run:
        raise UsageError("Choose one of --execute and --dry-run.")


def tell_unchanged(execute: bool, format: Format) -> None:
    """After a plan was shown, tell the user how to execute it."""
    if not execute and format is Format.TABLE:
        say("Nothing was changed: add --execute to do this.", err=True)


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation; raise CommandError unless the answer is yes."""
    if yes:
        return
    print(f"ottla: {question} [y/N] ", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not sys.stdin.isatty():
        print(file=sys.stderr)
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was changed: answer y, or add --yes.")
