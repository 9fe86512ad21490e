"""Runs the nodes of a cluster of one machine as processes: their files, and how they are started, watched and stopped.

The directory of a cluster contains `cluster.json` with its plan, and `metadata.sqlite`. Node N has its data in N/, its
process id in N/ottla.pid and its log in N.log.
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
from ottla.cli.cluster.secured import client_file, clients_of, node_file
from ottla.cli.output import CommandError, say

METADATA = "metadata.sqlite"
SUPERVISOR = "supervisor.pid"
PID = "ottla.pid"
NODE_FILE = "meta.properties"
"""A file in the data directory of every node."""
LEASE_MS = 6_000
"""broker.session.timeout.ms: it only has to catch frozen processes, because a dead one is noticed at once."""
STOP_S = 60.0
START_S = 120.0


def directory_of(data: Path) -> Path:
    """The directory of a cluster in the form that its nodes get, with links resolved."""
    return Path(os.path.realpath(data))


@contextmanager
def starting(directory: Path) -> Iterator[Callable[[], None]]:
    """Lock out other commands that start nodes here; a command that waited then finds the nodes running. The yielded
    function ends the lock early."""
    with ExitStack() as held:
        lock = os.open(directory, os.O_RDONLY)
        held.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield held.close


def removed_nodes(directory: Path, nodes: int) -> list[int]:
    """Those of nodes 1 to `nodes` that were removed from this cluster (`ottla nodes remove`). An empty list if its
    metadata cannot be read: a node that starts reports why."""
    begun = [number for number in range(1, nodes + 1) if (directory / str(number) / NODE_FILE).exists()]
    if not begun or not (directory / METADATA).exists():
        return []
    from ottla.metadata.nodes import PREFIX
    from ottla.metadata.sqlite import SqliteStore
    from ottla.metadata.store import StoreError

    try:
        with closing(SqliteStore(str(directory / METADATA))) as store:
            known = {key.removeprefix(PREFIX) for key, _ in store.list(PREFIX)}
    except StoreError:
        return []
    return [number for number in begun if str(number) not in known]


class NodeProcess:
    """One node that this process has started. `settled` is set when it is ready, or has exited."""

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
        # A session of its own, because Ctrl-C in the terminal is for the supervisor, which stops the nodes in order.
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
    """Print this for the user. If that fails, because a disk is full or the terminal is gone, the nodes continue to
    run."""
    with suppress(OSError):
        say(sentence, err=True)


def command(directory: Path, plan: Plan, number: int) -> list[str]:
    """The command that starts this node. By default its replication factors are 3, or the number of nodes if that is
    less. Its lease is short, because it need not wait for a network."""
    from ottla.broker.topics.new_topic import replication_factors

    defaults = [f"{key}={factor}" for key, factor in replication_factors(len(plan.members)).items()]
    defaults.append(f"broker.session.timeout.ms={LEASE_MS}")
    words = [sys.executable, "-m", "ottla", "serve", "--node-id", str(number), "--data", str(directory / str(number))]
    address = plan.addresses[number - 1]
    if plan.secure:
        words += ["--config", str(node_file(directory))]
        address = f"SASL_SSL://{address}"
        if (own := plan.own_certificates) is not None:
            defaults += [f"{key}={value}" for key, value in own.settings_of(number).items()]
    words += ["--listen", address, "--metadata", str(directory / METADATA)]
    for setting in (*defaults, *plan.settings):
        words += ["--set", setting]
    return words


# ---- running processes ---------------------------------------------------------------------------------------------


def running_nodes(directory: Path) -> dict[int, int]:
    """The process ids of all nodes that run here, by number, including nodes that are in no plan."""
    numbers = sorted(int(file.parent.name) for file in directory.glob(f"*/{PID}") if file.parent.name.isdecimal())
    found = {number: running(directory, number) for number in numbers}
    return {number: pid for number, pid in found.items() if pid is not None}


def running(directory: Path, number: int) -> int | None:
    """The process id of this node, if it runs."""
    return alive(directory / str(number) / PID, str(directory / str(number)))


def supervisor(directory: Path) -> int | None:
    """The process id of the supervisor, if there is one."""
    return alive(directory / SUPERVISOR, "cluster")


def alive(file: Path, word: str) -> int | None:
    """The process id in the file, if the process exists and has this word in its command line: process ids are
    reused."""
    try:
        pid = int(file.read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if word.encode() in words else None


def end(pid: int, what: str, seconds: float | None = None) -> None:
    """Stop this process with SIGTERM, and wait until it exits. Raises CommandError if it does not."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    seconds = STOP_S if seconds is None else seconds
    until = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists() and not is_zombie(pid):
        if time.monotonic() > until:
            raise CommandError(f"{what} (process {pid}) has not ended after {seconds:.0f} s.")
        time.sleep(0.02)


def end_all(nodes: Mapping[int, int]) -> None:
    """Stop these nodes one after the other. Raises the Failure of the first that does not exit, after stopping the
    rest."""
    failures: list[CommandError] = []
    for number, pid in nodes.items():
        try:
            end(pid, f"Node {number}")
        except CommandError as failure:
            failures.append(failure)
    if failures:
        raise failures[0]


def is_zombie(pid: int) -> bool:
    """Whether the process has exited but its exit code was not collected yet."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return False


def await_active(directory: Path, plan: Plan, numbers: Sequence[int], watched: Sequence[NodeProcess] = ()) -> None:
    """Return when each of these nodes sees all of them as active. Raises CommandError."""
    from ottla.client import BrokerError, ClientError
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.describe_cluster import DescribeClusterRequest

    connect = clients_of(directory, plan)
    until = time.monotonic() + START_S
    for address in (plan.addresses[number - 1] for number in numbers):
        while True:
            try:
                with connect(address) as client:
                    told = {broker.broker_id for broker in client.send(DescribeClusterRequest()).brokers}
                if told >= set(numbers):
                    break
            except ClientError as failed:
                if isinstance(failed, BrokerError) and failed.code == ErrorCode.SASL_AUTHENTICATION_FAILED:
                    raise CommandError(
                        f"The nodes do not accept the login in {client_file(directory)}: write that of a user there."
                    ) from None
            for node in watched:
                if node.process.poll() is not None:
                    raise CommandError(f"Node {node.number} has ended: {node.last_words}")
            if time.monotonic() > until:
                raise CommandError(f"The node at {address} does not see all of {', '.join(map(str, numbers))} yet.")
            time.sleep(0.02)
