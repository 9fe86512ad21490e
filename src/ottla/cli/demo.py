"""`ottla demo`: see the whole thing work on this machine in two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

REPORT = Path("ottla-demo.html")
EPILOG = "Example: ottla demo --input /var/log/nginx/access.log --seconds 20"


def demo(
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="An access log to replay; else made-up events.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=3, max=600, help="How long events are produced.")] = 12,
    pipelines: Annotated[bool, typer.Option("--pipelines/--no-pipelines", help="Run the step on Spark.")] = True,
    cluster: Annotated[bool, typer.Option("--cluster/--no-cluster", help="Run the steps on three nodes.")] = True,
    report: Annotated[Path, typer.Option("--report", help="Where the step on Spark writes its page.")] = REPORT,
) -> int:
    """Run a node, a stream of web activity, two groups, a job queue and pipelines, then three nodes of which one is
    killed; prove that nothing is lost."""
    from ottla.demo.run import run

    return run(input, seconds, report if pipelines else None, with_cluster=cluster)
