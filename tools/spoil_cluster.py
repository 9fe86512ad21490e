"""Damage the disk of one node of a cluster, also while it runs, and prove that the cluster repairs itself.

    python -m tools.spoil_cluster [--minutes 5] [--seed 1] [--metadata sqlite|zookeeper] [--directory DIR]

Three node processes, round after round. In each round the disk of one node is spoiled (`spoiled_disk`), while the node
is down or runs, in addition to faults of `crash_cluster`: nodes are killed, stopped, paused and cut off. Idempotent
producers with acks=all write meanwhile. Then the faults end. A round fails if `ottla cluster describe` does not come
back to all replicas in sync, if a node logs an error of its own, if an acknowledged record is lost or moved, or if
`ottla log verify` finds damage on any node. The first round that fails is the last one.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from ottla.cli.main import main as ottla
from ottla.client import ClientError
from tools.cluster_faults import NODES, Fault, Faults
from tools.crash_cluster import LOG, SETTINGS, SETTLE_S, plans, play, report
from tools.crash_transactions import PARTITIONS
from tools.history import History, Place, Record, check
from tools.recorded_clients import Sender, read_log
from tools.spoiled_disk import SpoiledDisk

FAULTS = 8
"""In a round."""
SCRUB_S = 2.0
SPOILED: dict[str, object] = {
    **SETTINGS,
    "ottla.scrub.interval.ms": int(SCRUB_S * 1000),
    "ottla.scrub.bytes.per.second": 100_000_000,
    "log.index.size.max.bytes": 80,
}
PAUSE_S = 0.002


def carry_out(faults: Faults, plan: list[Fault], seed: int) -> tuple[int, list[str]]:
    """One round. Returns how many records were acknowledged, and what is wrong."""
    cluster, history = faults.cluster, History()
    senders = [Sender(f"w{n}", cluster.bootstrap_servers, history, LOG, PARTITIONS, PAUSE_S) for n in range(2)]
    failures: list[str] = []
    for sender in senders:
        sender.start()
    try:
        faults.run(plan, LOG)
        faults.heal()
        time.sleep(3 * SCRUB_S)  # every log is read once, and what is damaged is noticed
        await_in_sync(faults)
    except (AssertionError, RuntimeError, TimeoutError, KafkaException, ClientError) as error:
        failures.append(f"{type(error).__name__}: {error}")
    for sender in senders:
        sender.done.set()
    for sender in senders:
        sender.join(SETTLE_S)
        failures += [sender.failure] if sender.failure else [f"{sender.name} hangs"] if sender.is_alive() else []
    if not failures:
        for place in [(LOG, partition) for partition in range(PARTITIONS)]:
            history.logs[place] = read_whole(cluster.bootstrap_servers, place)
        failures += check(history)
        failures += [f"node {node}: {line}" for node in NODES for line in damage(Path(cluster.directory, str(node)))]
    return sum(sender.acknowledged for sender in senders), failures


def read_whole(bootstrap: str, place: Place) -> list[Record]:
    """A log, as `read_log` finds it. A client that has just found no broker may not know the partition yet."""
    until = time.monotonic() + SETTLE_S
    while True:
        try:
            return read_log(bootstrap, place)
        except KafkaException:
            if time.monotonic() > until:
                raise


def await_in_sync(faults: Faults) -> None:
    until = time.monotonic() + SETTLE_S
    while lacks := lacking(faults):
        assert time.monotonic() < until, f"`ottla cluster describe` still shows {lacks}"
        time.sleep(0.5)


def lacking(faults: Faults) -> list[Any]:
    """What `ottla cluster describe` shows at each node of partitions without a leader or an in-sync replica."""
    return [each for node in NODES for each in described(faults.cluster.address_of(node))]


def described(address: str) -> list[Any]:
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
        code = ottla(["cluster", "describe", "--bootstrap", address, "--format", "json"])
    if code:
        return [f"{address} does not answer"]
    told = json.loads(out.getvalue())
    return [*told["lacking"], *(node for node in told["nodes"] if node["state"] != "up")]


def damage(directory: Path) -> list[str]:
    """The damaged places that `ottla log verify` finds."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
        code = ottla(["log", "verify", str(directory)])
    return out.getvalue().splitlines() if code else []


def run(
    rounds: Iterable[list[Fault]],
    seed: int,
    directory: str,
    *,
    zookeeper: bool = False,
    say: Callable[[str], object] = print,
) -> list[str]:
    """A round with each of these plans; what failed in the last one."""
    with (
        tempfile.TemporaryDirectory() as copies,
        Faults(random.Random(seed), directory, SPOILED, zookeeper=zookeeper) as faults,
    ):

        def one(number: int, plan: list[Fault]) -> tuple[list[str], str]:
            rng = random.Random(f"{seed}-{number}-disk")
            node = rng.choice(NODES)
            disk = faults.spoiled = SpoiledDisk(
                node, Path(faults.cluster.directory, str(node)), Path(copies, str(number)), rng
            )
            acknowledged, found = carry_out(faults, plan, seed + number)
            return found, f"{acknowledged} records acknowledged; node {node}: {'; '.join(disk.strikes)}"

        return play(faults, rounds, directory, one, say)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--metadata", choices=("sqlite", "zookeeper"), default="sqlite")
    parser.add_argument("--directory", help="where the nodes keep their data; a new directory without it")
    given = parser.parse_args()
    directory = given.directory or tempfile.mkdtemp(prefix="ottla-spoil-")
    zookeeper = given.metadata == "zookeeper"
    rounds = plans(given.seed, given.minutes, FAULTS, zookeeper=zookeeper, disks=True)
    failures = run(rounds, given.seed, directory, zookeeper=zookeeper)
    proven = "nothing acknowledged was lost, and every replica is whole"
    return report(failures, directory, proven, keep=given.directory is not None)


if __name__ == "__main__":
    sys.exit(main())
