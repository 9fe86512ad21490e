"""Spares small tasks in Spark's Python workers two waits: for TCP's acknowledgement and for garbage collection.

Forty milliseconds of TCP. The JVM sends a worker a task in two parts, the function and then its input. Neither side
has set TCP_NODELAY, so the second, small part waits until the first is acknowledged (RFC 896, Nagle), and the worker's
system has a reason to wait with that for up to 40 ms (RFC 1122, delayed acknowledgements). The worker makes our reader
or writer out of the first part before it reads the second: that is when it acknowledges.

Twenty to thirty milliseconds of garbage collection. The daemon has a worker collect after each task, which walks all
that was ever imported. What is there after a worker's first task stays for good and need not be walked.

Source: PySpark's daemon.py (the worker's socket, `gc.collect`), PythonWorkerFactory.scala, tcp(7).
"""

from __future__ import annotations

import gc
import os
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any

QUICKACK = getattr(socket, "TCP_QUICKACK", None)
"""Linux only. Holds for what was received, not for good."""
_spared = 0
"""The process whose collections have been made cheap."""


class SentToWorkers:
    """What Spark pickles for its workers: acknowledged as soon as it is there."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


class WorkerFunction(SentToWorkers):
    """A function for `mapInArrow` that is spared both."""

    def __init__(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self.function = function

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from self.function(batches)
        spare_collections()


def acknowledge() -> None:
    """Acknowledge what this process's TCP connections have received, and send small parts without waiting from now on.

    Which of them leads to the JVM nobody says, and it does none of them harm.
    """
    if QUICKACK is None or not os.path.isdir("/proc/self/fd"):
        return
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    each.setsockopt(socket.IPPROTO_TCP, QUICKACK, 1)
        except OSError:
            continue  # closed meanwhile


def spare_collections() -> None:
    """Keep what is there out of all collections to come. Does nothing when it is called again in the same process."""
    global _spared
    if _spared != os.getpid():
        _spared = os.getpid()
        gc.collect()
        gc.freeze()
