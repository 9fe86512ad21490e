"""`ottla demo`: see the whole thing work on this machine in half a minute."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = "Example: ottla demo --input /var/log/nginx/access.log --seconds 20"


def demo(
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="An access log to replay; else made-up events.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=3, max=600, help="How long events are produced.")] = 12,
) -> int:
    """Start a node, stream web activity through it to two groups, run a job queue, and prove that nothing got lost."""
    from ottla.demo.play import play

    return play(input, seconds)
