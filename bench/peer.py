"""Ottla beside Apache Kafka: the same measurements on both, in turns, in one run.

    python -m bench.peer [--only NAME,NAME] [--rounds 5] [--seconds 3] [--no-append]

Starts a node and a Kafka peer, both with their data on /dev/shm, runs `measure.py` on both and appends the table, with
the commit and the machine, to bench/RESULTS.md. `kafka-peer` and `measure.py` are looked for in the directory that
OTTLA_PEER_TOOLS names (default ../shared/bench); Java and Maven are needed for the peer only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path

from bench.brokers import Nodes
from bench.machine import machine
from tools.node_process import free_port

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(os.environ.get("OTTLA_PEER_TOOLS", ROOT.parent / "shared" / "bench"))
RESULTS = ROOT / "bench" / "RESULTS.md"


def start_kafka(directory: Path) -> tuple[int, int]:
    port = free_port()
    answer = subprocess.run(
        [str(TOOLS / "kafka-peer"), "start", str(directory), str(port)], capture_output=True, text=True, check=True
    )
    return int(answer.stdout.split()[1]), port


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--no-append", action="store_true", help="print only")
    options = parser.parse_args()
    if not (TOOLS / "measure.py").exists():
        sys.exit(f"{TOOLS} has no measure.py: name its directory in OTTLA_PEER_TOOLS.")
    nodes = Nodes(None, "page-cache")
    kafka_directory = nodes.base / "kafka"
    try:
        kafka_pid, kafka_port = start_kafka(kafka_directory)
        with nodes.running() as ottla:
            brokers = [f"ottla={ottla.address},{ottla.pid}", f"kafka=127.0.0.1:{kafka_port},{kafka_pid}"]
            lines = measured(brokers, options)
        if not options.no_append:
            append(lines, options)
    finally:
        if (kafka_directory / "kafka.pid").exists():
            subprocess.run([str(TOOLS / "kafka-peer"), "stop", str(kafka_directory)], check=False)
        nodes.close()


def measured(brokers: list[str], options: argparse.Namespace) -> list[str]:
    """What measure.py prints about these."""
    command = [sys.executable, str(TOOLS / "measure.py"), *brokers]
    command += ["--rounds", str(options.rounds), "--seconds", str(options.seconds)]
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
    return lines


def append(lines: list[str], options: argparse.Namespace) -> None:
    m = machine()
    where = f"{m['cores']} cores, {m['model']}, {m['kernel']}, {m['python']}"
    head = (
        f"\n## {datetime.date.today().isoformat()}, commit {m['commit']}\n\n"
        f"{where}; {options.rounds} rounds of {options.seconds:g} s; medians, ratio Ottla over Kafka "
        "[lowest to highest pair of rounds].\n\n```\n"
    )
    with RESULTS.open("a") as file:
        file.write(head + "\n".join(line for line in lines if line.strip()) + "\n```\n")


if __name__ == "__main__":
    main()
