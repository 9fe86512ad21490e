"""Runs the nodes of a cluster of one machine as processes: where their files are, how one is started, watched, stopped.

Knows the directory of a cluster: `cluster.json` with what it was started as, `metadata.sqlite`, and for each node N its
data in N/, its process id in N/ottla.pid and its log in N.log. Does not know what a node does.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO

from ottla import private
from ottla.cli.cluster.plan import Plan
from ottla.cli.output import Failure, say

METADATA = "metadata.sqlite"
SUPERVISOR = "supervisor.pid"
PID = "ottla.pid"
NODE_FILE = "meta.properties"
"""In the data directory of a node."""
LEASE_MS = 6_000
"""broker.session.timeout.ms: a process that has died is missed at once, so it is for those that stand still."""
STOP_S = 60.0
START_S = 120.0


def directory_of(data: Path) -> Path:
    """The directory of a cluster as its nodes are told of it, whatever links lead there."""
    return Path(os.path.realpath(data))


@contextmanager
def starting(directory: Path) -> Iterator[Callable[[], None]]:
    """Let nobody else start nodes here meanwhile: who has waited finds them running. What is given ends it early."""
    with ExitStack() as held:
        lock = os.open(directory, os.O_RDONLY)
        held.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield held.close


def removed_nodes(directory: Path, nodes: int) -> list[int]:
    """Those of nodes 1 to `nodes` that have been of this cluster, and that it was told to forget (`ottla nodes
    remove`). None where its metadata can't be read: a node that starts says why."""
    begun = [number for number in range(1, nodes + 1) if (directory / str(number) / NODE_FILE).exists()]
    if not begun or not (directory / METADATA).exists():
        return []
    from ottla.metadata.nodes import PREFIX
    from ottla.metadata.sqlite import SqliteStore
    from ottla.metadata.store import StoreFailed

    try:
        with closing(SqliteStore(str(directory / METADATA))) as store:
            known = {key.removeprefix(PREFIX) for key, _ in store.list(PREFIX)}
    except StoreFailed:
        return []
    return [number for number in begun if str(number) not in known]


class NodeProcess:
    """One node that this process has started. `serving` is set when it serves, or has ended."""

    def __init__(self, directory: Path, plan: Plan, number: int, *, log: IO[str] | None) -> None:
        self.number = number
        self.address = plan.addresses[number - 1]
        self.began = time.monotonic()
        self.serves = False
        self.settled = threading.Event()
        self.last_words = ""
        own = directory / str(number)
        if (open_to_others := private.make_directory(own)) is not None:
            tell(open_to_others)
        # Of a session of its own: ^C on the terminal is for who watches over the nodes, and stops them in order.
        self.process = subprocess.Popen(
            command(directory, plan, number),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if log is None else log,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        private.write(own / PID, f"{self.process.pid}\n")
        threading.Thread(target=self._read_greeting, daemon=True).start()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_greeting(self) -> None:
        assert self.process.stdout is not None
        self.serves = bool(self.process.stdout.readline())
        if not self.serves:
            self.process.wait()
            self._reader.join(1)
        self.settled.set()

    def _read_log(self) -> None:
        for line in self.process.stderr or ():
            self.last_words = line.rstrip().removeprefix("ottla: ")
            tell(f"{self.number} | {line.rstrip()}")


def tell(sentence: str) -> None:
    """Say this to who watches. Where that can't be, as a disk is full or nobody reads any more, the nodes run on."""
    with suppress(OSError):
        say(sentence, err=True)


def command(directory: Path, plan: Plan, number: int) -> list[str]:
    """How this node is started. Unless the plan says otherwise: with three copies of everything, or as many as the
    cluster has nodes, and a lease that need not wait for a network."""
    from ottla.broker.topics.new_topic import replication_factors

    defaults = [f"{key}={factor}" for key, factor in replication_factors(len(plan.members)).items()]
    defaults.append(f"broker.session.timeout.ms={LEASE_MS}")
    words = [sys.executable, "-m", "ottla", "serve", "--node-id", str(number), "--data", str(directory / str(number))]
    words += ["--listen", plan.addresses[number - 1], "--metadata", str(directory / METADATA)]
    for setting in (*defaults, *plan.settings):
        words += ["--set", setting]
    return words


# ---- who runs ------------------------------------------------------------------------------------------------------


def running_nodes(directory: Path) -> dict[int, int]:
    """The process ids of all nodes that run here, by number, also of those that no plan names."""
    numbers = sorted(int(file.parent.name) for file in directory.glob(f"*/{PID}") if file.parent.name.isdecimal())
    found = {number: running(directory, number) for number in numbers}
    return {number: pid for number, pid in found.items() if pid is not None}


def running(directory: Path, number: int) -> int | None:
    """The process id of this node, where it runs."""
    return alive(directory / str(number) / PID, str(directory / str(number)))


def supervisor(directory: Path) -> int | None:
    """The process id of who watches over the nodes, where somebody does."""
    return alive(directory / SUPERVISOR, "cluster")


def alive(file: Path, word: str) -> int | None:
    """The process that the file names, if it is there and has this word in its command: ids are used again."""
    try:
        pid = int(file.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if word.encode() in words else None


def end(pid: int, what: str, seconds: float | None = None) -> None:
    """Stop this process in order, and wait for its end. Raises Failure where it does not end."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    seconds = STOP_S if seconds is None else seconds
    until = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and not is_zombie(pid):
        if time.monotonic() > until:
            raise Failure(f"{what} (process {pid}) has not ended after {seconds:.0f} s.")
        time.sleep(0.02)


def end_all(nodes: Mapping[int, int]) -> None:
    """Stop these nodes in order. Raises Failure for the first that does not end, when the others have."""
    failures: list[Failure] = []
    for number, pid in nodes.items():
        try:
            end(pid, f"Node {number}")
        except Failure as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def is_zombie(pid: int) -> bool:
    """Whether it has ended, and nobody has asked for its exit code yet."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def await_active(addresses: Sequence[str], numbers: Sequence[int], watched: Sequence[NodeProcess] = ()) -> None:
    """Return when all these nodes know of each other as active. Raises Failure."""
    from ottla.client import Client, ClientFailure
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    until = time.monotonic() + START_S
    for address in addresses:
        while True:
            with suppress(ClientFailure), Client(address) as client:
                told = {broker.broker_id for broker in client.send(DescribeClusterRequest()).brokers}
                if told >= set(numbers):
                    break
            for node in watched:
                if node.process.poll() is not None:
                    raise Failure(f"Node {node.number} has ended: {node.last_words}")
            if time.monotonic() > until:
                raise Failure(f"The node at {address} does not see all of {', '.join(map(str, numbers))} yet.")
            time.sleep(0.02)
