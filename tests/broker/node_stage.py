"""A node without a server: its own directory, a store in memory, a clock that a test moves, frames in and out."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ottla.broker.config.values import BrokerSettings
from ottla.broker.effects import Part, Reply, Store, Sync
from ottla.broker.node import Node
from ottla.broker.requests import Address, Parked, Session
from ottla.log.files import DiskFiles
from ottla.metadata.memory import MemoryStore
from ottla.protocol.apis import APIS
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.records.record import Record, build_batch

NOW = 1_800_000_000_000
SESSION = Session(Address(1, "127.0.0.1", advertised=("broker.example", 9092)))


class NodeStage:
    """`ask` sends a request message and returns the response message; `restart` begins the node's next life."""

    def __init__(
        self, directory: Path, *, files: DiskFiles | None = None, store: MemoryStore | None = None, **settings: str
    ) -> None:
        self.directory = directory
        self.files = files
        self.settings = {name.replace("_", "."): value for name, value in settings.items()}
        self.store = store or MemoryStore()
        self.now = NOW
        self.notes: list[str] = []
        self.entropy = random.Random(1)
        self.node = self._begin()

    def _begin(self) -> Node:
        node = Node(
            BrokerSettings.load(self.settings),
            self.files or DiskFiles(),
            str(self.directory),
            self.store,
            entropy=self.entropy,
            same_boot=True,
            notes=self.notes.append,
        )
        node.start(self.now)
        return node

    def restart(self, *, clean: bool = True) -> None:
        if clean:
            self.node.stop(self.now)
        self.now += 1000
        self.node = self._begin()

    def ask(self, message: Any, version: int | None = None) -> Any:
        if version is None:
            version = min(message.MAX_VERSION, 5 if message.API_KEY == 22 else 99)
        frame = encode_request(RequestHeader(message.API_KEY, version, 7, "stage"), message)
        answer = self.node.receive(self.now, SESSION, memoryview(frame)[4:])
        assert answer is not None
        if isinstance(answer, Parked):
            answer = self.in_slices(answer)
        whole = b"".join(part if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in answer)
        correlation_id, response = decode_response(message.API_KEY, version, memoryview(whole)[4:])
        assert correlation_id == 7
        return response

    def in_slices(self, parked: Parked) -> Sequence[Part]:
        """The answer to a request whose work goes on a slice a tick."""
        while self.node.slices.deadline() is not None:
            self.node.tick(self.now)
        (reply,) = (e for e in self.node.take_effects(self.now) if isinstance(e, Reply) and e.ticket == parked.ticket)
        return reply.parts

    def append(
        self, topic: str, index: int = 0, *, timestamp: int | None = None, value: bytes = b"v", **how: int
    ) -> int:
        """Append one record of this topic's partition; returns its offset."""
        partition = self.node.replicas.get(topic, index)
        assert partition is not None
        record = Record(0, self.now if timestamp is None else timestamp, b"k", value)
        batch = bytearray(build_batch([record], **how))
        return partition.append(self.now, memoryview(batch)).base_offset

    def run(self, ms: int = 0) -> None:
        """Let time pass and everything due be done."""
        until = self.now + ms
        while True:
            self.settle()
            due = self.node.deadline()
            if due is None or due > until:
                break
            self.now = max(self.now, due)
            self.node.tick(self.now)
        self.now = until

    def settle(self) -> None:
        for effect in self.node.take_effects(self.now):
            if isinstance(effect, Sync):
                for file in effect.files:
                    file.sync()
                self.node.synced(self.now, effect.token, {})
            elif isinstance(effect, Store):
                self.node.files.write_atomically(effect.path, effect.content)


def versions_of(api_key: int) -> list[int]:
    """Every version the codec has of an API."""
    return list(range(APIS[api_key].min_version, APIS[api_key].max_version + 1))
