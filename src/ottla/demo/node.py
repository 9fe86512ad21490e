"""Starts a node for the demonstration: `ottla serve` as a child process, on a free port, in a directory of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "1000",
}
"""A short wait for the first members, and a session timeout below Kafka's minimum of six seconds."""

STOP_TIMEOUT_S = 20.0


class NodeFailedError(Exception):
    """The node did not start; the text is its own error message."""


class NodeProcess:
    """A child process that runs a node. `address` is HOST:PORT, `start_ms` the time until clients could connect."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""
        self.start_ms = 0
        self._log = directory / "node.log"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        began = time.monotonic()
        command = [sys.executable, "-m", "ottla", "serve", "--data", str(self.directory / "data")]
        command += ["--listen", self.address or "127.0.0.1:0", "--log-format", "json"]
        for key, value in SETTINGS.items():
            command += ["--set", f"{key}={value}"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            said = self._log.read_text().strip().splitlines()
            raise NodeFailedError(said[-1] if said else "The node ended without a word.")
        self.address = json.loads(line)["address"]
        self.start_ms = round((time.monotonic() - began) * 1000)

    def stop(self) -> None:
        """Stop cleanly; kill the process if that takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
