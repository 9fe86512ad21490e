"""Signals end Spark's JVM, whatever the main thread waits for. Other processes stand for the JVM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from ottla.spark.running import signals
from ottla.spark.running.signals import ended_by_signals, stopped_by_signals

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"
MILD = "import time; print(flush=True); time.sleep(3600)"


def wait_twice(jvm: subprocess.Popen[bytes], number: int) -> None:
    """As PySpark does: a call that a signal interrupts, a wait for the end of the job, a call that fails."""
    threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
    try:
        jvm.wait()
    finally:
        jvm.wait()
        raise ConnectionRefusedError


def send_two(stopped: threading.Event) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.wait(30)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(30)


@pytest.mark.parametrize(("program", "killed_by"), [(MILD, signal.SIGTERM), (STUBBORN, signal.SIGKILL)])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_jvm_that_the_main_thread_waits_for(
    program: str, killed_by: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as jvm:
        try:
            assert jvm.stdout is not None
            jvm.stdout.readline()
            monkeypatch.setattr(signals, "jvm_process", lambda: jvm)
            monkeypatch.setattr(signals, "JVM_ENDS_S", 0.2)
            before = signal.getsignal(number)
            with pytest.raises(KeyboardInterrupt), ended_by_signals():
                wait_twice(jvm, number)
            assert jvm.returncode == -killed_by
            assert signal.getsignal(number) == before
        finally:
            jvm.kill()


def test_a_second_signal_does_what_the_first_did_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "jvm_process", lambda: None)
    with pytest.raises(KeyboardInterrupt), ended_by_signals(), stopped_by_signals() as stopped:
        send_two(stopped)
    with pytest.raises(ValueError, match="other"), ended_by_signals():
        raise ValueError("another failure is told as it is: other")
