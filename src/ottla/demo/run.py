"""Runs the steps of the demonstration, one after the other, and clears up."""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.demo.demonstration import Demonstration
from ottla.demo.node import NodeFailed
from ottla.demo.steps import STEPS, StepFailed


def run(source: Path | None, seconds: float, report: Path | None) -> int:
    """Run the demonstration: 0 when every step came about and the proof holds, 1 where one did not, 2 where the input
    cannot be read.

    `report`: where the last step writes its page; None leaves that step out.
    """
    from rich.console import Console

    if source is not None:
        try:
            if not source.stat().st_size:
                raise OSError(0, "it is empty")
            source.open("rb").close()
        except OSError as error:
            print(f"ottla: {source} cannot be read: {error.strerror}.", file=sys.stderr)
            return 2
    demo = Demonstration(Console(), source, seconds, report)
    try:
        for step in STEPS if report is not None else STEPS[:-1]:
            demo.console.print(f"\n[bold]{step.__doc__}[/bold]", highlight=False, soft_wrap=True)
            step(demo)
    except (StepFailed, NodeFailed) as failure:
        demo.hide()
        print(f"ottla: {failure}", file=sys.stderr)
        return 1
    finally:
        demo.clear()
    return 0
