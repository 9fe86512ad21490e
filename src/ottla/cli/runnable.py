"""Turns typer's apps into commands that can run."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

import typer


def runnable(app: typer.Typer) -> Any:
    """The command of an app. Each paragraph of its help texts is one line, which the terminal wraps: typer would keep
    the lines of the docstrings."""
    command = typer.main.get_command(app)
    _join_lines(command)
    return command


def _join_lines(command: Any) -> None:
    command.help = re.sub(r"(?<!\n)\n(?!\n)", " ", cleandoc(command.help or ""))
    for below in getattr(command, "commands", {}).values():
        _join_lines(below)
