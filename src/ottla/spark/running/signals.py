"""Ends Spark's work when SIGINT or SIGTERM arrives: queries after their running batch, everything else at once.

A call into Spark's JVM waits in the main thread for its answer. The signal interrupts that wait, but the JVM continues,
and so does PySpark. PySpark waits again for the end of the job (`DataFrame.toArrow`), and `SparkSession.stop()` waits
for the interrupted call on the same connection. A job that waits for executors never ends. The signal therefore ends
the JVM itself: every call into it fails at once.

Source: the modules `clientserver` of py4j (one connection per thread) and `sql.pandas.conversion` of PySpark.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGINT)
JVM_ENDS_S = 10.0
"""How long the JVM may run its shutdown hooks (temporary files, the cluster's master) before it is killed."""


@contextmanager
def stopped_by_signals() -> Iterator[threading.Event]:
    """Let SIGINT and SIGTERM set the event. A second signal calls the previous handler and raises KeyboardInterrupt.
    For the main thread; in other threads the event is never set."""
    stopped = threading.Event()

    def stop(number: int, frame: Any) -> None:
        if not stopped.is_set():
            stopped.set()
            return
        earlier = before.get(number)
        if callable(earlier):
            earlier(number, frame)
        raise KeyboardInterrupt

    with handled(stop) as before:
        yield stopped


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGINT and SIGTERM end Spark's JVM and raise KeyboardInterrupt, whatever the main thread is waiting for. A second
    one kills the JVM. For a command that ends afterwards, because it has no session any more."""
    ended: list[subprocess.Popen[bytes] | None] = []

    def end(number: int, frame: Any) -> NoReturn:
        warnings.simplefilter("ignore")  # PySpark warns of a JVM that has ended
        jvm = jvm_process()
        if jvm is not None:
            end_jvm(jvm, at_once=bool(ended))
        ended.append(jvm)
        raise KeyboardInterrupt

    with warnings.catch_warnings(), handled(end):
        try:
            yield
        except Exception:
            if ended:  # a call into the JVM that has ended
                raise KeyboardInterrupt from None
            raise
        finally:
            for jvm in ended[:1]:
                if jvm is not None:
                    jvm.wait()


def jvm_process() -> subprocess.Popen[bytes] | None:
    """Spark's JVM, where this process has started it."""
    context = sys.modules.get("pyspark.core.context")
    return getattr(context and context.SparkContext._gateway, "proc", None)


def end_jvm(jvm: subprocess.Popen[bytes], *, at_once: bool) -> None:
    """Send SIGTERM, which runs Spark's shutdown hooks, and SIGKILL if these take too long."""

    def kill_if_late() -> None:
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(JVM_ENDS_S)
            return
        jvm.kill()

    if at_once:
        jvm.kill()
    elif jvm.poll() is None:
        jvm.terminate()
        threading.Thread(target=kill_if_late, name="spark-end", daemon=True).start()


@contextmanager
def handled(handler: Callable[[int, Any], None]) -> Iterator[Mapping[int, Any]]:
    """Set a handler for both signals, where this is the main thread; yields the handlers that were set before."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    before: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}
    for number in before:
        signal.signal(number, handler)
    try:
        yield before
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
