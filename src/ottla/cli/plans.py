"""Shows a plan before much is changed at once: the options for it, --execute and --dry-run.

What names its target does it (delete, alter, pause). What works out its targets by a rule (reset-offsets, redrive,
vacuum) shows what it would do, and does it with --execute.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.output import Format, NotUnderstood, say

Execute = Annotated[bool, typer.Option("--execute", help="Make the changes.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and change nothing; this is the default.")
]
MaxRecords = Annotated[
    int | None,
    typer.Option("--max-records", "-n", min=1, help="Number of records after which to stop (default: unlimited)."),
]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, hidden=True, help="Old name of --max-records (default: unlimited).")
]


def choose_one(execute: bool, dry_run: bool) -> None:
    """Raise NotUnderstood where both were given."""
    if execute and dry_run:
        raise NotUnderstood("Choose one of --execute and --dry-run.")


def tell_unchanged(execute: bool, format: Format) -> None:
    """Tell a person who has seen a plan how it is carried out."""
    if not execute and format is Format.TABLE:
        say("Nothing was changed: add --execute to do this.", err=True)
