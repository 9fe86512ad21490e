"""Throw mutated frames at a live node and watch that nothing breaks.

    python -m tools.fuzz_node [--frames 1000000] [--seed 1] [--connections 16] [--directory DIR] [--keep-going]

The frames are those that the differential scenarios send (every API and version, good and bad), and Ottla's own
requests. Half are damaged in their bytes: bits, numbers at their bounds, cuts, doublings, pieces of other frames, lying
lengths; half are well-formed and hold other values: bounds, other names, nulls, empty, doubled and long lists. Beside
them a well-behaved client produces and fetches all the time and checks every byte and offset.

It fails when the node dies, logs an error of its own, stops answering, disturbs the well-behaved client, keeps memory
or descriptors (measured between rounds, after everything the frames made was deleted), or does not start again.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from typing import Any

from ottla.client import Client, ClientError, Connection
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.framing import RequestHeader, decode_request, encode_request
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.messages.list_groups import ListGroupsRequest
from ottla.protocol.records.record import Record, build_batch
from ottla.protocol.wire import Struct
from tests.differential import transcript
from tests.differential.node import CONFIG
from tests.harness.protocol.private_messages import filled, private_messages
from tools.node_process import NodeProcess

SETTINGS = {**CONFIG, "ottla.partitions.max": "2000", "log.segment.delete.delay.ms": "100"}
BYSTANDER = "well-behaved"
LEFT_OUT = ("configs/incremental_broker", "configs/groups", "groups/expelled", "groups/leader_never_syncs")
"""Scenarios that change what the node does for everybody, or that only wait."""
ANSWER_TIMEOUT_S = 0.05
"""A request that has no answer by then is parked (a join, a long fetch) or incomplete; its connection is given up."""
ROUNDS_MAX = 10
FRAMES_A_ROUND = 1_500
INTERESTING = {
    1: (0, 1, 0x7F, 0x80, 0xFF),
    2: (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x0100),
    4: (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x10000, 0x06400000),
    8: (0, 1, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000, 0xFFFFFFFFFFFFFFFF),
}


def recorded(port: int) -> list[bytes]:
    """The frames, without their lengths, that the scenarios send to this node."""
    frames: list[bytes] = []
    write = Connection.send_bytes

    def note(self: Connection, data: Any) -> None:
        frames.append(bytes(data)[4:])
        write(self, data)

    Connection.send_bytes = note  # type: ignore[method-assign]
    try:
        for theme in transcript.themes():
            if transcript.is_secured(theme) or not transcript.playable(theme, "127.0.0.1", port):
                continue
            for name, scenario in transcript.scenarios_of(theme).items():
                if f"{theme}/{name}" not in LEFT_OUT:
                    with contextlib.suppress(TimeoutError, AssertionError):  # what it sent until then will do
                        transcript.play(scenario, "127.0.0.1", port, theme)
    finally:
        Connection.send_bytes = write  # type: ignore[method-assign]
    frames += own_requests()
    return [frame for frame in dict.fromkeys(frames) if 8 <= len(frame) < 100_000]


def own_requests() -> list[bytes]:
    """Frames of Ottla's own requests, which no scenario sends: they come from their definitions."""
    requests = [message for message in private_messages() if message.name.endswith("Request")]
    return [
        bytes(encode_request(RequestHeader(message.key or 0, version, 1, "fuzz"), filled(message, version)))[4:]
        for message in requests
        for version in range(message.versions[1] + 1)
    ]


class Corpus:
    """The frames to damage, their messages, and the strings in them."""

    def __init__(self, frames: list[bytes]) -> None:
        self.frames = frames
        self.requests: list[bytes] = []
        strings: dict[str, None] = {"": None, "x" * 300: None, "ä": None}
        for frame in frames:
            try:
                _, message = decode_request(memoryview(frame))
            except MalformedFrameError:
                continue
            self.requests.append(frame)
            strings.update(dict.fromkeys(_strings(message)))
        self.strings = list(strings)


def _strings(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for item in value for text in _strings(item)]
        case Struct():
            return [text for name in value.__slots__ for text in _strings(getattr(value, name))]
        case _:
            return []


def mutate(rng: random.Random, corpus: Corpus) -> bytes:
    """A damaged frame: its bytes, or, as often, the values in a frame that is right."""
    if rng.random() < 0.5:
        return mutate_bytes(rng, corpus.frames)
    header, message = decode_request(memoryview(rng.choice(corpus.requests)))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        mutate_value(rng, corpus, message)
    try:
        return bytes(encode_request(header, message))[4:]
    except (struct.error, ValueError, TypeError, AttributeError, OverflowError):  # a value that has no bytes
        return mutate_bytes(rng, corpus.frames)


def mutate_value(rng: random.Random, corpus: Corpus, message: Struct) -> None:
    """Change one field somewhere in the message."""
    name = rng.choice(message.__slots__) if message.__slots__ else ""
    if not name or name == "resource_type":  # topics must not turn into this broker, whose configs are everybody's
        return
    value = getattr(message, name)
    if isinstance(value, Struct):
        mutate_value(rng, corpus, value)
    elif isinstance(value, list) and value and isinstance(value[0], Struct) and rng.random() < 0.7:
        mutate_value(rng, corpus, rng.choice(value))
    else:
        setattr(message, name, other_value(rng, corpus, value))


def other_value(rng: random.Random, corpus: Corpus, value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            near = (value + 1, value - 1, -value, 0, 1, -1, -2)
            far = (127, -128, 32767, -32768, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 1000)
            return rng.choice(near if rng.random() < 0.5 else far)
        case str():
            return None if rng.random() < 0.1 else rng.choice(corpus.strings)
        case bytes() | memoryview():
            return mutate_bytes(rng, [bytes(value)]) if len(value) else rng.randbytes(rng.randrange(30))
        case list():
            return rng.choice(([], value + value, value[:1] * 50, value[::-1]))
        case None:
            return rng.choice((None, "", b"", []))
        case _:
            return value


def mutate_bytes(rng: random.Random, frames: list[bytes]) -> bytes:
    """One to four small damages. The header is mostly spared, so that they reach what is behind it."""
    data = bytearray(rng.choice(frames))
    spared = 0 if rng.random() < 0.1 else min(14, max(len(data) - 1, 0))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        at = rng.randrange(spared, len(data)) if len(data) > spared else 0
        match rng.randrange(10):
            case 0 | 1 | 2:
                if data:
                    data[at] ^= 1 << rng.randrange(8)
            case 3 | 4 | 5:
                width = rng.choice((1, 2, 4, 4, 8))
                data[at : at + width] = rng.choice(INTERESTING[width]).to_bytes(width, "big")
            case 6:
                del data[at : at + rng.choice((1, 2, 4, 8, 1 << 20))]
            case 7:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case 8:
                other = rng.choice(frames)
                start = rng.randrange(len(other) + 1)
                data[at : at + rng.randrange(40)] = other[start : start + rng.randrange(40)]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
    return bytes(data)


class Target:
    """One connection of the fuzzer: a frame goes out, then an answer, a hang-up or nothing comes."""

    def __init__(self, port: int, selector: selectors.BaseSelector) -> None:
        self.port = port
        self.selector = selector
        self.socket: socket.socket | None = None
        self.sent_at = 0.0
        self.wanted = -1
        self.received = 0

    def send(self, frame: bytes, claimed: int) -> None:
        if self.socket is None:
            self.socket = socket.create_connection(("127.0.0.1", self.port), 10)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(self.socket, selectors.EVENT_READ, self)
        self.sent_at = time.monotonic()
        self.wanted, self.received = -1, 0
        try:
            self.socket.sendall(struct.pack(">i", claimed) + frame)
        except OSError:
            self.drop()

    def read(self) -> str | None:
        """What came of the frame: "answered", "closed", or None while it is not known."""
        assert self.socket is not None
        try:
            chunk = self.socket.recv(1 << 18)
        except OSError:
            chunk = b""
        if not chunk:
            self.drop()
            return "closed"
        if self.wanted < 0:
            if len(chunk) < 4:
                self.drop()
                return "answered"
            self.wanted = 4 + struct.unpack_from(">i", chunk)[0]
        self.received += len(chunk)
        return "answered" if self.received >= self.wanted else None

    def drop(self) -> None:
        if self.socket is not None:
            self.selector.unregister(self.socket)
            self.socket.close()
            self.socket = None


class WellBehaved(threading.Thread):
    """Produces one record at a time, reads it back, and holds it against what it sent."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.done = threading.Event()
        self.failure: str | None = None
        self.rounds = 0
        self.slowest_ms = 0.0

    def run(self) -> None:
        try:
            with Client(f"127.0.0.1:{self.port}") as client:
                while not self.done.is_set():
                    self._round(client)
                    self.done.wait(0.02)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"

    def _round(self, client: Client) -> None:
        value = b"round %d" % self.rounds
        began = time.monotonic()
        sent = client.produce_raw(BYSTANDER, 0, build_batch([Record(value=value)]))
        assert sent is not None
        assert sent.base_offset == self.rounds, f"record {self.rounds} went to offset {sent.base_offset}"
        got = client.fetch_raw(BYSTANDER, 0, self.rounds, max_wait_ms=10_000)
        assert got.high_watermark == self.rounds + 1, f"the log ends at {got.high_watermark}, not at {self.rounds + 1}"
        assert got.records.endswith(value + b"\x00"), f"{value!r} came back as {got.records!r}"
        self.slowest_ms = max(self.slowest_ms, (time.monotonic() - began) * 1000)
        self.rounds += 1


def clean(port: int) -> None:
    """Delete every topic and group but the well-behaved client's: what is left of memory then is the node's own."""
    with Client(f"127.0.0.1:{port}") as client:
        names = [topic.name for topic in client.topics() if topic.name not in (BYSTANDER, "__consumer_offsets")]
        for start in range(0, len(names), 100):
            topics = [DeleteTopicState(name) for name in names[start : start + 100]]
            client.send(DeleteTopicsRequest(topics=topics, timeout_ms=30_000))
        groups = [group.group_id for group in client.send(ListGroupsRequest()).groups]
        for start in range(0, len(groups), 100):
            client.send_to_coordinator("any", DeleteGroupsRequest(groups[start : start + 100]))


class Fuzz:
    """One run: `outcomes` counts what came of the frames, `memory_mb` is measured after each round."""

    def __init__(self, node: NodeProcess, seed: int, connections: int) -> None:
        self.node = node
        self.rng = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.memory_mb: list[float] = []
        self.files: list[int] = []
        self.corpus = Corpus(recorded(node.port))
        self.selector = selectors.DefaultSelector()
        self.idle = [Target(node.port, self.selector) for _ in range(connections)]
        self.busy: list[Target] = []

    def throw(self, count: int) -> None:
        """Send `count` frames, as many at a time as there are connections."""
        sent = 0
        while sent < count or self.busy:
            while self.idle and sent < count:
                target = self.idle.pop()
                frame = mutate(self.rng, self.corpus)
                lie = (
                    self.rng.choice((0, -1, 1 << 30, -(1 << 31), len(frame) + 7)) if self.rng.random() < 0.01 else None
                )
                target.send(frame, len(frame) if lie is None else lie)
                sent += 1
                if target.socket is None:
                    self._over(target, "closed")
                else:
                    self.busy.append(target)
            self._collect()
            if not self.node.alive:
                raise AssertionError("the node died:\n" + "".join(self.node.last_lines))

    def _collect(self) -> None:
        for key, _ in self.selector.select(ANSWER_TIMEOUT_S):
            target: Target = key.data
            outcome = target.read()
            if outcome is not None and target in self.busy:
                self.busy.remove(target)
                self._over(target, outcome)
        now = time.monotonic()
        for target in [t for t in self.busy if now - t.sent_at > ANSWER_TIMEOUT_S]:
            target.drop()
            self.busy.remove(target)
            self._over(target, "no answer")

    def _over(self, target: Target, outcome: str) -> None:
        self.outcomes[outcome] += 1
        self.idle.append(target)

    def measure(self) -> None:
        for target in self.idle:
            target.drop()
        clean(self.node.port)
        time.sleep(0.5)  # deleted files are closed after their delay
        self.memory_mb.append(self.node.rss_mb())
        self.files.append(self.node.open_files())


def run(frames: int, seed: int, connections: int, directory: str, growth_mb_max: float, say: Any = print) -> list[str]:
    """The failures of one run; empty when all went well."""
    node = NodeProcess(directory, SETTINGS)
    node.start()
    failures: list[str] = []
    try:
        fuzz = Fuzz(node, seed, connections)
        with Client(node.bootstrap) as client:
            client.send(create_bystander())
            client.topic(BYSTANDER)
        say(f"{len(fuzz.corpus.frames)} different frames to begin with; node {node.pid}, seed {seed}")
        beside = WellBehaved(node.port)
        beside.start()
        began = time.monotonic()
        rounds = min(ROUNDS_MAX, 1 + frames // FRAMES_A_ROUND)
        for index in range(rounds):
            fuzz.throw(frames * (index + 1) // rounds - frames * index // rounds)
            fuzz.measure()
            rate = fuzz.outcomes.total() / (time.monotonic() - began)
            outcomes = ", ".join(f"{count} {outcome}" for outcome, count in fuzz.outcomes.items())
            say(f"{fuzz.outcomes.total()} frames ({outcomes}), {rate:.0f}/s, {len(node.tracebacks)} errors,")
            say(f"    {fuzz.memory_mb[-1]:.0f} MB, {fuzz.files[-1]} files, slowest beside {beside.slowest_ms:.0f} ms")
            if beside.failure:
                break
        beside.done.set()
        beside.join(30)
        failures += verdict(fuzz, beside, growth_mb_max)
    except (AssertionError, ClientError, OSError) as error:
        failures.append(str(error))
    finally:
        code = node.stop() if node.alive else None
    if code != 0:
        failures.append(f"the node ended with {code} instead of 0")
    failures += sorted({trace for trace in node.tracebacks})
    try:
        again = NodeProcess(directory, SETTINGS)
        again.start()
        again.stop()
    except RuntimeError as error:
        failures.append(f"it does not start again: {error}")
    return failures


def create_bystander() -> Any:
    from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest

    return CreateTopicsRequest(topics=[CreatableTopic(name=BYSTANDER, num_partitions=1, replication_factor=-1)])


def verdict(fuzz: Fuzz, beside: WellBehaved, growth_mb_max: float) -> list[str]:
    failures: list[str] = []
    if beside.failure:
        failures.append(f"the well-behaved client was disturbed: {beside.failure}")
    if beside.is_alive():
        failures.append("the well-behaved client hangs")
    if not beside.rounds:
        failures.append("the well-behaved client did nothing")
    settled = fuzz.memory_mb[len(fuzz.memory_mb) // 3 :]
    if settled and settled[-1] - settled[0] > growth_mb_max:
        failures.append(f"memory grows: {[round(m) for m in fuzz.memory_mb]} MB")
    if fuzz.files and fuzz.files[-1] - fuzz.files[0] > 50:
        failures.append(f"descriptors are kept: {fuzz.files}")
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--directory", help="where the node keeps its data; a temporary directory without it")
    parser.add_argument(
        "--growth-mb-max", type=float, default=32.0, help="how much memory may grow once it has settled"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-fuzz-") as temporary:
        directory = arguments.directory or temporary
        failures = run(arguments.frames, arguments.seed, arguments.connections, directory, arguments.growth_mb_max)
    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{arguments.frames} frames, seed {arguments.seed}: " + ("failed" if failures else "nothing broke"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
