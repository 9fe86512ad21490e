"""`ottla demo`: see the whole thing work on this machine in two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

REPORT = Path("ottla-demo.html")
EPILOG = "Example: ottla demo --input /var/log/nginx/access.log --seconds 20"


def demo(
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="Access log to replay (default: made-up events).")
    ] = None,
    seconds: Annotated[
        float, typer.Option("--seconds", min=3, max=600, help="Seconds for which events are produced (default 12).")
    ] = 12,
    pipelines: Annotated[
        bool, typer.Option("--pipelines/--no-pipelines", help="Whether to run the step on Spark (default: run it).")
    ] = True,
    cluster: Annotated[
        bool,
        typer.Option("--cluster/--no-cluster", help="Whether to run the steps on three nodes (default: run them)."),
    ] = True,
    report: Annotated[
        Path, typer.Option("--report", help="File of the page that the step on Spark writes (default ottla-demo.html).")
    ] = REPORT,
) -> int:
    """Run a node, a stream of web activity, two groups, a job queue and pipelines, then three nodes of which one is
    killed; verify that nothing is lost."""
    from ottla.demo.run import run

    return run(input, seconds, report if pipelines else None, with_cluster=cluster)
