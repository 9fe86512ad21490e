"""What is measured: brokers by address, and Ottla nodes that the benchmark starts and stops itself.

Knows processes, /proc and how to make a topic over the wire. Does not know what is measured.
Loopback only: a benchmark must not be pointed at somebody's cluster by a slip.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ottla.client import Client, ClientError
from ottla.client.errors import check
from ottla.client.set_up import ClientSetUp
from ottla.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 300.0
TOPIC_TIMEOUT_S = 120.0
PARTITIONS_PER_TOPIC_MAX = 1_000
"""More partitions than these are spread over several topics: Kafka's controller refuses 10,000 in one request."""
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
"""What differs from the defaults on nodes of our own: `kafka-peer` sets it too."""
NO_SETTINGS: Mapping[str, str] = {}


class BenchFailedError(Exception):
    """A measurement could not be made; the text is one sentence."""


class Broker:
    """A broker at an address; `pid` lets CPU, memory and descriptors be read from the kernel. `access`: how clients
    connect; None for a plain listener."""

    def __init__(self, name: str, address: str, pid: int | None = None, access: ClientSetUp | None = None) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdigit():
            raise BenchFailedError(f"{address!r} is no address of the form HOST:PORT[,PID].")
        if not (host in ("localhost", "[::1]") or host.startswith("127.")):
            raise BenchFailedError(f"{address} is not on this machine: loopback only.")
        if pid is not None and not Path(f"/proc/{pid}").exists():
            raise BenchFailedError(f"There is no process {pid}, which is said to listen on {address}.")
        self.name = name
        self.address = address
        self.pid = pid
        self.access = access or ClientSetUp(address)

    @classmethod
    def parse(cls, name: str, text: str) -> Broker:
        """HOST:PORT[,PID]."""
        address, _, pid = text.partition(",")
        return cls(name, address, int(pid) if pid else None)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def properties(self) -> dict[str, Any]:
        """What every client of librdkafka's is given."""
        return {**self.access.librdkafka(), "bootstrap.servers": self.address, "log_level": 0}

    @functools.cached_property
    def security(self) -> dict[str, Any]:
        """What a client of ours needs besides the address."""
        return {"tls": self.access.context(), "login": self.access.login}

    def client(self) -> Client:
        return Client(self.address, client_id="bench", timeout_s=60, **self.security)

    def create_topic(self, partitions: int = 1, **configs: str) -> str:
        """A new topic all of whose partitions have a leader."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        given = [CreatableTopicConfig(key.replace("_", "."), value) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=given)
        with self.client() as client:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=int(TOPIC_TIMEOUT_S * 1000))
            (answer,) = client.send(request).topics
            check(answer.error_code, f"topic {name}", answer.error_message)
            wait_until(lambda: leads_all(client, name, partitions), TOPIC_TIMEOUT_S, f"{name} has its leaders")
        return name

    def delete_topic(self, name: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=int(TOPIC_TIMEOUT_S * 1000))
        with self.client() as client:
            (answer,) = client.send(request).responses
        check(answer.error_code, f"topic {name}", answer.error_message)

    @contextlib.contextmanager
    def topic(self, partitions: int = 1, **configs: str) -> Iterator[str]:
        """A topic for the length of a block."""
        name = self.create_topic(partitions, **configs)
        try:
            yield name
        finally:
            with contextlib.suppress(ClientError):  # it must not hide what went wrong before
                self.delete_topic(name)

    @contextlib.contextmanager
    def topics(self, partitions: int) -> Iterator[list[tuple[str, int]]]:
        """So many partitions, as (topic, index), for the length of a block."""
        whole, rest = divmod(partitions, PARTITIONS_PER_TOPIC_MAX)
        counts = [PARTITIONS_PER_TOPIC_MAX] * whole + [rest] * (rest > 0)
        names: list[str] = []
        try:
            for count in counts:
                names.append(self.create_topic(count))
            with self.client() as client:  # asked of the partition itself: Kafka tells of leaders before they lead
                for name, count in zip(names, counts, strict=True):
                    client.list_offsets(name, range(count))
            yield [(name, index) for name, count in zip(names, counts, strict=True) for index in range(count)]
        finally:
            with contextlib.suppress(ClientError):
                for name in names:
                    self.delete_topic(name)

    # ---- what the kernel knows of the process ----------------------------------------------------------------------

    def cpu_s(self) -> tuple[float, float] | None:
        """(all, user only) CPU seconds of the process and its living children, in steps of 1/100 s.

        System time is mostly the kernel's copying and fresh pages, much the same for every broker; user time is what
        the broker's own code costs.
        """
        if self.pid is None:
            return None
        user = system = 0
        for pid in family(self.pid):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                user += int(fields[11])
                system += int(fields[12])
        return (user + system) / TICKS_PER_S, user / TICKS_PER_S

    def resident_mb(self) -> float | None:
        """Resident memory in MiB. Pages of mapped files count too: a broker that maps its indexes shows them here."""
        if self.pid is None:
            return None
        return sum(status_kb(pid, "VmRSS") for pid in family(self.pid)) / 1024

    def open_files(self) -> int | None:
        if self.pid is None:
            return None
        files = 0
        for pid in family(self.pid):
            with contextlib.suppress(OSError):
                files += len(os.listdir(f"/proc/{pid}/fd"))
        return files


class OttlaNode(Broker):
    """A node of our own, as a process: `ottla serve` on a port that the system chose and that stays its own."""

    def __init__(self, directory: Path, durability: str, settings: dict[str, str], listen: str | None) -> None:
        super().__init__("ottla", "127.0.0.1:0")
        self.directory = directory
        self._listen = listen
        self.durability = durability
        self.settings = settings
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process and return when it says that it serves."""
        assert self.process is None, "it runs"
        command = [sys.executable, "-m", "ottla", "serve", "--data", str(self.directory)]
        command += [] if self._listen is None else ["--listen", self._listen]
        command += ["--durability", self.durability, "--log-format", "json"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=users_environment())
        self.pid = self.process.pid
        greeting = self._greeting()
        if not greeting:
            self.kill()
            raise BenchFailedError(f"the node did not start: {self.last_words()}")
        self.address = json.loads(greeting)["address"]
        self._listen = None if self._listen is None else self.address

    def _greeting(self) -> bytes:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return self.process.stdout.readline() if selector.select(START_TIMEOUT_S) else b""

    @property
    def log_path(self) -> Path:
        return self.directory.with_suffix(".log")

    def last_words(self) -> str:
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """A clean stop; nothing happens where it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self.process, self.pid = self.process, None, None
        if process is None:
            return
        process.send_signal(number)
        assert process.stdout is not None
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BenchFailedError("the node did not stop when it was asked to") from None
        finally:
            process.stdout.close()


class Nodes:
    """Where nodes of our own are made: each gets an empty directory below one that goes at the end."""

    def __init__(self, data: str | None, durability: str) -> None:
        self.durability = durability
        self.base = Path(tempfile.mkdtemp(prefix="ottla-bench-", dir=data or default_data()))
        self._made: list[OttlaNode] = []

    def make(self, settings: Mapping[str, str] = NO_SETTINGS, *, listen: str | None = "127.0.0.1:0") -> OttlaNode:
        """A node that has not been started. `settings`: more than the usual ones. `listen`: None if they name the
        listeners."""
        directory = self.base / f"node-{len(self._made)}"
        directory.mkdir()
        node = OttlaNode(directory, self.durability, {**SETTINGS, **settings}, listen)
        self._made.append(node)
        return node

    @contextlib.contextmanager
    def running(self, settings: Mapping[str, str] = NO_SETTINGS) -> Iterator[OttlaNode]:
        """A fresh node for the length of a block; its data goes with it."""
        node = self.make(settings)
        try:
            node.start()
            yield node
        finally:
            node.kill()
            shutil.rmtree(node.directory, ignore_errors=True)

    def free_gb(self) -> float:
        return shutil.disk_usage(self.base).free / 1e9

    def close(self) -> None:
        for node in self._made:
            node.kill()
        shutil.rmtree(self.base, ignore_errors=True)


def users_environment() -> dict[str, str]:
    """Ours, but compiled modules are kept, as they are where a package was installed: it halves the time of a start."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


def default_data() -> str | None:
    """Memory where there is a file system of it, for the least noise; None means the system's temporary directory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def leads_all(client: Client, topic: str, partitions: int) -> bool:
    try:
        leaders = client.topic(topic).leaders
    except ClientError:
        return False
    return len(leaders) == partitions and min(leaders) >= 0


def wait_until(done, timeout_s: float, what: str, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise BenchFailedError(f"it took more than {timeout_s:g} s until {what}")
        time.sleep(pause_s)


def family(pid: int) -> list[int]:
    """A process and the children that it has now."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += family(int(child))
    return found


def status_kb(pid: int, key: str) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(key + ":")).split()[1])
    return 0
