"""The stage of the fairness tests: a node in a process of its own, a probe in another, and between them an attack.

    with running_node(tmp_path, settings={...}) as node, Probe(node) as probe:
        idle = probe.rest()                  # how fast small requests are answered while nothing else happens
        with probe.watch() as seen:
            ...                              # the attack, from this process
        seen.must_be_fair(idle)

Knows: how long another client's small request waits, how much memory the node has resident (`node.resident_bytes`),
how the probe itself is held up by a busy machine. Does not know what the attack is.

The probe sends a request every `PACE_S` and counts each answer from the moment at which its request was *due*: a node
that stands still for a second has a hundred late answers, not one. It is a process, as threads beside the attack would
wait for the attack's interpreter lock and blame the node for it. On a machine that many share, the time in which the
probe or the node could have run and had to wait for a processor is taken off each answer's, but never the time that the
node's loop itself has worked (`test_probe.py` plants both). What the loop has worked counts as what it would have taken
at the best of the run, by how much longer the same work of the probe takes now. The limit is the same everywhere.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Self

from ottla.protocol.framing import RequestHeader, encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.records.record import Record, build_batch, decode_records
from ottla.protocol.wire import Message

PROBE = Path(__file__).with_name("probe.py")
PACE_S = 0.005
P99_MAX_MS = 100.0
PIECES_MAX = 2
SLOWED_MAX = 2.0
"""Processors that are slower than that are not believed."""
START_S = 60.0
REST_S = 0.3
BURSTS_MAX = 4


@dataclass(frozen=True, slots=True)
class Waits:
    """How long small requests waited, in milliseconds, sorted. `slowed`: how much slower the processors were than at
    the best of this run, which is taken off what the node has worked."""

    answers_ms: list[float]
    slowed: float = 1.0

    @property
    def p99_ms(self) -> float:
        return percentile(self.answers_ms, 0.99)

    def must_be_fair(self, idle: Waits, limit_ms: float = P99_MAX_MS) -> None:
        """At the 99th percentile the node has held an answer up for no more than 100 ms, or the limit."""
        assert self.answers_ms, "no request was answered"
        assert self.p99_ms <= limit_ms, (
            f"small requests of another client waited {percentile(self.answers_ms, 0.5):.1f} ms at the median, "
            f"{self.p99_ms:.1f} ms at the 99th percentile, {limit_ms:.1f} ms allowed and "
            f"{self.answers_ms[-1]:.1f} ms at most; "
            f"{idle.p99_ms:.1f} ms without the attack, processors {self.slowed:.2f} times as slow as at their best"
        )


def percentile(values: list[float], part: float) -> float:
    """Of sorted values, 0 where there are none."""
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


class NodeProcess:
    """A running `ottla serve`."""

    def __init__(self, process: subprocess.Popen[bytes], listeners: Mapping[str, str], log: Path) -> None:
        self.process = process
        self.ports = {name: int(address.rpartition(":")[2]) for name, address in listeners.items()}
        """By the names of its listeners."""
        self.address = listeners["PLAINTEXT"]
        self.port = self.ports["PLAINTEXT"]
        self.log = log

    @property
    def resident_bytes(self) -> int:
        """What the node has in memory now."""
        return self._status_kb("VmRSS") << 10

    @property
    def resident_bytes_max(self) -> int:
        """The most it ever had."""
        return self._status_kb("VmHWM") << 10

    def _status_kb(self, key: str) -> int:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
        raise LookupError(key)

    def connect(self) -> socket.socket:
        """A connection without a client around it."""
        sock = socket.create_connection(("127.0.0.1", self.port), START_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def said(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def running_node(
    directory: Path,
    *,
    settings: Mapping[str, object] | None = None,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    listen: str = "127.0.0.1:0",
) -> Iterator[NodeProcess]:
    """A node on a port that the system chose, its data in `directory`/data; killed at the end.

    `arguments`: more of `ottla serve`; `environment`: more variables, such as a preloaded library.
    """
    log = directory / "node.log"
    command = [sys.executable, "-m", "ottla", "serve", "--listen", listen, "--data", str(directory / "data")]
    command += ["--log-format", "json", "--set", "offsets.topic.num.partitions=1", *arguments]
    for key, value in (settings or {}).items():
        command += ["--set", f"{key}={value}"]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **(environment or {})}
        )
    try:
        greeting = line_of(process, "the node did not start")
        yield NodeProcess(process, json.loads(greeting)["listeners"], log)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line_of(process: subprocess.Popen[bytes], otherwise: str) -> bytes:
    """The next line that a process prints, waited for as long as a start may take."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        line = process.stdout.readline() if selector.select(START_S) else b""
    assert line, otherwise
    return line


class Probe:
    """A process that sends small requests to a node and measures how long each waits."""

    def __init__(self, node: NodeProcess, request: Message | None = None, version: int = 3) -> None:
        """`request` in `version`: what is asked over and over; an ApiVersions without it."""
        asked = request if request is not None else ApiVersionsRequest("probe", "1")
        self._frame = bytes(encode_request(RequestHeader(asked.API_KEY, version, 1, "probe"), asked))
        self._node = node
        self._best_ms = math.inf

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                str(PROBE),
                str(self._node.process.pid),
                str(self._node.port),
                self._frame.hex(),
                str(PACE_S),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        line_of(self._process, "the probe did not start")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def rest(self, seconds: float = REST_S) -> Waits:
        """How long requests wait while nothing else happens."""
        with self.watch() as seen:
            time.sleep(seconds)
        return seen.waits

    @contextlib.contextmanager
    def watch(self) -> Iterator[Seen]:
        """Measure for the length of the block; what was seen is there at its end."""
        seen = Seen()
        self._say("on")
        try:
            yield seen
        finally:
            answers, works = json.loads(self._say("off"))
            self._best_ms = min(self._best_ms, *works, math.inf)
            slowed = min(median(works) / self._best_ms, SLOWED_MAX) if works else 1.0
            seen.waits = Waits(sorted(worked / slowed + other for worked, other in answers), slowed)

    def _say(self, word: str) -> bytes:
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")
        self._process.stdin.flush()
        return line_of(self._process, "the probe's last request was not answered in a minute")


class Seen:
    """What a watch has found, once it is over."""

    waits: Waits

    def must_be_fair(self, idle: Waits, limit_ms: float = P99_MAX_MS) -> None:
        self.waits.must_be_fair(idle, limit_ms)


@cache
def usual_piece() -> memoryview:
    """A batch whose records take about as long to read as the largest turn that the node gives to one request."""
    return memoryview(bytes(build_batch([Record(-1, 0, b"k", b"")] * 20_000)))


def assert_fair_burst(
    probe: Probe, idle: Waits, burst: Callable[[], None], piece: Callable[[], memoryview] = usual_piece
) -> None:
    """A burst is over in a moment, which a busy machine may make a long one: the best of a few counts.

    `piece`: a batch that takes about as long to read as the largest piece of work that the node does not divide.
    Requests may wait for as long as a few of these take here and now, in CPU time of this process: it needs a processor
    and its caches as the node does.
    """
    for left in reversed(range(BURSTS_MAX)):
        with probe.watch() as seen:
            burst()
        limit_ms = max(P99_MAX_MS, PIECES_MAX * _ms_to_read(piece()))
        if left == 0 or seen.waits.p99_ms <= limit_ms:
            seen.must_be_fair(idle, limit_ms)
            return


def _ms_to_read(batch: memoryview) -> float:
    began = time.thread_time()
    decode_records(batch)
    return 1e3 * (time.thread_time() - began)
