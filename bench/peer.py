"""Ottla beside Apache Kafka: the same measurements on both, in turns, in one run.

    python bench/peer.py [--only NAME,NAME] [--rounds 5] [--seconds 3] [--no-append]

Starts a node and a Kafka peer, both with their data on /dev/shm, runs `measure.py` on both and appends the table, with
the commit and the machine, to bench/RESULTS.md. `kafka-peer` and `measure.py` are looked for in the directory that
OTTLA_PEER_TOOLS names (default ../shared/bench); Java and Maven are needed for the peer only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(os.environ.get("OTTLA_PEER_TOOLS", ROOT.parent / "shared" / "bench"))
RESULTS = ROOT / "bench" / "RESULTS.md"
OTTLA_SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(port: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit(f"nothing listens on 127.0.0.1:{port}")


def start_ottla(directory: Path) -> tuple[subprocess.Popen[bytes], int]:
    port = free_port()
    settings = [text for name, value in OTTLA_SETTINGS.items() for text in ("--set", f"{name}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", "ottla", "serve", "--data", str(directory), "--listen", f"127.0.0.1:{port}", *settings],
        stdout=subprocess.DEVNULL,
        stderr=(directory.parent / "ottla.log").open("wb"),
    )
    wait_for(port)
    return process, port


def start_kafka(directory: Path) -> tuple[int, int]:
    port = free_port()
    answer = subprocess.run(
        [str(TOOLS / "kafka-peer"), "start", str(directory), str(port)], capture_output=True, text=True, check=True
    )
    return int(answer.stdout.split()[1]), port


def machine() -> str:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    return f"{os.cpu_count()} cores, {model}, Linux {platform.release()}, Python {platform.python_version()}"


def commit() -> str:
    text = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return text.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--no-append", action="store_true", help="print only")
    options = parser.parse_args()
    if not (TOOLS / "measure.py").exists():
        sys.exit(f"{TOOLS} has no measure.py: name its directory in OTTLA_PEER_TOOLS.")
    work = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir="/dev/shm"))
    ottla, kafka_directory = None, work / "kafka"
    try:
        kafka_pid, kafka_port = start_kafka(kafka_directory)
        ottla, ottla_port = start_ottla(work / "ottla")
        command = [
            sys.executable,
            str(TOOLS / "measure.py"),
            f"ottla=127.0.0.1:{ottla_port},{ottla.pid}",
            f"kafka=127.0.0.1:{kafka_port},{kafka_pid}",
            "--rounds",
            str(options.rounds),
            "--seconds",
            str(options.seconds),
        ]
        if options.only:
            command += ["--only", options.only]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                print(line, end="", flush=True)
                lines.append(line.rstrip())
        if run.returncode:
            sys.exit(f"measure.py ended with {run.returncode}")
        if not options.no_append:
            append(lines, options)
    finally:
        if ottla is not None:
            ottla.terminate()
            ottla.wait(30)
        if (kafka_directory / "kafka.pid").exists():
            subprocess.run([str(TOOLS / "kafka-peer"), "stop", str(kafka_directory)], check=False)
        shutil.rmtree(work, ignore_errors=True)


def append(lines: list[str], options: argparse.Namespace) -> None:
    head = (
        f"\n## {datetime.date.today().isoformat()}, commit {commit()}\n\n"
        f"{machine()}; {options.rounds} rounds of {options.seconds:g} s; medians, ratio Ottla over Kafka "
        "[lowest to highest pair of rounds].\n\n```\n"
    )
    with RESULTS.open("a") as file:
        file.write(head + "\n".join(line for line in lines if line.strip()) + "\n```\n")


if __name__ == "__main__":
    main()
