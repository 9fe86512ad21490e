"""`ottla demo`: see the whole thing work on this machine in two minutes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from ottla.cli.output import say

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
    console: Annotated[
        bool, typer.Option("--console", help="Keep the nodes at the end and show them in the browser, until Ctrl-C.")
    ] = False,
) -> int:
    """Run a node, then three nodes of which one is killed, and verify that nothing is lost.

    The node has a stream of web activity, two groups, a job queue and pipelines.
    """
    from ottla.demo.run import run

    shown = show if console else None
    return run(input, seconds, report if pipelines else None, with_cluster=cluster, show=shown)


def show(places: dict[str, str]) -> None:
    """Show nodes in the browser until Ctrl-C. `places`: addresses by a sentence about what happened there."""
    from ottla.cli.console_process import ConsoleProcess

    consoles: list[ConsoleProcess] = []
    try:
        for sentence, bootstrap in places.items():
            say(sentence)
            consoles.append(ConsoleProcess(bootstrap, "127.0.0.1:0", say))
            consoles[-1].started.wait()
        say("Ctrl-C ends the nodes and removes their data.")
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        for each in consoles:
            each.stop()
