"""A node with its shards on a simulated disk: requests in, answers now or later, crashes and full disks at will."""

import random
from typing import Any

from ottla.broker.config.values import BrokerSettings
from ottla.broker.effects import Reply, Store, Sync
from ottla.broker.node import Node
from ottla.broker.requests import Address, Parked, Session
from ottla.metadata.memory import MemoryStore
from ottla.protocol.framing import RequestHeader, decode_response, encode_request
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.sim.kernel.disk import Disk

NOW = 1_800_000_000_000


class HostStage:
    """`ask` returns the answer or the ticket's number; `answers` has what came later. `sync_at_once`: fsyncs end.

    `faults`: exceptions that nobody expected are told to this list; without one they go on up.
    """

    def __init__(self, faults: list[str] | None = None, **settings: str) -> None:
        self.faults = faults
        self.settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
        self.settings |= {name.replace("_", "."): value for name, value in settings.items()}
        self.disk = Disk(random.Random(1))
        self.store = MemoryStore()
        self.now = NOW
        self.notes: list[str] = []
        self.answers: dict[int, Any] = {}
        self.asked: dict[int, tuple[int, int]] = {}
        self.sync_at_once = True
        self.same_boot = True
        self.syncs: list[Sync] = []
        self.node = self._begin()
        self.node.topics.create(self.now, "t", 2, {})

    def _begin(self) -> Node:
        node = Node(
            BrokerSettings.load(self.settings),
            self.disk,
            "/data",
            self.store,
            entropy=random.Random(2),
            same_boot=self.same_boot,
            notes=self.notes.append,
            faults=self._fault,
        )
        node.start(self.now)
        return node

    def _fault(self, what: str, error: Exception) -> None:
        if self.faults is None:
            raise error
        self.faults.append(what)

    def coordinate(self, group: str = "g") -> Any:
        return self.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4)

    def restart(self) -> None:
        """The process dies and comes back; what it wrote is still there."""
        self.disk.kill()
        self.now += 1000
        self.asked.clear()
        self.syncs.clear()
        self.node = self._begin()

    def ask(self, message: Any, version: int | None = None, connection: int = 1) -> Any:
        version = message.MAX_VERSION if version is None else version
        session = Session(Address(connection, "127.0.0.1", advertised=("broker.example", 9092)))
        frame = bytearray(encode_request(RequestHeader(message.API_KEY, version, 7, "stage"), message))
        answer = self.node.receive(self.now, session, memoryview(frame)[4:])
        self.node.groups.check()
        if isinstance(answer, Parked):
            self.asked[answer.ticket] = (message.API_KEY, version)
            self.settle()
            return self.answers.get(answer.ticket, answer.ticket)
        assert answer is not None
        return _decoded(message.API_KEY, version, answer)

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
            self.node.groups.check()
        self.now = until

    def settle(self) -> None:
        while effects := self.node.take_effects(self.now):
            for effect in effects:
                match effect:
                    case Reply(ticket, _, parts):
                        self.answers[ticket] = _decoded(*self.asked.pop(ticket), parts)
                    case Sync():
                        self.syncs.append(effect)
                    case Store(path, content):
                        self.disk.write_atomically(path, content)
                    case _:
                        raise AssertionError(effect)
            while self.sync_at_once and self.syncs:
                self.sync()

    def sync(self, failed: str | None = None) -> None:
        """The oldest fsync ends."""
        effect = self.syncs.pop(0)
        for file in effect.files:
            file.sync()
        failures = {} if failed is None else dict.fromkeys(range(len(effect.files)), failed)
        self.node.synced(self.now, effect.token, failures)


def _decoded(api_key: int, version: int, parts: Any) -> Any:
    whole = b"".join(part if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in parts)
    correlation_id, response = decode_response(api_key, version, memoryview(whole)[4:])
    assert correlation_id == 7
    return response
