"""A node in a process of its own, for tools that kill it, watch its memory or read its log.

Knows how to start `python -m ottla serve` on a port that stays the same over restarts, and what the process says.
Invariant: only processes started here are ever signalled, by their id.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

START_TIMEOUT_S = 60.0


def held_port(port: int = 0) -> socket.socket:
    """A port that is kept for us as long as this socket is open, also while nobody listens there; 0: any.

    A node may listen on it meanwhile. It is given to nobody else: no server that wants any port, and no client's own
    end of a connection, which could meet itself there when it tries again and again to reach a node that is dead.
    """
    holder = socket.socket()
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        raise
    return holder


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def held_ports(count: int) -> Iterator[int]:
    """The first of so many ports in a row, kept for us as `held_port` does."""
    with ExitStack() as held:
        while True:
            first = held.enter_context(held_port()).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(held_port(port))
                break
            except (OSError, OverflowError):
                held.close()
        yield first


class NodeProcess:
    """`ottla serve` on one directory and port. `tracebacks` are the errors of the node's own that it logged."""

    def __init__(self, directory: str | Path, settings: Mapping[str, str] | None = None, port: int = 0) -> None:
        self.directory = str(directory)
        holder = held_port(port)
        self.port: int = holder.getsockname()[1]
        weakref.finalize(self, holder.close)
        self.settings = dict(settings or {})
        self.tracebacks: list[str] = []
        self.last_lines: deque[str] = deque(maxlen=200)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> float:
        """Start and wait until the port takes connections; the seconds that took. RuntimeError if it does not."""
        began = time.monotonic()
        command = [sys.executable, "-m", "ottla", "serve", "--data", self.directory, "--listen", self.bootstrap]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reader.start()
        while time.monotonic() - began < START_TIMEOUT_S:
            if not self.alive:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return time.monotonic() - began
            except OSError:
                time.sleep(0.01)
        raise RuntimeError("the node did not start:\n" + "".join(self.last_lines))

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        if self.alive:
            self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise RuntimeError(f"the node did not stop within {timeout_s:g} s") from None
        return self._wait()

    def _wait(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait()
        self._reader.join(10)
        return code

    def rss_mb(self) -> float:
        """Resident memory."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def _read(self, stream: IO[str]) -> None:
        trace: list[str] = []
        for line in stream:
            self.last_lines.append(line)
            if line.startswith("Traceback"):
                trace = [line]
            elif trace:
                trace.append(line)
                if not line.startswith((" ", "\n")):
                    self.tracebacks.append("".join(trace))
                    trace = []
        if trace:
            self.tracebacks.append("".join(trace))


def crash_main(run: Callable[[int, int, str, str], list[str]], about: str | None, rounds: int, passed: str) -> int:
    """The command line of a loop of kills: `run` is given rounds, seed, directory and durability, and says what
    failed. Returns the exit code."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", help="where the node keeps its data; a temporary directory without it")
    parser.add_argument("--durability", choices=("page-cache", "fsync"), default="page-cache")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-crash-") as temporary:
        directory = arguments.directory or temporary
        failures = run(arguments.rounds, arguments.seed, directory, arguments.durability)
    for failure in failures:
        print(f"FAILED: {failure}")
    print("failed" if failures else passed)
    return 1 if failures else 0
