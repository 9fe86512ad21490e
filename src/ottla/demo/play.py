"""Plays the acts, one after the other, and clears the stage."""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.demo.acts import ACTS, ActFailed
from ottla.demo.node import NodeFailed
from ottla.demo.stage import Stage


def play(source: Path | None, seconds: float, report: Path | None) -> int:
    """0 when every act came about and the proof holds, 1 where one did not, 2 where the input cannot be read.

    `report`: where the last act writes its page; None leaves that act out.
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
    stage = Stage(Console(), source, seconds, report)
    try:
        for act in ACTS if report is not None else ACTS[:-1]:
            stage.console.print(f"\n[bold]{act.__doc__}[/bold]", highlight=False, soft_wrap=True)
            act(stage)
    except (ActFailed, NodeFailed) as failure:
        stage.hide()
        print(f"ottla: {failure}", file=sys.stderr)
        return 1
    finally:
        stage.clear()
    return 0
