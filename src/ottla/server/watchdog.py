"""Starts a watchdog for a cluster node: a process that hangs up on the node's clients while the node is stopped.

A process that is stopped, or waits for a hanging disk, keeps its connections, and its kernel accepts new ones. The
other nodes take it for dead once its lease has expired, and replace it as leader. A client that is only connected to
this node does not learn that before its own time-outs: librdkafka 10 to 20 s (bench/RESULTS.md). If the connection is
closed, the client asks another node.

The process is `watchdog_process.py`; this module starts it and gives it beats while the event loop runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys

from ottla.machine import Millis
from ottla.server import watchdog_process
from ottla.server.clocks import moment

START_S = 1.0
"""Seconds before the watchdog starts, so that the node serves first."""
BEATS = 20
"""Number of beats within the time that a node may be silent."""
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_PR_SET_PTRACER = 0x59616D61

log = logging.getLogger("ottla.cluster")


class Watchdog:
    """A watchdog of this process, from soon after construction until `stop`. `silence_ms`: how long the event loop,
    which runs at construction, may be stopped."""

    def __init__(self, silence_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._silence_ms = silence_ms
        self._last: Millis = moment()
        self._beats = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._timer = self._loop.call_later(START_S, self._start)

    def stop(self) -> None:
        self._timer.cancel()
        if self._process is not None:
            os.close(self._beats)
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        program = [
            sys.executable,
            "-I",
            "-S",
            watchdog_process.__file__,
            str(os.getpid()),
            str(self._silence_ms / 1000),
        ]
        reading, self._beats = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._beats, False)
        try:
            self._process = subprocess.Popen(program, stdin=reading, stdout=subprocess.DEVNULL, cwd="/")
            _allow(self._process.pid)
        except OSError as error:
            os.close(self._beats)
            log.info("the node has no watchdog: %s", error)
        else:
            self._last = moment()
            self._beat()
        finally:
            os.close(reading)

    def _beat(self) -> None:
        """Send a beat: the event loop runs."""
        now = moment()
        silent_ms, self._last = now - self._last, now
        if silent_ms > self._silence_ms:
            log.warning(
                "the node made no progress for %.1f s; its watchdog closed the connections of clients", silent_ms / 1000
            )
        try:
            os.write(self._beats, b".")
        except BlockingIOError:
            pass  # the watchdog itself is stopped
        except BrokenPipeError:
            log.warning("the node's watchdog was killed; the node continues without it")
            return
        self._timer = self._loop.call_later(self._silence_ms / BEATS / 1000, self._beat)


def _allow(process: int) -> None:
    """Let a process get this one's sockets where the system permits only parents to do so."""
    try:
        with open(_YAMA) as file:
            scope = file.read().strip()
    except OSError:
        return
    if scope == "1":
        import ctypes  # a hundredth of a second

        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, process, 0, 0, 0)
