"""Where and with what figures were measured: a figure without it says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("ottla", "confluent-kafka", "uvloop", "crc32c", "cramjam")
LOOP_STEPS = 1_000_000
LOOP_ROUNDS = 5


def machine() -> dict[str, str]:
    """Cores, model, memory, kernel, Python and its speed, versions, commit, and how busy the machine was."""
    return {
        "cores": str(os.cpu_count()),
        "model": field_of("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": f"{int((field_of('/proc/meminfo', 'MemTotal') or '0').split()[0]) / (1 << 20):.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, its loop {quickest_loop_s():.3f} s",
        "packages": ", ".join(f"{name} {version_of(name)}" for name in PACKAGES),
        "librdkafka": librdkafka_version(),
        "commit": commit(),
        "load": f"{os.getloadavg()[0]:.2f}",
    }


def machine_line() -> str:
    m = machine()
    return (
        f"{m['cores']} cores, {m['model']}, {m['memory']}, {m['kernel']}, {m['python']}; {m['packages']}, "
        f"librdkafka {m['librdkafka']}; commit {m['commit']}; load {m['load']} before"
    )


def loop_s() -> float:
    """CPU seconds of a small loop. They tell machines apart, and builds of the same Python."""
    began = time.thread_time()
    table: dict[int, int] = {}
    for step in range(LOOP_STEPS):
        table[step & 1023] = table.get(step & 255, 0) ^ step
    return time.thread_time() - began


def quickest_loop_s() -> float:
    return min(loop_s() for _ in range(LOOP_ROUNDS))


def field_of(path: str, key: str) -> str | None:
    """The first `key: value` line of a file in /proc."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def librdkafka_version() -> str:
    from confluent_kafka import libversion

    return libversion()[0]


def commit() -> str:
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
        )
    except FileNotFoundError:  # a machine without git
        return "unknown"
    return run.stdout.strip() or "unknown"
