"""Runs the commands of the last step: `ottla pipeline ...` as a person would type them, each as a child process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

NEEDED = ("pyspark", "pyarrow", "deltalake", "numba")
COMMAND_TIMEOUT_S = 300.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for seconds: otherwise half of its CPU would go into optimising compiled code."""


class CommandFailedError(Exception):
    """A command exited with a code other than 0; the text is its last output."""


def missing() -> list[str]:
    """The modules of the extra `spark` that are not installed."""
    return [name for name in NEEDED if find_spec(name) is None]


def run(arguments: Sequence[str], say: Callable[[str], None]) -> None:
    """Run `ottla ARGUMENTS`, showing the command and its output. Raises CommandFailedError."""
    say(f"[bold]$ {shlex.join(['ottla', *arguments])}[/bold]")
    command = [sys.executable, "-m", "ottla", *arguments]
    try:
        environment = {"JAVA_TOOL_OPTIONS": QUICK_JAVA, **os.environ}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        raise CommandFailedError(
            f"`ottla {' '.join(arguments[:2])}` did not end in {COMMAND_TIMEOUT_S:.0f} s."
        ) from None
    for line in ended.stdout.splitlines():
        say(line)
    if ended.returncode:
        words = ended.stderr.strip().splitlines() or ["It said nothing."]
        raise CommandFailedError(words[-1].removeprefix("ottla: "))


def rows_of(table: Path) -> int:
    """The rows of a Delta table, counted from its files and not from a pipeline's output."""
    from deltalake import DeltaTable

    return DeltaTable(str(table)).to_pyarrow_dataset().count_rows()
