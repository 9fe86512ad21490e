"""Runs a console beside nodes, as a process of its own: `--console` of `serve`, `cluster start` and `demo`.

A process, so that pages take no CPU time from a node's event loop. It ends with the process that started it, however
that one ends: its standard input is a pipe that the system closes then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

WITH_PARENT: Final = "OTTLA_CONSOLE_WITH_PARENT"
"""The variable that tells a console to end with its standard input."""
DEFAULT: Final = "127.0.0.1:9080"
STOP_S: Final = 10.0


class ConsoleProcess:
    """A console for the nodes at `bootstrap`. `say` gets a sentence with its address, or why it did not start; it is
    called on another thread. `started` is set after that. `config`: a file of client properties."""

    def __init__(self, bootstrap: str, listen: str, say: Callable[[str], None], config: Path | None = None) -> None:
        self.started = threading.Event()
        self._say = say
        words = ["--bootstrap", bootstrap, "--listen", listen]
        if config is not None:
            words += ["--command-config", str(config)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "console", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, WITH_PARENT: "1"},
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Pass the address on, and then the audit lines."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline().strip()
        if line:
            self._say(line)
        self.started.set()
        said = ""
        for each in self._process.stderr:
            said = each.strip().removeprefix("ottla: ")
            if line and said.startswith("{"):
                self._say(said)
        if not line:
            self._say(f"The console did not start: {said or 'it said nothing'}")

    def stop(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def end_with_parent(end: Callable[[], None]) -> None:
    """Call `end` when the process that started this one has ended, if it asked for that."""
    if os.environ.get(WITH_PARENT):
        threading.Thread(target=lambda: (sys.stdin.buffer.read(), end()), daemon=True).start()
