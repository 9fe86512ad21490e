"""Runs the steps of the demonstration in order, and cleans up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ottla.demo.cluster_steps import CLUSTER_STEPS
from ottla.demo.demonstration import Demonstration, StepFailedError
from ottla.demo.node import NodeFailedError
from ottla.demo.steps import STEPS
from ottla.demo.stuck import MAILERS, log_of, stick

STUCK = (
    f"A job queue on the first node is stuck: [bold]{MAILERS}[/bold]. The overview says so, and why. Get "
    "its mails sent: its workers still run. The end of their log:"
)
LOOK = "[bold]./demo --console[/bold] shows all of this in the browser at the end, with the nodes still running."


def run(
    source: Path | None,
    seconds: float,
    report: Path | None,
    *,
    with_cluster: bool = True,
    show: Callable[[dict[str, str]], None] | None = None,
) -> int:
    """Run the demonstration. Returns 0 if every step succeeds and the proof holds, 1 if a step fails, 2 if the input
    cannot be read.

    `report`: where the pipelines' step writes its page; None omits that step. `with_cluster`: whether the steps with
    three nodes follow. `show` gets the addresses of the nodes at the end, by a sentence about what happened there, and
    returns when the nodes may end.
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
        if show is None:
            demo.console.print(f"\n{LOOK}", highlight=False, soft_wrap=True)
        else:
            demo.hide()
            places = places_of(demo)
            demo.jobs = stick(demo.node.address)
            demo.console.print(f"\n{STUCK}", highlight=False, soft_wrap=True)
            for line in log_of(demo.jobs):
                demo.console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
            show(places)
    except (StepFailedError, NodeFailedError, TimeoutError) as failure:
        demo.hide()
        print(f"ottla: {failure}", file=sys.stderr)
        return 1
    finally:
        demo.clear()
    return 0


def places_of(demo: Demonstration) -> dict[str, str]:
    """The addresses of the nodes, by a sentence; the node that the cluster's steps have stopped starts again."""
    if demo.cluster is None:
        return {"The node with the stream, the groups and the jobs:": demo.node.address}
    demo.node.start()
    return {
        "The first node, with the stream, the groups and the jobs:": demo.node.address,
        "The three nodes, with the killed leaders and the money:": demo.cluster.address,
    }
