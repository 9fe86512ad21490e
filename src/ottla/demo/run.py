"""Runs the steps of the demonstration in order, and cleans up."""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.demo.cluster_steps import CLUSTER_STEPS
from ottla.demo.demonstration import Demonstration, StepFailedError
from ottla.demo.node import NodeFailedError
from ottla.demo.steps import STEPS


def run(source: Path | None, seconds: float, report: Path | None, *, with_cluster: bool = True) -> int:
    """Run the demonstration. Returns 0 if every step succeeds and the proof holds, 1 if a step fails, 2 if the input
    cannot be read.

    `report`: where the pipelines' step writes its page; None omits that step. `with_cluster`: whether the steps with
    three nodes follow.
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
        of_one = STEPS if report is not None else STEPS[:-1]
        for step in (*of_one, *CLUSTER_STEPS) if with_cluster else of_one:
            demo.console.print(f"\n[bold]{step.__doc__}[/bold]", highlight=False, soft_wrap=True)
            step(demo)
    except (StepFailedError, NodeFailedError) as failure:
        demo.hide()
        print(f"ottla: {failure}", file=sys.stderr)
        return 1
    finally:
        demo.clear()
    return 0
