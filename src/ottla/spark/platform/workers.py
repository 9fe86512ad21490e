"""Spares small tasks in Spark's Python workers two delays: TCP's acknowledgement and garbage collection.

**TCP: 40 ms.** The JVM sends a worker a task in two parts, the function and then its input. Neither side has set
TCP_NODELAY, so the second, small part waits until the first is acknowledged (RFC 896, Nagle). The worker's system may
delay that acknowledgement by up to 40 ms (RFC 1122). The worker makes the reader or writer from the first part before
it reads the second, and acknowledges at that moment.

**Garbage collection: 20 to 30 ms.** The daemon makes a worker collect after each task, which walks all imported
objects. Objects that exist after a worker's first task stay until it exits, so walking them is useless.

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
"""Linux only. It applies to data received so far, not permanently."""
_spared = 0
"""The process whose collections have been made cheap."""


class SentToWorkers:
    """An object that Spark pickles for its workers; a worker acknowledges it as soon as it has arrived."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        acknowledge()


class WorkerFunction(SentToWorkers):
    """A function for `mapInArrow` without both delays."""

    def __init__(self, function: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        self.function = function

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        yield from self.function(batches)
        spare_collections()


def acknowledge() -> None:
    """Acknowledge the data received on this process's TCP connections, and send small parts without delay from now on.

    It is unknown which of them leads to the JVM, and the option harms none of them.
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
    """Exempt all current objects from future collections. Does nothing when called again in the same process."""
    global _spared
    if _spared != os.getpid():
        _spared = os.getpid()
        gc.collect()
        gc.freeze()
